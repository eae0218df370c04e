"""Citation markers of a model and the annotations that replace them."""

from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.items import FileSearchCall, StoredItem, WebSearchCall, from_wire
from engine.citation_markers import mark, open_turn
from engine.converter.chat import ChatConverter
from engine.events.types import Body, Event, OutputTextDelta, OutputTextDone
from engine.turn import Sampling, TurnRequest, TurnResult, TurnStream
from tests.support.chunks import text

PAGES = from_wire(
    {
        "type": "web_search_call",
        "id": "ws_aaaa1111",
        "status": "completed",
        "action": {"type": "search", "query": "cats", "sources": [{"type": "url", "url": "https://cats.example/a"}]},
        "results": [{"url": "https://cats.example/a", "title": "All about cats", "text": "They purr."}],
    }
)
PASSAGES = from_wire(
    {
        "type": "file_search_call",
        "id": "fs_bbbb2222",
        "status": "completed",
        "queries": ["dogs"],
        "results": [{"file_id": "file-1", "filename": "dogs.pdf", "text": "They bark.", "score": 0.9}],
    }
)
LINK = " ([cats.example](https://cats.example/a))"


class _Upstream:
    """Upstream that sends these pieces of text."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self._converter = ChatConverter(first_output_index=0)

    def open(self, request: TurnRequest) -> TurnStream:
        return self

    async def events(self) -> AsyncGenerator[list[Event], None]:
        for chunk in text(*self._pieces):
            yield self._converter.feed([chunk])
        yield self._converter.end(done=True)

    def result(self) -> TurnResult:
        return self._converter.result()

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        return self._converter.interrupt(), self._converter.result(interrupted=True)


async def read(*pieces: str, items: tuple[StoredItem, ...] = (PAGES, PASSAGES), **sampling: object) -> tuple[Body, str]:
    """Return the final text part and the concatenated deltas."""
    request = TurnRequest(
        model="m",
        instructions=None,
        items=items,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]  # fields by name
        first_output_index=0,
    )
    turn = open_turn(_Upstream(*pieces), request)
    events = [event async for batch in turn.events() for event in batch]
    streamed = "".join(event.delta for event in events if isinstance(event, OutputTextDelta))
    (done,) = [event for event in events if isinstance(event, OutputTextDone)]
    (message,) = turn.result().items
    (part,) = message["content"]
    assert done.text == part["text"] == streamed
    return part, streamed


async def test_a_cited_page_is_linked_with_an_annotation_at_its_position() -> None:
    part, streamed = await read("Cats purr", mark("ws_aaaa1111", 1), ".")
    assert streamed == f"Cats purr{LINK}."
    (citation,) = part["annotations"]
    assert streamed[citation["start_index"] : citation["end_index"]] == LINK
    assert (citation["type"], citation["url"], citation["title"]) == (
        "url_citation",
        "https://cats.example/a",
        "All about cats",
    )


async def test_a_file_citation_points_at_the_position_of_the_marker() -> None:
    part, streamed = await read("Dogs bark", mark("fs_bbbb2222", 1), ".")
    assert streamed == "Dogs bark."
    assert part["annotations"] == [
        {"type": "file_citation", "file_id": "file-1", "filename": "dogs.pdf", "index": len("Dogs bark")}
    ]


@pytest.mark.parametrize("made_up", ["【2222:2】", "【cccc:1】", "【1111:9†source】"])
async def test_a_marker_of_an_unknown_source_is_removed(made_up: str) -> None:
    part, streamed = await read("It is so", made_up, ".")
    assert (streamed, part["annotations"]) == ("It is so.", [])


@pytest.mark.parametrize("plain", ["【注】 a note", "【", "an open 【 bracket", "【1111:1", "【" * 5])
async def test_other_brackets_are_kept(plain: str) -> None:
    part, streamed = await read(plain)
    assert (streamed, part["annotations"]) == (plain, [])


async def test_json_answers_get_no_links() -> None:
    part, streamed = await read('{"a": "b【1111:1】"}', response_format={"type": "json_object"})
    assert streamed == '{"a": "b"}'
    assert part["annotations"][0]["start_index"] == part["annotations"][0]["end_index"]


async def test_markers_are_kept_in_a_turn_without_sources() -> None:
    _, streamed = await read("As 【1111:1】 says", items=())
    assert streamed == "As 【1111:1】 says"


@given(cuts=st.sets(st.integers(1, 60)))
async def test_citations_do_not_depend_on_the_chunking(cuts: set[int]) -> None:
    whole = "Cats purr【1111:1】, dogs【2222:1†dogs】 bark【9999:1】; 【注】 both【1111:1】"
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    part, streamed = await read(*filter(None, pieces))
    assert streamed == f"Cats purr{LINK}, dogs bark; 【注】 both{LINK}"
    assert [one["type"] for one in part["annotations"]] == ["url_citation", "file_citation", "url_citation"]


def test_the_sample_items_have_the_expected_types() -> None:
    assert isinstance(PAGES, WebSearchCall)
    assert isinstance(PASSAGES, FileSearchCall)

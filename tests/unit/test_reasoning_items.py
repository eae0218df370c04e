"""Reasoning items in any order of summaries, text and calls."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.converter.chat import ChatConverter
from engine.converter.segments import ReasoningContent
from engine.converter.think_tags import ThinkTags
from tests.support.chunks import Chunk, chunk, usage
from tests.support.runs import Played, on_the_wire, play
from tests.support.streams import assert_items, assert_stream_equals_stored


class ReadableCipher:
    """A cipher that encrypts nothing."""

    def __init__(self) -> None:
        self.encrypted: list[ReasoningContent] = []

    def encrypt(self, content: ReasoningContent) -> str:
        self.encrypted.append(content)
        return f"sealed {len(self.encrypted)}"

    def decrypt(self, token: str) -> ReasoningContent | None:
        return None


def call(index: int) -> Chunk:
    function = {"name": f"f{index}", "arguments": "{}"}
    return chunk(tool_calls=[{"index": index, "id": f"call_{index}", "function": function}])


def summary(words: str, index: int = 0) -> Chunk:
    return chunk(reasoning_details=[{"type": "reasoning.summary", "summary": words, "index": index}])


async def played(*pieces: Chunk) -> Played:
    """Play one turn, and check what holds for every stream."""
    ended = await play([*pieces, chunk(finish="stop"), usage()])
    assert_stream_equals_stored(copy.deepcopy(ended.events), ended.end.response)
    return ended


def shapes(items: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (
            item["type"],
            "|".join(p["text"] for p in item.get("summary", ())),
            "".join(p["text"] for p in item.get("content", ())),
        )
        for item in items
    ]


async def test_reasoning_after_a_call_waits_until_the_call_is_complete() -> None:
    ended = await played(call(0), summary("a"), summary("b"), summary("c", 1), chunk(reasoning="d"), chunk(content="e"))
    assert shapes(ended.output) == [("function_call", "", ""), ("reasoning", "ab|c", "d"), ("message", "", "e")]


async def test_a_call_after_reasoning_closes_the_reasoning_item() -> None:
    ended = await played(chunk(reasoning="a"), call(0), chunk(reasoning="b"), call(1))
    kinds = [item["type"] for item in ended.output]
    assert kinds == ["reasoning", "function_call", "reasoning", "function_call"]


PIECES = st.one_of(
    st.builds(lambda words: chunk(reasoning=words), st.text("xy", min_size=1, max_size=2)),
    st.builds(summary, st.text("xy", min_size=1, max_size=2), st.integers(0, 1)),
    st.builds(lambda words: chunk(content=words), st.text("xy ", min_size=1, max_size=2)),
    st.builds(call, st.integers(0, 1)),
    st.just(chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}])),
)


@pytest.mark.slow
@given(st.lists(PIECES, max_size=8), st.booleans())
def test_items_are_well_formed_and_encrypted_once_in_any_order(pieces: list[Chunk], shown: bool) -> None:
    cipher = ReadableCipher()
    converter = ChatConverter(first_output_index=0, cipher=cipher, show_raw=shown)
    events = [event for piece in pieces for event in converter.feed([piece])]
    events += converter.feed([chunk(finish="stop")]) + converter.end(done=True)
    wire = on_the_wire(events)
    assert_items(wire)
    result = converter.result()
    done = [event["item"] for event in wire if event["type"] == "response.output_item.done"]
    assert done == result.items
    reasoning = [item for item in done if item["type"] == "reasoning"]
    assert [item["encrypted_content"] for item in reasoning] == [f"sealed {n + 1}" for n in range(len(reasoning))]
    assert len(cipher.encrypted) == len(reasoning)
    assert shown or all("content" not in item for item in reasoning)


def test_the_encrypted_content_has_all_reasoning_and_signatures() -> None:
    cipher = ReadableCipher()
    converter = ChatConverter(first_output_index=0, cipher=cipher, show_raw=False)
    block = {"type": "thinking", "thinking": "Lo", "index": 0}
    converter.feed([chunk(thinking_blocks=[block]), chunk(thinking_blocks=[{**block, "thinking": "ok."}])])
    converter.feed([chunk(thinking_blocks=[{"type": "thinking", "signature": "s", "index": 0}])])
    converter.end(done=True)
    assert cipher.encrypted == [
        ReasoningContent(text="Look.", details=[{**block, "thinking": "Look.", "signature": "s"}])
    ]


def test_an_interrupted_turn_encrypts_its_partial_reasoning() -> None:
    cipher = ReadableCipher()
    converter = ChatConverter(first_output_index=0, cipher=cipher, think_tags=True)
    converter.feed([chunk(content="<think>Hm. </th")])
    converter.interrupt()
    (item,) = converter.result(interrupted=True).items
    assert (item["status"], item["encrypted_content"]) == ("incomplete", "sealed 1")
    assert cipher.encrypted == [ReasoningContent(text="Hm. </th", details=[])]


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "thi", "nk>", "a", " ", "\n"]), max_size=8))
def test_think_tags_are_recognized_in_any_chunking(pieces: list[str]) -> None:
    assert divided(pieces) == divided(["".join(pieces)]) == divided(list("".join(pieces)))


def divided(pieces: list[str]) -> tuple[str, str]:
    """Return the reasoning and the text."""
    tags = ThinkTags()
    found = [part for piece in pieces for part in tags.feed(piece)] + tags.end()
    return (
        "".join(words for kind, words in found if kind == "reasoning"),
        "".join(words for kind, words in found if kind == "text"),
    )


@pytest.mark.parametrize("delta", [{}, {"reasoning": ""}, {"reasoning_details": []}, {"reasoning": None}])
async def test_empty_reasoning_is_not_an_item(delta: dict[str, Any]) -> None:
    assert shapes((await played(chunk(**delta), chunk(content="a"))).output) == [("message", "", "a")]

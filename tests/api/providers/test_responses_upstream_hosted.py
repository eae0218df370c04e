"""Hosted tools run by the upstream: their items are passed on, with the events of each type."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.support.api import Api, ok
from tests.support.items import SAMPLES
from tests.support.responses_upstream import answer, event, message_events
from tests.support.streams import types
from tests.support.upstream import Answer, Script

PLACE = {"query": "cats", "type": "search"}
SEARCH = {"id": "ws_theirs", "type": "web_search_call", "status": "completed", "action": PLACE}
LOOKED = {"id": "fs_theirs", "type": "file_search_call", "status": "completed", "queries": ["cats"], "results": None}
CODE = {**SAMPLES["ci_1"], "id": "ci_theirs", "outputs": None}
DRAWN = {"id": "ig_theirs", "type": "image_generation_call", "status": "completed", "result": "aGk="}
LISTED = {**SAMPLES["mcpl_1"], "id": "mcpl_theirs", "error": None}
CALLED = {**SAMPLES["mcp_1"], "id": "mcp_theirs", "error": None}
EVENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a web search": (
        SEARCH,
        ["web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed"],
    ),
    "a web search with a newer field": (
        {**SEARCH, "action": {**PLACE, "later": 1}, "later": {"a": 1}},
        ["web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed"],
    ),
    "a file search": (
        LOOKED,
        ["file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed"],
    ),
    "a failed search": (
        {**SEARCH, "status": "failed"},
        ["web_search_call.in_progress", "web_search_call.searching"],
    ),
    "a code interpreter call": (
        CODE,
        [
            "code_interpreter_call.in_progress",
            "code_interpreter_call_code.delta",
            "code_interpreter_call_code.done",
            "code_interpreter_call.interpreting",
            "code_interpreter_call.completed",
        ],
    ),
    "an image": (
        DRAWN,
        ["image_generation_call.in_progress", "image_generation_call.generating", "image_generation_call.completed"],
    ),
    "a tool list": (LISTED, ["mcp_list_tools.in_progress", "mcp_list_tools.completed"]),
    "a failed tool list": (
        {**LISTED, "error": "gone"},
        ["mcp_list_tools.in_progress", "mcp_list_tools.failed"],
    ),
    "the output of a program": (
        {"id": "progo_theirs", "type": "program_output", "status": "completed", "call_id": "call_1", "result": "1"},
        [],
    ),
    "the output of a patch": ({**SAMPLES["apco_1"], "id": "apco_theirs"}, []),
    "an MCP call": (
        CALLED,
        ["mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done", "mcp_call.completed"],
    ),
}


def answer_after(item: dict[str, Any]) -> Answer:
    """Return an answer that starts with this item."""
    opened = {**item, "status": "in_progress"} if "status" in item else item
    places = [
        event(f"output_item.{step}", output_index=0, item=body) for step, body in (("added", opened), ("done", item))
    ]
    return answer([*places, *message_events("Cats.", index=1)])


@pytest.mark.parametrize("name", EVENTS)
def test_a_tool_call_run_by_the_upstream_has_its_events(api: Api, responses_api_script: Script, name: str) -> None:
    item, inside = EVENTS[name]
    event_types = types(api.events(model=responses_api_script.then(answer_after(item)).model, input="Cats?"))
    opened, closed = event_types.index("response.output_item.added"), event_types.index("response.output_item.done")
    assert event_types[opened + 1 : closed] == [f"response.{kind}" for kind in inside]


def test_items_of_upstream_tools_can_be_sent_back(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer_after(SEARCH), answer(message_events("Dogs.")))
    first = api.create(model=responses_api_script.model, input="Cats?")
    assert [item["type"] for item in first["output"]] == ["web_search_call", "message"]
    again = [{"role": "user", "content": "Cats?"}, *first["output"], {"role": "user", "content": "Dogs?"}]
    assert api.create(model=responses_api_script.model, input=again)["status"] == "completed"
    assert [item["type"] for item in responses_api_script.bodies[1]["input"]] == ["message"] * 3


FOUND = {**SEARCH, "action": {**PLACE, "sources": [{"type": "url", "url": "https://a.example"}]}}
RESULT = {"file_id": "file-1", "filename": "cats.txt", "score": 0.5, "text": "Cats.", "attributes": {}}
LONG_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "sources": (FOUND, "web_search_call.action.sources"),
    "results": ({**LOOKED, "results": [RESULT]}, "file_search_call.results"),
    "outputs": ({**CODE, "outputs": [{"type": "logs", "logs": "1"}]}, "code_interpreter_call.outputs"),
}


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("field", LONG_FIELDS)
def test_events_and_the_response_show_the_same_fields(
    api: Api, responses_api_script: Script, field: str, asks: bool
) -> None:
    item, include = LONG_FIELDS[field]
    responses_api_script.then(answer_after(item))
    events = api.events(model=responses_api_script.model, input="Cats?", include=[include] if asks else [])
    (shown, _) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert shown == events[-1]["response"]["output"][0]
    assert (field in str({key: value for key, value in shown.items() if value})) is asks


@pytest.mark.parametrize("name", ["include", "include[]"])
@pytest.mark.parametrize("field", LONG_FIELDS)
def test_a_replay_shows_the_fields_that_it_includes(
    api: Api, responses_api_script: Script, field: str, name: str
) -> None:
    item, include = LONG_FIELDS[field]
    responses_api_script.then(answer_after(item))
    first = api.events(model=responses_api_script.model, input="Cats?")
    path = f"/responses/{first[0]['response']['id']}"
    raw = api.get(path, stream="true", **{name: include}).content
    assert raw.endswith(b"data: [DONE]\n\n")
    replayed = [orjson.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    assert types(replayed) == types(first)
    last = replayed[-1]["response"]
    assert last == api.get(path, include=include).json()
    assert last != first[-1]["response"]
    assert last["output"] == [event["item"] for event in replayed if event["type"] == "response.output_item.done"]


SOURCES = [{"type": "url", "url": "https://cats.example/"}]


def with_later(item: dict[str, Any], later: dict[str, Any]) -> Answer:
    """Return an answer whose final response has more of its first item than the event of the item."""
    words = message_events("Cats.", index=1)
    places = [event(f"output_item.{step}", output_index=0, item=item) for step in ("added", "done")]
    whole = answer([*places, *words])
    *before, last = whole.pieces
    assert isinstance(last, dict)
    response = last["response"]
    output = [later, *response["output"][1:]]
    return replace(whole, pieces=(*before, {**last, "response": {**response, "output": output}}))


@pytest.mark.parametrize(
    ("item", "later", "include", "shown"),
    [
        (
            SEARCH,
            {**SEARCH, "action": {**PLACE, "sources": SOURCES}},
            "web_search_call.action.sources",
            lambda item: item["action"]["sources"] == SOURCES,
        ),
        (
            CODE,
            {**CODE, "outputs": [{"type": "logs", "logs": "1"}]},
            "code_interpreter_call.outputs",
            lambda item: item["outputs"] == [{"type": "logs", "logs": "1"}],
        ),
    ],
    ids=["sources", "outputs"],
)
def test_fields_found_only_in_the_final_response_are_kept(
    api: Api, responses_api_script: Script, item: Any, later: Any, include: str, shown: Callable[[Any], bool]
) -> None:
    responses_api_script.then(with_later(item, later))
    created = api.events(model=responses_api_script.model, input="Hi")[-1]["response"]
    stored = ok(api.get(f"/responses/{created['id']}", include=include))
    assert shown(stored["output"][0])


def test_an_unreadable_field_of_the_final_item_is_ignored(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(with_later(SEARCH, {**SEARCH, "action": {**PLACE, "sources": 7}}))
    created = api.events(model=responses_api_script.model, input="Hi")[-1]["response"]
    assert created["status"] == "completed"

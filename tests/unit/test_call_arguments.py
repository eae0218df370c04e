"""Arguments of calls: storable ones, and long ones in small pieces."""

import time

import orjson
import pytest

from core.json.storable_json import MAX_DEPTH
from engine.calls.client_tools import hidden_function, item_fields
from engine.calls.outcomes import ToolResult, parse_object
from engine.converter.calls import CallSegment
from engine.converter.chat_calls import CallJoiner, CallPiece, new_arguments, read_calls
from engine.turn import CallForm

DEEP = '{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}"


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"a":"\\ud800"}', DEEP])
def test_arguments_that_are_not_a_storable_object_count_as_missing(arguments: str) -> None:
    assert parse_object(arguments) is None


def test_parsed_arguments_have_no_nul() -> None:
    assert parse_object('{"a\\u0000":["\\u0000b"]}') == {"a": ["b"]}


def test_tool_results_have_no_nul() -> None:
    result = ToolResult(output="a\x00b", error="no\x00", parts=({"text": "\x00"},), fields={"n\x00": ["\x00c"]})
    assert result.storable() == ToolResult(output="ab", error="no", parts=({"text": ""},), fields={"n": ["c"]})


def test_item_fields_of_a_call_have_no_nul() -> None:
    fields = item_fields(hidden_function(CallForm.SHELL), orjson.dumps({"commands": ["a\x00b"]}).decode())
    assert fields is not None
    assert fields["action"]["commands"] == ["ab"]


def test_a_client_tool_search_that_is_nested_too_deeply_is_not_an_item() -> None:
    assert item_fields(hidden_function(CallForm.TOOL_SEARCH), DEEP) is None


def piece(name: str, arguments: str) -> CallPiece:
    """Return a piece of a call with the index 0 and without an id."""
    (read,) = read_calls({"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]})
    return read


def test_long_arguments_with_a_name_in_each_chunk_take_linear_time() -> None:
    call, calls, more = CallSegment(upstream_id=None, call_id=None), CallJoiner(), piece("f", "x" * 20)
    call.write("f", '{"a":"')
    calls.add(more, call)
    started = time.process_time()
    for _ in range(50_000):
        assert calls.find(more) is call
        call.write(None, new_arguments(call, more))
    assert time.process_time() - started < 3


@pytest.mark.parametrize("end", ["}", "} ", "}\n"])
def test_complete_arguments_are_followed_by_another_call(end: str) -> None:
    call, calls = CallSegment(upstream_id=None, call_id=None), CallJoiner()
    calls.add(piece("f", "{"), call)
    for arguments in ('{"a":', "1", end, " "):
        call.write("f", arguments)
    assert calls.find(piece("g", "{}")) is None

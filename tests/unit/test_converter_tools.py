"""Calls of tools other than functions: chunks of the upstream converted to items and events."""

import copy
from typing import Any

import orjson
import pytest

from engine.converter.chat import ChatConverter
from engine.events.types import OutputItemDone
from engine.turn import CallForm, FunctionTool, Sampling
from tests.support.chunks import Chunk, calls, chunk
from tests.support.runs import Played
from tests.support.runs import play as play_any
from tests.support.scripted import Piece
from tests.support.streams import assert_stream_equals_stored

CUSTOM = {"type": "custom", "name": "write"}
NAMESPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers",
    "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "note"}],
}
SHELL = {"type": "shell"}
STOP = chunk(finish="tool_calls")


async def play(*pieces: Piece, **request: Any) -> Played:
    """Play one turn and assert what holds for every stream."""
    played = await play_any(list(pieces), **request)
    assert_stream_equals_stored(copy.deepcopy(played.events), played.end.response)
    return played


def native(index: int = 0, **custom: Any) -> Chunk:
    """Return a delta of a native custom tool call."""
    given = {"id": "call_a"} if "name" in custom else {}
    return chunk(tool_calls=[{"index": index, "type": "custom", **given, "custom": custom}])


def pieces(name: str, text: str, size: int) -> list[Chunk]:
    """Return a function call whose arguments arrive in pieces."""
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    head = chunk(tool_calls=[{"index": 0, "id": "call_a", "function": {"name": name, "arguments": ""}}])
    return [head, *(chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in cut), STOP]


def deltas(played: Played, kind: str) -> list[str]:
    """Return the deltas of the events of this type."""
    return [event["delta"] for event in played.events if event["type"] == f"response.{kind}.delta"]


def shell(**arguments: Any) -> str:
    return orjson.dumps(arguments).decode()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_custom_tool_input_is_unwrapped_from_json_while_streaming(size: int) -> None:
    text = 'print("ä😀\\n")\n'
    arguments = orjson.dumps({"input": text}).decode().replace("😀", "\\ud83d\\ude00")
    played = await play(*pieces("write", arguments, size), tools=[CUSTOM])
    item = played.output[0]
    assert (item["type"], item["name"], item["input"], item["call_id"]) == ("custom_tool_call", "write", text, "call_a")
    assert "".join(deltas(played, "custom_tool_call_input")) == text
    assert item["id"].startswith("ctc_")


async def test_custom_tool_input_is_streamed_before_it_is_complete() -> None:
    played = await play(*pieces("write", '{"input":"abcdef"}', 2), tools=[CUSTOM])
    assert len(deltas(played, "custom_tool_call_input")) > 2


async def test_a_custom_call_without_arguments_has_an_empty_input() -> None:
    played = await play(*pieces("write", "", 1), tools=[CUSTOM])
    assert (played.output[0]["input"], played.types[-3:]) == (
        "",
        ["custom_tool_call_input.done", "output_item.done", "completed"],
    )


async def test_truncated_custom_tool_input_is_listed_as_incomplete() -> None:
    chunks = [*pieces("write", '{"input":"half\\u00', 3)[:-1], chunk(finish="length")]
    played = await play(*chunks, tools=[CUSTOM])
    assert (played.output[0]["input"], played.output[0]["status"]) == ("half", "incomplete")
    assert played.end.ending.status == "incomplete"


async def test_native_custom_call_deltas_are_not_unwrapped() -> None:
    chunks = [native(name="write", input=""), native(input='{"in'), native(input='put":"x"}'), STOP]
    played = await play(*chunks, tools=[CUSTOM])
    assert (played.output[0]["type"], played.output[0]["input"]) == ("custom_tool_call", '{"input":"x"}')
    assert deltas(played, "custom_tool_call_input") == ['{"in', 'put":"x"}']


async def test_a_native_call_of_an_unknown_tool_is_a_custom_call() -> None:
    played = await play(native(name="other", input="x"), STOP)
    assert (played.output[0]["type"], played.output[0]["name"]) == ("custom_tool_call", "other")


async def test_interleaved_native_and_function_calls_keep_their_own_deltas() -> None:
    function = chunk(tool_calls=[{"index": 1, "id": "call_b", "function": {"name": "look", "arguments": "{}"}}])
    tools = [CUSTOM, {"type": "function", "name": "look"}]
    played = await play(native(name="write", input="a"), function, native(input="b"), STOP, tools=tools)
    assert [(item["type"], item.get("input")) for item in played.output] == [
        ("custom_tool_call", "ab"),
        ("function_call", None),
    ]


async def test_tools_of_a_namespace_get_their_own_names_back() -> None:
    played = await play(*calls(crm__find='{"a":1}', crm__note='{"input":"x"}'), tools=[NAMESPACE])
    assert [(item["type"], item["namespace"], item["name"]) for item in played.output] == [
        ("function_call", "crm", "find"),
        ("custom_tool_call", "crm", "note"),
    ]
    done = next(event for event in played.events if event["type"] == "response.function_call_arguments.done")
    assert done["name"] == "find"


async def test_calls_of_asynchronous_tools_are_marked() -> None:
    tools = [{"type": "function", "name": "look", "async": True}]
    assert (await play(*calls(look="{}"), tools=tools)).output[0]["async"] is True


async def test_shell_commands_are_emitted_one_after_the_other() -> None:
    arguments = shell(commands=["ls", "pwd"], timeout_ms=1000, max_output_length=None)
    played = await play(*pieces("shell", arguments, 5), tools=[SHELL])
    item = played.output[0]
    assert item["action"] == {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": None}
    assert (item["type"], item["environment"], item["id"][:3]) == ("shell_call", {"type": "local"}, "sh_")
    assert played.types[3:9] == [f"shell_call_command.{step}" for step in ("added", "delta", "done")] * 2
    opened = next(event for event in played.events if event["type"] == "response.output_item.added")
    assert opened["item"]["action"]["commands"] == []


CLICK = {"type": "click", "button": "left", "x": 3.0, "y": 4}


@pytest.mark.parametrize(
    ("tool", "called", "arguments", "fields"),
    [
        (
            {"type": "computer"},
            "computer",
            {"actions": [CLICK, {"type": "double_click", "x": 1, "y": 2, "keys": None}, {"type": "wait"}]},
            {
                "type": "computer_call",
                "actions": [
                    {"type": "click", "button": "left", "x": 3, "y": 4},
                    {"type": "double_click", "x": 1, "y": 2, "keys": []},
                    {"type": "wait"},
                ],
                "pending_safety_checks": [],
            },
        ),
        (
            {"type": "computer_use_preview", "display_width": 9, "display_height": 9, "environment": "linux"},
            "computer",
            {"action": {"type": "type", "text": "Hi"}},
            {"type": "computer_call", "action": {"type": "type", "text": "Hi"}, "pending_safety_checks": []},
        ),
        (
            {"type": "local_shell"},
            "local_shell",
            {"command": ["ls", "-l"], "env": None, "working_directory": "/"},
            {
                "type": "local_shell_call",
                "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": "/"},
            },
        ),
        (
            {"type": "apply_patch"},
            "apply_patch",
            {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}},
            {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}},
        ),
        (
            {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
            "tool_search",
            {"goal": None, "words": ["mail"]},
            {"type": "tool_search_call", "execution": "client", "arguments": {"goal": None, "words": ["mail"]}},
        ),
    ],
)
async def test_a_call_becomes_the_item_of_its_tool(
    tool: dict[str, Any], called: str, arguments: dict[str, Any], fields: dict[str, Any]
) -> None:
    played = await play(*pieces(called, orjson.dumps(arguments).decode(), 9), tools=[tool])
    item = played.output[0]
    assert item == {"id": item["id"], "status": "completed", "call_id": "call_a", **fields}
    assert played.types[2:-1] == ["output_item.added", "output_item.done"]


@pytest.mark.parametrize(
    ("tool", "called", "fields"),
    [
        (SHELL, "shell", {"action": {"commands": [], "timeout_ms": None, "max_output_length": None}}),
        ({"type": "computer"}, "computer", {"actions": []}),
        ({"type": "local_shell"}, "local_shell", {"action": {"type": "exec", "command": [], "env": {}}}),
    ],
)
async def test_a_truncated_call_is_listed_without_its_fields(
    tool: dict[str, Any], called: str, fields: dict[str, Any]
) -> None:
    chunks = [*pieces(called, '{"commands":["rm -rf', 4)[:-1], chunk(finish="length")]
    played = await play(*chunks, tools=[tool])
    assert played.output[0].items() >= {"status": "incomplete", **fields}.items()
    assert played.end.ending.status == "incomplete"


async def test_a_truncated_patch_is_omitted_because_patches_have_no_incomplete_status() -> None:
    chunks = [*pieces("apply_patch", '{"operation":{"type":"upd', 4)[:-1], chunk(finish="length")]
    played = await play(*chunks, tools=[{"type": "apply_patch"}])
    assert (played.output, played.end.ending.status) == ([], "incomplete")


async def test_text_around_a_shell_call_keeps_its_position() -> None:
    arguments = {"index": 0, "id": "c", "function": {"name": "shell", "arguments": shell(commands=["ls"])}}
    chunks = [chunk(content="before"), chunk(tool_calls=[arguments]), chunk(content="after"), STOP]
    played = await play(*chunks, tools=[SHELL])
    assert [item["type"] for item in played.output] == ["message", "shell_call", "message"]


@pytest.mark.parametrize("arguments", ["{}", ""])
async def test_a_call_of_an_undeclared_tool_is_not_an_output_item(arguments: str) -> None:
    converter = ChatConverter(first_output_index=0, sampling=Sampling(tools=(FunctionTool(name="look"),)))
    events = [*converter.feed(calls(smell=arguments, look="{}")), *converter.end(done=True)]
    assert [event.item["name"] for event in events if isinstance(event, OutputItemDone)] == ["look"]
    assert [call.name for call in converter.result().calls] == ["smell", "look"]


async def test_hosted_calls_are_not_items_and_do_not_delay_others() -> None:
    converter = ChatConverter(
        first_output_index=0, sampling=Sampling(tools=(FunctionTool(name="ours", form=CallForm.HOSTED),))
    )
    opening, begun, *_ = calls(ours='{"a":')
    rest = chunk(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}])
    events = converter.feed([opening, begun, chunk(content="Meanwhile")])
    assert events[0].type == "response.output_item.added"
    converter.feed([rest, STOP])
    converter.end(done=True)
    result = converter.result()
    assert [item["type"] for item in result.items] == ["message"]
    assert [(call.name, call.arguments) for call in result.calls] == [("ours", '{"a":1}')]


async def test_a_truncated_hosted_call_is_not_run() -> None:
    converter = ChatConverter(
        first_output_index=0, sampling=Sampling(tools=(FunctionTool(name="ours", form=CallForm.HOSTED),))
    )
    converter.feed([*calls(ours='{"a":')[:-2], chunk(finish="length")])
    converter.end(done=True)
    assert converter.result().calls == []

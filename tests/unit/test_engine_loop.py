"""The run loop: order of turns and tool calls, endings, usage and limits."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from conversations.items import AssistantMessage, McpCall
from core.errors import Failure
from engine.calls.outcomes import ToolResult
from engine.state import OutputItem, RunState
from engine.steps import Emitted, RunEnded, Step, ToolFinished, ToolsStarted, TurnEnded
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.runs import Played, begin, context, play
from tests.support.scripted import ScriptedModel, ScriptedTools
from tests.support.streams import assert_well_formed

GONE = Failure(code="server_error", message="The model's server is gone.")


def step_types(steps: Sequence[Step]) -> list[str]:
    """Return the class names of the steps other than `Emitted`."""
    return [type(step).__name__ for step in steps if not isinstance(step, Emitted)]


def item_types(played: Played) -> list[str]:
    """Return the types of the output items."""
    return [item["type"] for item in played.output]


def together(*answers: list[Chunk]) -> list[Chunk]:
    """Return a single turn with all these answers."""
    return [piece for answer in answers for piece in answer if piece["choices"]] + [usage()]


async def test_text_completes_in_one_turn() -> None:
    played = await play(text("Hel", "lo"))
    assert step_types(played.steps) == ["RunEnded"]
    assert (played.end.ending.status, item_types(played)) == ("completed", ["message"])
    assert_well_formed(played.events)


async def test_each_upstream_read_is_emitted_as_its_own_step() -> None:
    played = await play(text("Hel", "lo"))
    emitted = [step for step in played.steps if isinstance(step, Emitted)]
    assert [len(step.events) for step in emitted] == [3, 1, 3]


async def test_a_call_of_a_client_function_ends_the_run() -> None:
    played = await play(calls(get_time='{"zone":"UTC"}'))
    assert step_types(played.steps) == ["RunEnded"]
    assert [(record.call.name, record.kind) for record in played.end.calls] == [("get_time", "function")]
    assert played.end.ending.status == "completed"


async def test_the_next_turn_reads_the_output_of_a_hosted_call() -> None:
    model, tools = ScriptedModel(calls(search='{"q":"x"}'), text("Found")), ScriptedTools(search=["a page"])
    steps = [step async for step in begin(model, tools).steps()]
    assert step_types(steps) == ["TurnEnded", "ToolsStarted", "ToolFinished", "RunEnded"]
    called = model.requests[1].items[-1]
    assert isinstance(called, McpCall)
    assert (called.name, called.arguments, called.output) == ("search", '{"q":"x"}', "a page")


async def test_items_of_two_hosted_calls_keep_the_call_order() -> None:
    tools = ScriptedTools(search=["a page"], read=["its text"])
    played = await play(calls(search="{}", read="{}"), text("Done"), hosted=tools)
    assert [call.name for call in tools.calls] == ["search", "read"]
    assert item_types(played) == ["mcp_call", "mcp_call", "message"]
    assert [item["name"] for item in played.output[:2]] == ["search", "read"]
    assert_numbered(played)


def assert_numbered(played: Played) -> None:
    """Assert that sequence numbers and output indexes are consecutive across turns."""
    assert [event["sequence_number"] for event in played.events] == list(range(len(played.events)))
    added = [event["output_index"] for event in played.events if event["type"] == "response.output_item.added"]
    assert added == list(range(len(played.output)))


async def test_a_tool_runs_only_after_its_turn_has_ended() -> None:
    played = await play(calls(search="{}"), text("Done"), hosted=ScriptedTools(search=["a page"]))
    order = [type(step) for step in played.steps if not isinstance(step, Emitted)]
    assert order == [TurnEnded, ToolsStarted, ToolFinished, RunEnded]


async def test_hosted_calls_of_a_turn_run_before_it_stops_for_client_calls() -> None:
    tools = ScriptedTools(search=["a page"])
    own = {"type": "function", "name": "get_time", "parameters": {}, "strict": False}
    played = await play(calls(search="{}", get_time="{}"), hosted=tools, tools=[own])
    assert step_types(played.steps) == ["TurnEnded", "ToolsStarted", "ToolFinished", "RunEnded"]
    assert (played.end.ending.status, played.end.turn) == ("completed", None)
    turn_ended = next(step for step in played.steps if isinstance(step, TurnEnded))
    assert [(record.call.name, record.kind) for record in turn_ended.calls] == [
        ("search", "scripted"),
        ("get_time", "function"),
    ]


async def test_a_failed_hosted_call_is_reported_to_the_model_and_the_run_continues() -> None:
    failure = ToolResult(output="error: no such page", error="not_found")
    played = await play(calls(search="{}"), text("Sorry"), hosted=ScriptedTools(search=[failure]))
    finished = next(step for step in played.steps if isinstance(step, ToolFinished))
    assert (finished.result.error, played.end.ending.status) == ("not_found", "completed")
    assert played.output[0]["error"]["content"] == "error: no such page"


async def test_text_before_a_hosted_call_is_read_by_the_next_turn() -> None:
    model = ScriptedModel(together(text("Let me look."), calls(search="{}")), text("Found"))
    _ = [step async for step in begin(model, ScriptedTools(search=["a page"])).steps()]
    message = model.requests[1].items[1]
    assert isinstance(message, AssistantMessage)
    assert [part.text for part in message.parts() if part.type == "output_text"] == ["Let me look."]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_a_truncated_answer_ends_incomplete(finish: str, reason: str) -> None:
    played = await play(text("Hel", finish=finish))
    assert (played.end.ending.status, played.end.ending.incomplete_reason) == ("incomplete", reason)
    assert played.output[0]["status"] == "incomplete"
    assert_well_formed(played.events)


async def test_hosted_calls_of_a_truncated_turn_are_not_run() -> None:
    truncated = [*calls(search="{}")[:-2], chunk(finish="length"), usage()]
    played = await play(truncated, hosted=ScriptedTools(search=[]))
    assert played.end.ending.status == "incomplete"


async def test_a_failure_in_the_middle_of_a_turn_keeps_the_partial_text() -> None:
    played = await play([chunk(content="Hel"), GONE])
    assert (played.end.ending.status, played.end.ending.failure) == ("failed", GONE)
    assert played.end.response["error"] == {"code": "server_error", "message": "The model's server is gone."}
    assert played.output[0]["content"][0]["text"] == "Hel"
    assert played.types[-2:] == ["error", "failed"]
    assert_well_formed(played.events)


async def test_a_failure_in_a_later_turn_keeps_the_output_of_earlier_turns() -> None:
    played = await play(calls(search="{}"), [GONE], hosted=ScriptedTools(search=["a page"]))
    assert item_types(played) == ["mcp_call"]
    assert (played.end.ending.status, played.end.usage.output_tokens) == ("failed", 3)


async def test_a_failure_before_the_first_byte_has_no_usage() -> None:
    played = await play([GONE])
    assert (played.end.usage.input_tokens, played.end.usage.output_tokens) == (0, 0)


async def test_usage_is_summed_over_all_turns() -> None:
    first = [*calls(search="{}")[:-1], usage(prompt_tokens=10, completion_tokens=4)]
    second = [*text("Done")[:-1], usage(prompt_tokens=20, completion_tokens=1)]
    played = await play(first, second, hosted=ScriptedTools(search=["a page"]))
    assert (played.end.usage.input_tokens, played.end.usage.output_tokens) == (30, 5)
    assert played.end.response["usage"]["total_tokens"] == 35


async def test_one_estimated_turn_makes_the_sum_an_estimate() -> None:
    played = await play(calls(search="{}"), text("Done")[:-1], hosted=ScriptedTools(search=["a page"]))
    assert played.end.usage.estimated
    assert [played.end.turn and played.end.turn.usage.estimated] == [True]


async def test_later_turns_get_the_remaining_output_tokens() -> None:
    turns = [[*calls(search="{}")[:-1], usage(prompt_tokens=1, completion_tokens=n)] for n in (30, 60)]
    model, tools = ScriptedModel(*turns, text("Done")), ScriptedTools(search=["a", "b"])
    _ = [step async for step in begin(model, tools, max_output_tokens=100).steps()]
    assert [request.sampling.max_output_tokens for request in model.requests] == [100, 70, 10]


async def test_the_run_ends_incomplete_when_no_output_tokens_remain() -> None:
    first = [*calls(search="{}")[:-1], usage(prompt_tokens=1, completion_tokens=100)]
    played = await play(first, hosted=ScriptedTools(search=["a"]), max_output_tokens=100)
    assert (played.end.ending.status, played.end.ending.incomplete_reason) == ("incomplete", "max_output_tokens")
    assert item_types(played) == ["mcp_call"]


async def test_tool_choice_required_applies_to_the_first_turn_only() -> None:
    tool = {"type": "function", "name": "search", "parameters": {}, "strict": False}
    model, tools = ScriptedModel(calls(search="{}"), text("Done")), ScriptedTools(search=["a page"])
    _ = [step async for step in begin(model, tools, tools=[tool], tool_choice="required").steps()]
    assert [request.sampling.tool_choice for request in model.requests] == ["required", "auto"]


async def test_an_endless_tool_loop_is_stopped_by_the_turn_limit() -> None:
    model = ScriptedModel(calls(search="{}"), calls(search="{}"))
    run = begin(model, ScriptedTools(search=["a page"]), given=replace(context(), max_turns=2))
    end = [step async for step in run.steps()][-1]
    assert isinstance(end, RunEnded)
    assert (end.ending.status, end.turn and end.turn.number) == ("failed", 1)


async def test_closing_the_iteration_closes_the_upstream_connection() -> None:
    model = ScriptedModel(text("Hel", "lo"))
    steps = begin(model).steps()
    await anext(steps)
    await steps.aclose()
    assert model.opened[0].is_closed


async def test_a_resumed_run_does_not_repeat_finished_turns() -> None:
    body = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}
    model = ScriptedModel(text("Hi"))
    run = begin(model, state=RunState(turn=1, output=[OutputItem(body=body)]))
    end = [step async for step in run.steps()][-1]
    assert isinstance(end, RunEnded)
    assert (model.requests[0].first_output_index, end.turn and end.turn.number) == (1, 1)

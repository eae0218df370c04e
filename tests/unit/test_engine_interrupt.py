"""Interrupted runs: cancelled, ended by their process, or resumed after it died."""

import pytest

from conversations.items import AssistantMessage
from core.errors import Failure
from engine.events.response_body import Ending, failed
from engine.events.types import Body
from engine.interrupted_items import close_fragment
from engine.loop import Run
from engine.state import Fragment, OutputItem, PendingCall, RunState
from engine.steps import FragmentsClosed, RunEnded
from engine.turn import Call, Finish
from tests.support.chunks import Chunk, calls, chunk, text
from tests.support.runs import begin, events_of, on_the_wire
from tests.support.scripted import ScriptedModel, ScriptedTools

CANCELLED = Ending(status="cancelled")
DEAD = failed(Failure(code="server_error", message="The process died."))
PART: Body = {"type": "output_text", "text": "Hel", "annotations": [], "logprobs": []}
MESSAGE: Body = {"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": [PART]}
CALL: Body = {
    "id": "fc_1",
    "type": "function_call",
    "status": "in_progress",
    "call_id": "c",
    "name": "f",
    "arguments": '{"a',
}
CUSTOM: Body = {
    "id": "ctc_1",
    "type": "custom_tool_call",
    "status": "in_progress",
    "call_id": "c",
    "name": "f",
    "input": "a",
}
SEARCH = Call(item_id="fc_1", call_id="call_search", name="search", arguments="{}")


async def stopped_after(run: Run, steps: int, ending: Ending = CANCELLED) -> RunEnded:
    """Run some steps, then close the iteration and interrupt the run."""
    made = run.steps()
    for _ in range(steps):
        await anext(made)
    await made.aclose()
    return run.interrupt(ending)


async def test_an_interrupted_turn_closes_its_open_item() -> None:
    end = await stopped_after(begin(ScriptedModel(text("Hel", "lo"))), 1)
    assert [event.type for event in end.events] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert end.response["output"][0]["status"] == "incomplete"
    assert end.turn is not None
    assert end.turn.result.finish is Finish.INTERRUPTED


async def test_the_usage_of_an_interrupted_turn_is_estimated() -> None:
    end = await stopped_after(begin(ScriptedModel(text("12345678", "more")), input="1234"), 1)
    assert (end.usage.input_tokens, end.usage.output_tokens, end.usage.estimated) == (1, 2, True)


async def test_a_cancelled_run_ends_without_a_terminal_event() -> None:
    end = await stopped_after(begin(ScriptedModel()), 0)
    assert (end.events, end.response["status"], end.turn) == ([], "cancelled", None)


async def test_a_run_that_failed_on_the_server_ends_with_an_error_event() -> None:
    end = await stopped_after(begin(ScriptedModel(text("Hel", "lo"))), 1, DEAD)
    assert [event.type for event in end.events][-2:] == ["error", "response.failed"]


async def test_a_partially_written_call_is_never_run() -> None:
    whole = {"index": 0, "id": "call_f", "function": {"name": "f", "arguments": '{"a":'}}
    run = begin(ScriptedModel([chunk(tool_calls=[whole]), chunk(content="more")]))
    end = await stopped_after(run, 1)
    assert (end.response["output"][0]["status"], end.calls) == ("incomplete", [])
    assert [item.in_context for item in end.items] == [False]


async def test_an_interrupt_between_turns_closes_nothing() -> None:
    tools = ScriptedTools(search=["a page"])
    run = begin(ScriptedModel(calls(search="{}"), text("never")), tools)
    end = await stopped_after(run, 3)
    assert ([event.type for event in end.events], end.items, end.turn) == ([], [], None)
    assert [item["type"] for item in end.response["output"]] == ["mcp_call"]


async def test_a_running_hosted_call_is_closed_and_reported_as_unfinished() -> None:
    run = begin(ScriptedModel(calls(search="{}")), ScriptedTools(search=["a page"]))
    end = await stopped_after(run, 2)
    assert [event.type for event in end.events] == ["response.mcp_call.failed", "response.output_item.done"]
    (item,) = end.items
    assert (item.body["status"], item.in_context) == ("incomplete", True)
    assert "the outcome of this call is unknown" in item.body["error"]["content"]
    assert [pending.call.name for pending in end.unfinished] == ["search"]


def resumed(state: RunState, *turns: list[Chunk], tools: ScriptedTools | None = None) -> Run:
    """Return a run that another process started."""
    return begin(ScriptedModel(*turns), tools, state=state)


def open_fragment(body: Body, *, index: int = 0, open_part: int | None = None) -> Fragment:
    """Return an item that was open when its process died."""
    return Fragment(output_index=index, body=body, is_open=True, open_part=open_part)


async def test_fragments_are_closed_first_and_are_not_sent_to_the_model() -> None:
    model = ScriptedModel(text("Hello"))
    run = begin(model, state=RunState(fragments=[open_fragment(MESSAGE, open_part=0)]))
    steps = [step async for step in run.steps()]
    assert isinstance(steps[0], FragmentsClosed)
    assert [event["type"] for event in on_the_wire(events_of(steps[:1]))] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert not any(isinstance(item, AssistantMessage) for item in model.requests[0].items)
    assert model.requests[0].first_output_index == 1


async def test_fragments_stay_in_the_output() -> None:
    run = resumed(RunState(fragments=[open_fragment(MESSAGE, open_part=0)]), text("Hello"))
    end = [step async for step in run.steps()][-1]
    assert isinstance(end, RunEnded)
    assert [item["status"] for item in end.response["output"]] == ["incomplete", "completed"]


async def test_a_closed_but_uncommitted_item_needs_no_event() -> None:
    body = {**MESSAGE, "status": "completed"}
    run = resumed(RunState(fragments=[Fragment(output_index=0, body=body, is_open=False)]), text("Hello"))
    first = await anext(run.steps())
    assert first == FragmentsClosed(events=[], items=[OutputItem(body=body, in_context=False)])


@pytest.mark.parametrize("end", ["end_idle", "interrupt"])
async def test_ending_a_resumed_run_closes_its_fragments(end: str) -> None:
    run = resumed(RunState(fragments=[open_fragment(MESSAGE, open_part=0)]))
    ended: RunEnded = getattr(run, end)(DEAD)
    assert [event.type for event in ended.events] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "error",
        "response.failed",
    ]
    assert [item["status"] for item in ended.response["output"]] == ["incomplete"]


@pytest.mark.parametrize(
    ("body", "open_part", "kinds"),
    [
        (MESSAGE, None, ["output_item.done"]),
        (MESSAGE, 0, ["output_text.done", "content_part.done", "output_item.done"]),
        (
            {**MESSAGE, "content": [PART, {"type": "refusal", "refusal": "no"}]},
            1,
            ["refusal.done", "content_part.done", "output_item.done"],
        ),
        (
            {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            0,
            ["reasoning_text.done", "content_part.done", "output_item.done"],
        ),
        (CALL, None, ["function_call_arguments.done", "output_item.done"]),
        (CUSTOM, None, ["custom_tool_call_input.done", "output_item.done"]),
    ],
)
def test_a_fragment_is_closed_by_the_events_of_its_type(body: Body, open_part: int | None, kinds: list[str]) -> None:
    closed, events = close_fragment(open_fragment(body, open_part=open_part))
    assert [event.type.removeprefix("response.") for event in events] == kinds
    assert closed == {**body, "status": "incomplete"}


def test_a_fragment_closes_the_open_part_of_its_summary() -> None:
    body = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    _, events = close_fragment(Fragment(output_index=0, body=body, is_open=True, open_summary=0))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == ["reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"]


async def test_a_pending_call_runs_before_the_next_turn() -> None:
    state = RunState(turn=1, pending=[PendingCall(call=SEARCH, turn=0)])
    tools = ScriptedTools(search=["a page"])
    end = [step async for step in resumed(state, text("Done"), tools=tools).steps()][-1]
    tools.verify()
    assert isinstance(end, RunEnded)
    assert [item["type"] for item in end.response["output"]] == ["mcp_call", "message"]


async def test_an_interrupted_call_is_repeated_only_if_its_tool_is_repeatable() -> None:
    started = [PendingCall(call=SEARCH, turn=0, attempt=1)]
    repeatable, unique = ScriptedTools(search=["a page"]), ScriptedTools(repeatable=False, search=["a page"])
    again = resumed(RunState(turn=1, pending=list(started)), text("Done"), tools=repeatable)
    never = resumed(RunState(turn=1, pending=list(started)), tools=unique)
    assert [step async for step in again.steps()][-1].ending.status == "completed"  # type: ignore[union-attr]
    assert [step async for step in never.steps()][-1].ending.status == "failed"  # type: ignore[union-attr]
    assert (len(repeatable.calls), len(unique.calls)) == (1, 0)

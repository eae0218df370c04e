"""Hosted calls that wait for the decision of a person, because of an unknown outcome or a question of the tool."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from core.clock import now
from engine.calls.outcomes import InputRequired
from engine.calls.waits import PendingDecision, WaitKind
from engine.events.fold import Fold
from engine.events.response_body import Ending
from engine.events.types import Body
from engine.loop import Run
from engine.state import Fragment, PendingCall, RunContext, RunState
from engine.steps import CallsWaiting, FragmentsClosed, RunEnded, RunSuspended, Step, ToolFinished, ToolsStarted
from engine.turn import Call, ToolInput
from tests.support.chunks import calls, text
from tests.support.runs import begin, context, events_of, on_the_wire
from tests.support.scripted import ScriptedModel, ScriptedTools

ITEM: Body = {
    "id": "mcp_1",
    "type": "mcp_call",
    "status": "in_progress",
    "server_label": "scripted",
    "name": "pay",
    "arguments": "{}",
    "approval_request_id": None,
    "output": None,
    "error": None,
}
PAY = Call(item_id="", call_id="call_pay", name="pay", arguments="{}")
UNANSWERED = PendingCall(call=PAY, turn=0, attempt=1, items=({**ITEM, "status": "incomplete"},), repeatable=False)
CANCELLED = Ending(status="cancelled")
QUESTION: Body = {"message": "Which account?"}
StepType = TypeVar("StepType", CallsWaiting, FragmentsClosed, RunEnded, ToolFinished, ToolsStarted)


def waiting(**request: Any) -> RunContext:
    """Return the context of a run that waits an hour for decisions about its calls."""
    return replace(context(**request), call_wait_seconds=3600)


def interrupted(*others: PendingCall, answer: Body | None = None, asked: bool = False) -> RunState:
    """Return the state of a run whose process died during a call. With an answer, a person has decided about it."""
    decision = PendingDecision(id="dec_1", kind=WaitKind.UNKNOWN_OUTCOME, answer=answer)
    unanswered = replace(UNANSWERED, decision=decision) if asked or answer is not None else UNANSWERED
    fragment = Fragment(output_index=0, body=ITEM, is_open=True)
    return RunState(turn=1, pending=[unanswered, *others], fragments=[fragment], hosted_calls=1, has_called_tools=True)


async def steps_of(run: Run) -> list[Step]:
    """Return the steps of a run to its end."""
    return [step async for step in run.steps()]


def only(steps: list[Step], kind: type[StepType]) -> StepType:
    """Return the only step of this type."""
    (found,) = [step for step in steps if isinstance(step, kind)]
    return found


def continued(steps: list[Step]) -> list[Body]:
    """Return the output that a follower sees who has received the open item before."""
    seen = Fold([{"type": "response.output_item.added", "output_index": 0, "item": dict(ITEM)}])
    for event in on_the_wire(events_of(steps)):
        seen.apply(event)
    return seen.output


async def test_a_call_with_an_unknown_outcome_waits_with_its_item_open() -> None:
    tools, state, began = ScriptedTools(repeatable=False, pay=[]), interrupted(), now()
    run = begin(ScriptedModel(), tools, state=state, given=waiting())
    steps = await steps_of(run)
    assert isinstance(steps[-1], RunSuspended)
    (asked,) = only(steps, CallsWaiting).calls
    assert asked.decision is not None
    assert asked.decision.kind == WaitKind.UNKNOWN_OUTCOME
    assert asked.decision.expires_at is not None
    assert timedelta(0) <= asked.decision.expires_at - began - timedelta(hours=1) < timedelta(minutes=1)
    assert (asked.items[0]["id"], asked.items[0]["status"]) == ("mcp_1", "incomplete")
    assert events_of(steps) == []
    assert run.is_idle
    tools.verify()


async def test_other_calls_of_the_turn_are_made_before_the_run_waits() -> None:
    tools = ScriptedTools(repeatable=False, pay=[], search=["a page"])
    search = PendingCall(call=Call(item_id="", call_id="call_search", name="search", arguments="{}"), turn=0)
    state = interrupted(search)
    steps = await steps_of(begin(ScriptedModel(), tools, state=state, given=waiting()))
    kinds = [type(step).__name__ for step in steps]
    assert kinds == ["CallsWaiting", "ToolsStarted", "ToolsReturned", "RunSuspended"]
    assert [pending.result and pending.result.output for pending in state.pending] == [None, "a page"]
    tools.verify()


async def test_a_run_that_cannot_wait_fails() -> None:
    tools = ScriptedTools(repeatable=False, pay=[])
    steps = await steps_of(begin(ScriptedModel(), tools, state=interrupted(), given=context()))
    end = only(steps, RunEnded)
    assert end.ending.status == "failed"
    assert [item["status"] for item in end.response["output"]] == ["incomplete"]


async def test_a_call_that_may_be_repeated_does_not_wait() -> None:
    tools, state = ScriptedTools(pay=["paid"]), interrupted()
    state.pending = [replace(UNANSWERED, repeatable=True)]
    steps = await steps_of(begin(ScriptedModel(text("Done")), tools, state=state, given=waiting()))
    assert only(steps, FragmentsClosed).items
    assert only(steps, RunEnded).ending.status == "completed"
    tools.verify()


async def test_a_call_of_a_tool_that_is_gone_fails_the_run() -> None:
    tools = ScriptedTools(repeatable=False, other=[])
    steps = await steps_of(begin(ScriptedModel(), tools, state=interrupted(), given=waiting()))
    assert only(steps, RunEnded).ending.status == "failed"
    assert not any(isinstance(step, CallsWaiting) for step in steps)


@pytest.mark.parametrize(
    ("answer", "status", "shown"),
    [
        ({"outcome": "done", "result": "receipt 7"}, "completed", "receipt 7"),
        ({"outcome": "done"}, "completed", "The call took effect"),
        ({"outcome": "not_done", "reason": "No receipt."}, "failed", "did not take effect: No receipt."),
    ],
)
async def test_a_decision_gives_the_call_its_result(answer: Body, status: str, shown: str) -> None:
    tools, model = ScriptedTools(repeatable=False, pay=[]), ScriptedModel(text("Done"))
    steps = await steps_of(begin(model, tools, state=interrupted(answer=answer), given=waiting()))
    (item, message) = continued(steps)
    assert (item["id"], item["status"], message["type"]) == ("mcp_1", status, "message")
    assert shown in (item["output"] or item["error"]["content"])
    (request,) = model.requests
    assert shown in str(request.items[-1].wire())
    assert only(steps, RunEnded).response["output"][0]["id"] == "mcp_1"
    tools.verify()


async def test_a_call_that_is_to_be_repeated_is_sent_again_with_its_effect_id() -> None:
    tools = ScriptedTools(repeatable=False, pay=["paid", "paid"])
    first = begin(ScriptedModel(calls(pay="{}"), text("Done")), tools, given=waiting())
    await steps_of(first)
    state = interrupted(answer={"outcome": "repeat"})
    given = replace(waiting(), parameters=first._context.parameters)
    state.pending = [replace(state.pending[0], call=replace(PAY, call_id=tools.calls[0].call_id))]
    steps = await steps_of(begin(ScriptedModel(text("Done")), tools, state=state, given=given))
    assert tools.calls[0].effect_id == tools.calls[1].effect_id
    assert [pending.attempt for pending in only(steps, ToolsStarted).calls] == [2]
    (item, _) = continued(steps)
    assert (item["id"], item["output"]) == ("mcp_1", "paid")
    tools.verify()


async def test_a_call_that_is_interrupted_again_waits_again() -> None:
    tools, state = ScriptedTools(repeatable=False, pay=[]), interrupted()
    state.pending = [replace(UNANSWERED, attempt=2)]
    steps = await steps_of(begin(ScriptedModel(), tools, state=state, given=waiting()))
    (asked,) = only(steps, CallsWaiting).calls
    assert asked.attempt == 2


async def test_a_run_that_was_interrupted_while_it_waits_does_not_ask_again() -> None:
    tools = ScriptedTools(repeatable=False, pay=[])
    steps = await steps_of(begin(ScriptedModel(), tools, state=interrupted(asked=True), given=waiting()))
    assert [type(step) for step in steps] == [RunSuspended]


async def test_cancelling_a_waiting_run_closes_the_item_of_its_call() -> None:
    tools = ScriptedTools(repeatable=False, pay=[])
    run = begin(ScriptedModel(), tools, state=interrupted(), given=waiting())
    steps = await steps_of(run)
    end = run.interrupt(CANCELLED)
    (item,) = continued([*steps, end])
    assert (item["id"], item["status"]) == ("mcp_1", "incomplete")
    assert [call.outcome and call.outcome.error for call in end.unfinished] == ["outcome_unknown"]


# -- questions ---------------------------------------------------------------------------------------------------------


async def test_a_tool_that_asks_a_question_lets_the_run_wait() -> None:
    tools = ScriptedTools(pay=[InputRequired(QUESTION)], search=["a page"])
    model = ScriptedModel(calls(pay="{}", search="{}"))
    steps = await steps_of(begin(model, tools, given=waiting()))
    assert isinstance(steps[-1], RunSuspended)
    (asked,) = only(steps, CallsWaiting).calls
    assert asked.decision is not None
    assert (asked.decision.kind, asked.decision.question) == (WaitKind.QUESTION, QUESTION)
    assert asked.items[0]["error"]["content"].startswith("error: the tool has asked a question that was not answered")
    tools.verify()


async def test_the_call_is_sent_again_with_the_answer() -> None:
    tools, state = ScriptedTools(pay=["paid"]), interrupted()
    answered = PendingDecision(id="dec_1", kind=WaitKind.QUESTION, question=QUESTION, answer={"account": "4711"})
    state.pending = [replace(UNANSWERED, repeatable=True, decision=answered)]
    steps = await steps_of(begin(ScriptedModel(text("Done")), tools, state=state, given=waiting()))
    (call,) = tools.calls
    assert call.input == ToolInput(question=QUESTION, answer={"account": "4711"})
    (item, _) = continued(steps)
    assert (item["id"], item["output"]) == ("mcp_1", "paid")
    tools.verify()


async def test_a_tool_that_asks_twice_lets_the_run_wait_twice() -> None:
    tools, state = ScriptedTools(pay=[InputRequired({"message": "Which day?"})]), interrupted()
    answered = PendingDecision(id="dec_1", kind=WaitKind.QUESTION, question=QUESTION, answer={"account": "4711"})
    state.pending = [replace(UNANSWERED, repeatable=True, decision=answered)]
    steps = await steps_of(begin(ScriptedModel(), tools, state=state, given=waiting()))
    assert isinstance(steps[-1], RunSuspended)
    (asked,) = only(steps, CallsWaiting).calls
    assert asked.decision is not None
    assert (asked.attempt, asked.decision.question) == (2, {"message": "Which day?"})
    tools.verify()


async def test_a_question_fails_the_call_of_a_run_that_cannot_wait() -> None:
    tools = ScriptedTools(pay=[InputRequired(QUESTION)])
    steps = await steps_of(begin(ScriptedModel(calls(pay="{}"), text("Done")), tools, given=context()))
    assert only(steps, ToolFinished).result.error == "input_required"
    assert only(steps, RunEnded).ending.status == "completed"

"""Hosted calls: concurrency, item order, limits, approvals and preparation."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from typing_extensions import override

from conversations.items import FunctionCall, FunctionCallOutput, InputMessage
from core.errors import Failure
from engine.calls.outcomes import CallDecision, Execute, Refuse, RequireApproval, ToolLimits, ToolResult
from engine.events.response_body import Ending
from engine.events.types import Body, OutputItemAdded, OutputItemDone
from engine.state import OutputItem, RunContext, RunState
from engine.steps import (
    CallRecord,
    Emitted,
    RunEnded,
    RunSuspended,
    Step,
    ToolFinished,
    ToolsPrepared,
    ToolsReturned,
    ToolsStarted,
    TurnEnded,
)
from engine.turn import Call, CallForm, FunctionTool
from tests.support.chunks import calls, text
from tests.support.runs import begin, context, play
from tests.support.scripted import HostedTools, ScriptedModel, ScriptedTools
from tests.support.streams import assert_well_formed

CLIENTS = {"type": "function", "name": "get_time", "parameters": {}, "strict": False}
CANCELLED = Ending(status="cancelled")
APPROVAL = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "s", "name": "search", "arguments": "{}"}


class GatedTools(HostedTools):
    """Tools whose calls wait until the test releases them. `events` records starts and ends in order."""

    def __init__(self, *names: str, concurrency: int = 4) -> None:
        self.concurrency = concurrency
        self.doors = {name: asyncio.Event() for name in names}
        self.events: list[str] = []

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self.doors)

    @override
    async def call(self, call: Call) -> ToolResult:
        """Wait, then return the name of the tool."""
        self.events.append(f"{call.name} began")
        await self.doors[call.name].wait()
        self.events.append(f"{call.name} ended")
        return ToolResult(output=call.name)

    def open(self, name: str) -> None:
        """Release the calls of a tool."""
        self.doors[name].set()


async def next_step(run: AsyncGenerator[Step, None], *, until: type[Step]) -> Step:
    """Return the next step of this type."""
    async for step in run:
        if isinstance(step, until):
            return step
    pytest.fail("the run ended before that step")


class MeetingTools(GatedTools):
    """Tools whose calls wait for each other."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.barrier = asyncio.Barrier(len(names))

    @override
    async def call(self, call: Call) -> ToolResult:
        await self.barrier.wait()
        return ToolResult(output=call.name)


async def test_calls_of_one_turn_run_concurrently() -> None:
    played = await play(calls(a="{}", b="{}"), text("Done"), hosted=MeetingTools("a", "b"))
    assert [item.get("output") for item in played.output] == ["a", "b", None]


async def test_the_number_of_concurrent_calls_is_limited() -> None:
    tools = GatedTools("a", "b", concurrency=1)
    tools.open("a")
    tools.open("b")
    run = begin(ScriptedModel(calls(a="{}", b="{}"), text("Done")), tools)
    started = [step async for step in run.steps() if isinstance(step, ToolsStarted)]
    assert tools.events == ["a began", "a ended", "b began", "b ended"]
    assert [[pending.call.name for pending in step.calls] for step in started] == [["a"], ["b"]]


async def test_a_result_is_stored_before_the_next_call_starts() -> None:
    tools = ScriptedTools(search=["a page"], read=["its text"])
    tools.concurrency = 1
    played = await play(calls(search="{}", read="{}"), text("Done"), hosted=tools)
    kinds = [type(step).__name__ for step in played.steps if not isinstance(step, Emitted)]
    assert kinds == ["TurnEnded", *["ToolsStarted", "ToolFinished"] * 2, "RunEnded"]
    assert_well_formed(played.events)


async def test_a_call_starts_only_after_its_start_was_recorded() -> None:
    tools = GatedTools("a", "b")
    run = begin(ScriptedModel(calls(a="{}", b="{}"), text("Done")), tools).steps()
    step = await next_step(run, until=ToolsStarted)
    assert isinstance(step, ToolsStarted)
    assert ([pending.call.name for pending in step.calls], tools.events) == (["a", "b"], [])
    await run.aclose()


async def test_an_early_result_is_stored_immediately_and_its_item_waits() -> None:
    tools = GatedTools("a", "b")
    run = begin(ScriptedModel(calls(a="{}", b="{}"), text("Done")), tools).steps()
    tools.open("b")
    returned = await next_step(run, until=ToolsReturned)
    assert isinstance(returned, ToolsReturned)
    assert [(p.call.name, p.result and p.result.output) for p in returned.calls] == [("b", "b")]
    tools.open("a")
    rest = [step async for step in run]
    finished = [step.items[0].body["name"] for step in rest if isinstance(step, ToolFinished)]
    assert finished == ["a", "b"]


async def test_items_of_concurrent_calls_do_not_interleave() -> None:
    tools = ScriptedTools(search=["a page"], read=["its text"])
    played = await play(calls(search="{}", read="{}"), text("Done"), hosted=tools)
    assert_well_formed(played.events)


async def test_invalid_json_arguments_are_reported_to_the_model_without_running_the_tool() -> None:
    tools = ScriptedTools(search=[])
    played = await play(calls(search="{oops"), text("Sorry"), hosted=tools)
    finished = next(step for step in played.steps if isinstance(step, ToolFinished))
    assert (finished.result.error, tools.calls, played.end.ending.status) == ("invalid_arguments", [], "completed")
    assert played.output[0]["status"] == "failed"


class LimitedTools(GatedTools):
    """Tools with a limit of 10 ms and four characters."""

    @override
    def limits(self) -> ToolLimits:
        return ToolLimits(seconds=0.01, characters=4)


async def test_a_timeout_of_a_tool_is_reported_to_the_model() -> None:
    played = await played_with(LimitedTools("slow"), slow="{}")
    assert played.output[0]["error"]["content"] == "error: the tool did not answer within 0.01 seconds"
    assert played.end.ending.status == "completed"


async def test_a_long_output_is_truncated_with_a_note() -> None:
    tools = LimitedTools("talkative")
    tools.open("talkative")
    played = await played_with(tools, talkative="{}")
    assert played.output[0]["output"].startswith("talk\n[The output of the tool is too long")


async def played_with(tools: HostedTools, **functions: str) -> Any:
    """Play a run that makes these calls and then answers."""
    return await play(calls(**functions), text("Done"), hosted=tools)


async def test_images_of_a_tool_are_sent_to_the_model_but_are_not_output_items() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    tools = ScriptedTools(look=[ToolResult(output="see the image", parts=(image,))])
    model = ScriptedModel(calls(look="{}"), text("A cat"))
    end = [step async for step in begin(model, tools).steps()][-1]
    assert isinstance(end, RunEnded)
    assert [item["type"] for item in end.response["output"]] == ["mcp_call", "message"]
    assert isinstance(model.requests[1].items[-1], InputMessage)


@pytest.mark.parametrize(("limit", "run"), [(None, 2), (1, 1), (5, 2)])
async def test_max_tool_calls_counts_hosted_calls_and_the_model_still_answers(limit: int | None, run: int) -> None:
    tools = ScriptedTools(search=["a page"], read=["its text"][: run - 1])
    played = await play(calls(search="{}", read="{}"), text("Done"), hosted=tools, max_tool_calls=limit)
    assert [item["type"] for item in played.output] == ["mcp_call"] * run + ["message"]
    assert played.end.ending.status == "completed"


async def test_a_call_beyond_the_limit_is_refused_without_an_output_item() -> None:
    model = ScriptedModel(calls(search="{}"), calls(search="{}"), text("Done"))
    _ = [step async for step in begin(model, ScriptedTools(search=["a page"]), max_tool_calls=1).steps()]
    called, answered = model.requests[2].items[-2:]
    assert isinstance(called, FunctionCall)
    assert isinstance(answered, FunctionCallOutput)
    assert "limit of 1 tool calls" in str(answered.output)


class DecidingTools(ScriptedTools):
    """Tools that return a given decision for calls of `search`."""

    def __init__(self, decision: CallDecision, **results: list[str | ToolResult]) -> None:
        super().__init__(repeatable=True, **results)
        self._decision = decision

    @override
    def decide(self, call: Call) -> CallDecision:
        return self._decision if call.name == "search" else Execute()


async def test_a_call_that_needs_approval_ends_the_run_with_a_request() -> None:
    played = await play(
        calls(search="{}"), hosted=DecidingTools(RequireApproval(APPROVAL, definition="digest"), search=[])
    )
    assert (played.output, played.end.ending.status) == ([APPROVAL], "completed")
    assert_well_formed(played.events)


async def test_other_calls_run_before_the_run_ends_for_an_approval() -> None:
    tools = DecidingTools(RequireApproval(APPROVAL, definition="digest"), search=[], read=["its text"])
    played = await play(calls(search="{}", read="{}"), hosted=tools)
    assert [item["type"] for item in played.output] == ["mcp_approval_request", "mcp_call"]
    turn = next(step for step in played.steps if isinstance(step, TurnEnded))
    assert [(record.call.name, record.state) for record in turn.calls] == [("read", "pending"), ("search", "asked")]


async def test_a_refused_call_gets_an_output_and_the_run_continues() -> None:
    tools = DecidingTools(Refuse("no"), search=[])
    played = await play(calls(search="{}"), text("Done"), hosted=tools)
    assert [item["type"] for item in played.output] == ["message"]


async def test_an_approval_request_and_a_client_call_end_the_run_together() -> None:
    tools = DecidingTools(RequireApproval(APPROVAL, definition="digest"), search=[])
    played = await play(calls(search="{}", get_time="{}"), hosted=tools, tools=[CLIENTS])
    assert [item["type"] for item in played.output] == ["function_call", "mcp_approval_request"]
    assert played.end.ending.status == "completed"


def waiting(**request: Any) -> RunContext:
    """Return the context of a run that waits an hour for decisions."""
    return replace(context(**request), decision_seconds=3600)


async def test_a_run_that_may_wait_is_suspended_after_its_other_calls() -> None:
    tools = DecidingTools(RequireApproval(APPROVAL, definition="digest"), search=[], read=["its text"])
    run = begin(ScriptedModel(calls(search="{}", read="{}")), tools, given=waiting())
    steps = [step async for step in run.steps()]
    assert isinstance(steps[-1], RunSuspended)
    assert [item["type"] for step in steps for item in bodies_of(step)] == ["mcp_approval_request", "mcp_call"]
    turn = next(step for step in steps if isinstance(step, TurnEnded))
    (asked,) = (record for record in turn.calls if record.state == "asked")
    assert asked.expires_at == turn.turn.ended_at + timedelta(hours=1)
    assert run.is_idle
    tools.verify()


async def test_a_run_that_may_wait_ends_for_calls_of_client_tools() -> None:
    tools = DecidingTools(RequireApproval(APPROVAL, definition="digest"), search=[])
    run = begin(ScriptedModel(calls(search="{}", get_time="{}")), tools, given=waiting(tools=[CLIENTS]))
    steps = [step async for step in run.steps()]
    end = steps[-1]
    assert isinstance(end, RunEnded)
    assert end.ending.status == "completed"
    turn = next(step for step in steps if isinstance(step, TurnEnded))
    assert [record.expires_at for record in turn.calls] == [None, None]


def bodies_of(step: Step) -> list[Body]:
    """Return the items of a step."""
    return [item.body for item in getattr(step, "items", ())]


class PreparedTools(ScriptedTools):
    """Tools that prepare a tool list and an approved call."""

    LIST: Body = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "s", "tools": [], "error": None}

    @override
    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        index = state.next_output_index
        yield Emitted([OutputItemAdded(output_index=index, item=self.LIST)])
        call = Call(item_id="", call_id="call_search", name="search", arguments="{}")
        yield ToolsPrepared(
            events=[OutputItemDone(output_index=index, item=self.LIST)],
            items=[OutputItem(body=self.LIST)],
            calls=[CallRecord(call=call, turn=0, kind="scripted", state="pending")],
        )


async def test_prepared_items_come_first_and_approved_calls_run_before_the_first_turn() -> None:
    model, tools = ScriptedModel(text("Done")), PreparedTools(search=["a page"])
    end = [step async for step in begin(model, tools).steps()][-1]
    assert isinstance(end, RunEnded)
    assert [item["type"] for item in end.response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert len(model.requests) == 1


async def test_an_interrupted_tool_list_is_closed_as_failed() -> None:
    run = begin(ScriptedModel(), PreparedTools(search=[]))
    steps = run.steps()
    await anext(steps)
    await steps.aclose()
    end = run.interrupt(CANCELLED)
    assert [event.type for event in end.events] == ["response.mcp_list_tools.failed", "response.output_item.done"]
    assert "status" not in end.response["output"][0]


class BrokenTools(ScriptedTools):
    """Tools whose preparation fails."""

    @override
    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        yield ToolsPrepared(events=[], failure=Failure(code="server_error", message="no entry", status=401))


async def test_a_failure_of_the_preparation_ends_the_run_before_its_first_turn() -> None:
    played = await play(hosted=BrokenTools())
    assert (played.end.ending.status, played.end.ending.error) == (
        "failed",
        {"code": "server_error", "message": "no entry"},
    )


class GrowingTools(ScriptedTools):
    """Tools that offer a second function after the first call."""

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return super().functions()[: len(self.calls) + 1]


async def test_offered_tools_are_read_again_before_every_turn() -> None:
    tools = GrowingTools(find=["read"], read=["its text"])
    model = ScriptedModel(calls(find="{}"), calls(read="{}"), text("Done"))
    _ = [step async for step in begin(model, tools).steps()]
    offered = [[tool.name for tool in request.sampling.tools] for request in model.requests]
    assert offered == [["find"], ["find", "read"], ["find", "read"]]

"""Hosted calls: several at a time, their items one after the other, nothing made twice, and nothing without leave."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from typing_extensions import override

from conversations.items import FunctionCall, FunctionCallOutput, InputMessage
from kernel.errors import Failure
from responses.engine.calls.outcomes import CallDecision, Execute, Refuse, RequireApproval, ToolLimits, ToolResult
from responses.engine.events.response_body import Ending
from responses.engine.events.types import Body, OutputItemAdded, OutputItemDone
from responses.engine.state import OutputItem, RunContext, RunState
from responses.engine.steps import (
    CallRecord,
    Emitted,
    RunEnded,
    Step,
    ToolFinished,
    ToolsPrepared,
    ToolsReturned,
    ToolsStarted,
    TurnEnded,
)
from responses.engine.turn import Call, CallForm, FunctionTool
from tests.support.chunks import calls, text
from tests.support.runs import begin, play
from tests.support.scripted import HostedTools, ScriptedModel, ScriptedTools
from tests.support.streams import assert_well_formed

CLIENTS = {"type": "function", "name": "get_time", "parameters": {}, "strict": False}
CANCELLED = Ending(status="cancelled")
APPROVAL = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "s", "name": "search", "arguments": "{}"}


class GatedTools(HostedTools):
    """Each call waits until the test lets it go; `events` tell what happened in which order."""

    def __init__(self, *names: str, concurrency: int = 4) -> None:
        self.concurrency = concurrency
        self.doors = {name: asyncio.Event() for name in names}
        self.events: list[str] = []

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in self.doors)

    @override
    async def call(self, call: Call) -> ToolResult:
        """Wait, then answer with the own name."""
        self.events.append(f"{call.name} began")
        await self.doors[call.name].wait()
        self.events.append(f"{call.name} ended")
        return ToolResult(output=call.name)

    def open(self, name: str) -> None:
        """Let the call go."""
        self.doors[name].set()


async def made(run: AsyncGenerator[Step, None], *, until: type[Step]) -> Step:
    """The next step of this kind."""
    async for step in run:
        if isinstance(step, until):
            return step
    pytest.fail("the run ended before that step")


class MeetingTools(GatedTools):
    """Each call waits for another one."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.barrier = asyncio.Barrier(len(names))

    @override
    async def call(self, call: Call) -> ToolResult:
        await self.barrier.wait()
        return ToolResult(output=call.name)


async def test_calls_of_one_turn_run_at_the_same_time() -> None:
    played = await play(calls(a="{}", b="{}"), text("Done"), hosted=MeetingTools("a", "b"))
    assert [item.get("output") for item in played.output] == ["a", "b", None]


async def test_no_more_calls_run_at_once_than_are_allowed() -> None:
    tools = GatedTools("a", "b", concurrency=1)
    tools.open("a")
    tools.open("b")
    run = begin(ScriptedModel(calls(a="{}", b="{}"), text("Done")), tools)
    started = [step async for step in run.steps() if isinstance(step, ToolsStarted)]
    assert tools.events == ["a began", "a ended", "b began", "b ended"]
    assert [[pending.call.name for pending in step.calls] for step in started] == [["a"], ["b"]]


async def test_a_result_is_kept_before_the_next_call_begins() -> None:
    tools = ScriptedTools(search=["a page"], read=["its text"])
    tools.concurrency = 1
    played = await play(calls(search="{}", read="{}"), text("Done"), hosted=tools)
    kinds = [type(step).__name__ for step in played.steps if not isinstance(step, Emitted)]
    assert kinds == ["TurnEnded", *["ToolsStarted", "ToolFinished"] * 2, "RunEnded"]
    assert_well_formed(played.events)


async def test_a_call_begins_only_after_that_was_told() -> None:
    tools = GatedTools("a", "b")
    run = begin(ScriptedModel(calls(a="{}", b="{}"), text("Done")), tools).steps()
    step = await made(run, until=ToolsStarted)
    assert isinstance(step, ToolsStarted)
    assert ([pending.call.name for pending in step.calls], tools.events) == (["a", "b"], [])
    await run.aclose()


async def test_a_result_that_comes_early_is_kept_at_once_and_its_item_waits() -> None:
    tools = GatedTools("a", "b")
    run = begin(ScriptedModel(calls(a="{}", b="{}"), text("Done")), tools).steps()
    tools.open("b")
    returned = await made(run, until=ToolsReturned)
    assert isinstance(returned, ToolsReturned)
    assert [(p.call.name, p.result and p.result.output) for p in returned.calls] == [("b", "b")]
    tools.open("a")
    rest = [step async for step in run]
    finished = [step.items[0].body["name"] for step in rest if isinstance(step, ToolFinished)]
    assert finished == ["a", "b"]


async def test_items_of_calls_at_the_same_time_do_not_interleave() -> None:
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
    """Calls may take no time at all, and say four characters."""

    @override
    def limits(self, name: str) -> ToolLimits:
        return ToolLimits(seconds=0.01, characters=4)


async def test_a_tool_that_does_not_answer_is_a_result_that_the_model_reads() -> None:
    played = await played_with(LimitedTools("slow"), slow="{}")
    assert played.output[0]["error"]["content"] == "error: the tool did not answer within 0.01 seconds"
    assert played.end.ending.status == "completed"


async def test_an_output_that_is_too_long_is_cut_with_a_sentence() -> None:
    tools = LimitedTools("talkative")
    tools.open("talkative")
    played = await played_with(tools, talkative="{}")
    assert played.output[0]["output"].startswith("talk\n[The output of the tool is too long")


async def played_with(tools: HostedTools, **functions: str) -> Any:
    """A run that makes these calls and ends with a word."""
    return await play(calls(**functions), text("Done"), hosted=tools)


async def test_a_tools_images_are_read_behind_its_output_and_are_no_item() -> None:
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


async def test_a_call_beyond_the_limit_is_answered_for_the_model_alone() -> None:
    model = ScriptedModel(calls(search="{}"), calls(search="{}"), text("Done"))
    _ = [step async for step in begin(model, ScriptedTools(search=["a page"]), max_tool_calls=1).steps()]
    called, answered = model.requests[2].items[-2:]
    assert isinstance(called, FunctionCall)
    assert isinstance(answered, FunctionCallOutput)
    assert "limit of 1 tool calls" in str(answered.output)


class ChoosyTools(ScriptedTools):
    """Says itself what becomes of calls."""

    def __init__(self, admission: CallDecision, **results: list[str | ToolResult]) -> None:
        super().__init__(repeatable=True, **results)
        self._admission = admission

    @override
    def decide(self, call: Call) -> CallDecision:
        return self._admission if call.name == "search" else Execute()


async def test_a_call_that_needs_approval_is_asked_for_and_ends_the_run() -> None:
    played = await play(
        calls(search="{}"), hosted=ChoosyTools(RequireApproval(APPROVAL, definition="as it is"), search=[])
    )
    assert (played.output, played.end.ending.status) == ([APPROVAL], "completed")
    assert_well_formed(played.events)


async def test_others_of_the_turn_are_made_before_the_run_waits_for_approval() -> None:
    tools = ChoosyTools(RequireApproval(APPROVAL, definition="as it is"), search=[], read=["its text"])
    played = await play(calls(search="{}", read="{}"), hosted=tools)
    assert [item["type"] for item in played.output] == ["mcp_approval_request", "mcp_call"]
    turn = next(step for step in played.steps if isinstance(step, TurnEnded))
    assert [(record.call.name, record.state) for record in turn.calls] == [("read", "pending"), ("search", "asked")]


async def test_a_call_that_a_tool_refuses_is_answered_and_the_model_goes_on() -> None:
    tools = ChoosyTools(Refuse("no"), search=[])
    played = await play(calls(search="{}"), text("Done"), hosted=tools)
    assert [item["type"] for item in played.output] == ["message"]


async def test_an_approval_request_and_a_client_call_end_the_run_together() -> None:
    tools = ChoosyTools(RequireApproval(APPROVAL, definition="as it is"), search=[])
    played = await play(calls(search="{}", get_time="{}"), hosted=tools, tools=[CLIENTS])
    assert [item["type"] for item in played.output] == ["function_call", "mcp_approval_request"]
    assert played.end.ending.status == "completed"


class PreparedTools(ScriptedTools):
    """A list stands first, and a call that was approved of is made before the first turn."""

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


async def test_what_tools_prepare_stands_first_and_approved_calls_run_before_the_first_turn() -> None:
    model, tools = ScriptedModel(text("Done")), PreparedTools(search=["a page"])
    end = [step async for step in begin(model, tools).steps()][-1]
    assert isinstance(end, RunEnded)
    assert [item["type"] for item in end.response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert len(model.requests) == 1


async def test_a_list_that_was_under_way_is_closed_as_failed() -> None:
    run = begin(ScriptedModel(), PreparedTools(search=[]))
    steps = run.steps()
    await anext(steps)
    await steps.aclose()
    end = run.interrupt(CANCELLED)
    assert [event.type for event in end.events] == ["response.mcp_list_tools.failed", "response.output_item.done"]
    assert "status" not in end.response["output"][0]


class BrokenTools(ScriptedTools):
    """Cannot be prepared."""

    @override
    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        yield ToolsPrepared(events=[], failure=Failure(code="server_error", message="no entry", status=401))


async def test_a_run_whose_tools_say_so_ends_before_its_first_turn() -> None:
    played = await play(hosted=BrokenTools())
    assert (played.end.ending.status, played.end.ending.error) == (
        "failed",
        {"code": "server_error", "message": "no entry"},
    )


class GrowingTools(ScriptedTools):
    """Another tool is there once the first one was called."""

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return super().functions()[: len(self.calls) + 1]


async def test_tools_are_asked_before_every_turn_what_they_offer() -> None:
    tools = GrowingTools(find=["read"], read=["its text"])
    model = ScriptedModel(calls(find="{}"), calls(read="{}"), text("Done"))
    _ = [step async for step in begin(model, tools).steps()]
    offered = [[tool.name for tool in request.sampling.tools] for request in model.requests]
    assert offered == [["find"], ["find", "read"], ["find", "read"]]

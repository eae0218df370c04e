"""A run is interrupted after every single step and resumed from the database; the result is the same.

The deltas before the interruption were either stored or lost with the process. If they were stored, the log has
fragments, which the resumed run closes.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from conversations.items import StoredItem
from conversations.models import Placement, Section
from core.db.db_threads import in_db_thread
from engine.calls.outcomes import ToolResult
from engine.events.fold import Fold
from engine.loop import Run
from engine.steps import RunEnded, Step, ToolsReturned, ToolsStarted, TurnDiscarded, TurnEnded
from engine.turn import Call, CallForm, FunctionTool
from providers.chat_messages import messages
from responses.lifecycle import resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response, ToolCall
from responses.runs.event_log import FLUSH_BYTES
from responses.runs.recorder import Recorder
from responses.runs.runner import AssembledRun
from tenants import scope
from tests.support.api import Caller
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.runs import play, without_ids
from tests.support.scripted import HostedTools, ScriptedModel, ScriptedTools, toolbox
from tests.support.stored_runs import Begun, abegin, body_of, everything_written, log_of
from tests.support.streams import assert_well_formed

OUTPUTS = {"call_search": "a page", "call_read": "its text", "call_more": "another page"}
PADDING = {"stored": "x" * FLUSH_BYTES, "lost": ""}
"""A delta that is longer than the recorder buffers is stored at once."""


def turns(padding: str) -> list[list[Chunk]]:
    """Return three turns with reasoning, text, parallel hosted calls, text with a call, and text."""
    argument = f'{{"q":"{padding}"}}'
    return [
        [
            chunk(reasoning="hm" + padding),
            chunk(content="Let me look." + padding),
            hosted(0, "search", argument),
            hosted(1, "read", "{}"),
            chunk(finish="tool_calls"),
            usage(prompt_tokens=10, completion_tokens=5),
        ],
        [
            chunk(content="And more." + padding),
            chunk(content="Still more." + padding),
            hosted(0, "more", argument),
            chunk(finish="tool_calls"),
            usage(prompt_tokens=20, completion_tokens=6),
        ],
        [chunk(content="Found" + padding), chunk(content=" it."), chunk(finish="stop"), usage(prompt_tokens=30)],
    ]


def hosted(index: int, name: str, arguments: str) -> Chunk:
    """Return a complete call of a hosted tool."""
    return chunk(
        tool_calls=[{"index": index, "id": f"call_{name}", "function": {"name": name, "arguments": arguments}}]
    )


@dataclass
class RecordingTools(HostedTools):
    """Hosted tools that may be repeated. Records every call over all processes."""

    made: list[str] = field(default_factory=list)

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(FunctionTool(name=name, form=CallForm.HOSTED) for name in ("search", "read", "more"))

    @override
    async def call(self, call: Call) -> ToolResult:
        """Return the same output for the same call."""
        self.made.append(call.call_id)
        return ToolResult(output=OUTPUTS[call.call_id])


@dataclass
class Execution:
    """All processes that execute one response, one after the other."""

    begun: Begun
    script: list[list[Chunk]]
    tools: RecordingTools = field(default_factory=RecordingTools)
    reads: dict[int, Sequence[StoredItem]] = field(default_factory=dict)
    """What the model read in each turn, the last time that the turn was sampled."""

    async def first(self, steps: int, *, unrecorded: bool = False) -> bool:
        """Execute this many steps in the process that created the response. Return whether the run has ended."""
        model = ScriptedModel(*self.script)
        return await self._live(self.begun.run(model, self.tools), self.begun.recorder, model, 0, steps, unrecorded)

    async def next(self, steps: int = 1000, *, unrecorded: bool = False) -> bool:
        """Resume the run in another process and execute this many steps."""
        resumed, turn, model = await in_db_thread(self._load)
        return await self._live(resumed.run, resumed.recorder, model, turn, steps, unrecorded)

    def _load(self) -> tuple[AssembledRun, int, ScriptedModel]:
        with scope.team(self.begun.who.team_id):
            turn = Response.objects.get(pk=self.begun.who.response_id).turns
            model = ScriptedModel(*self.script[turn:])
            return (
                resume.load(response_id=self.begun.who.response_id).build(RunFactory(model=model), toolbox(self.tools)),
                turn,
                model,
            )

    async def _live(
        self, run: Run, recorder: Recorder, model: ScriptedModel, turn: int, steps: int, unrecorded: bool
    ) -> bool:
        """Record this many steps. With `unrecorded`, execute one more without recording it."""
        ended = False
        async with aclosing(run.steps()) as made:
            while steps and not ended:
                step = await anext(made)
                await recorder.record(step)
                ended, steps = isinstance(step, RunEnded), steps - 1
            if unrecorded and not ended:
                await anext(made)
        recorder.log.take_batch()  # a real crash would lose the buffer
        self.reads |= {turn + number: request.items for number, request in enumerate(model.requests)}
        await everything_written(self.begun)
        return ended


@dataclass(frozen=True)
class Result:
    """The stored result of a run, without generated ids."""

    output: Any
    fragments: Any
    usage: Any
    status: str
    reads: Any


UNDISTURBED: dict[str, Result] = {}


def result_of(execution: Execution) -> Result:
    """Return the result, after checking the invariants of the log."""
    log, body = log_of(execution.begun), body_of(execution.begun)
    assert_well_formed(log)
    assert log[-1]["response"] == body
    assert Fold(log).output == body["output"]
    with scope.team(execution.begun.who.team_id):
        places = Placement.objects.filter(owner=body["id"], section=Section.OUTPUT).order_by("position")
        in_context = list(places.values_list("in_context", flat=True))
    shown = list(zip(body["output"], in_context, strict=True))
    return Result(
        output=without_ids([item for item, read in shown if read]),
        fragments=[item for item, read in shown if not read],
        usage=body["usage"],
        status=body["status"],
        reads=without_ids([messages(None, items) for _, items in sorted(execution.reads.items())]),
    )


async def new_execution(caller: Caller, deltas: str) -> Execution:
    """Store a response that no process has run yet."""
    return Execution(await abegin(caller, input="What is new?"), turns(PADDING[deltas]))


async def uninterrupted(caller: Caller, deltas: str) -> Result:
    """The result of a run that a single process executed; computed once."""
    if deltas not in UNDISTURBED:
        execution = await new_execution(caller, deltas)
        assert await execution.first(1000)
        assert execution.tools.made == list(OUTPUTS)
        UNDISTURBED[deltas] = await in_db_thread(lambda: result_of(execution))
    return UNDISTURBED[deltas]


def assert_no_output_was_wasted(execution: Execution, *, again: int = 0) -> None:
    """Assert that every tool was called once, plus `again` calls whose output could not be stored."""
    assert set(execution.tools.made) == set(OUTPUTS)
    assert len(execution.tools.made) <= len(OUTPUTS) + again


ALL_STEPS = len(asyncio.run(play(*turns(""), hosted=ScriptedTools(search=["a"], read=["b"], more=["c"]))).steps)


@pytest.mark.parametrize("deltas", ["stored", "lost"])
@pytest.mark.parametrize("cut", range(ALL_STEPS))
async def test_a_run_resumed_after_any_step_has_the_same_result(
    database: None, caller: Caller, cut: int, deltas: str
) -> None:
    execution = await new_execution(caller, deltas)
    assert not await execution.first(cut)
    assert await execution.next()
    found, expected = await in_db_thread(lambda: result_of(execution)), await uninterrupted(caller, deltas)
    assert (found.output, found.usage, found.status) == (expected.output, expected.usage, "completed")
    assert found.reads == expected.reads
    assert_no_output_was_wasted(execution)


@pytest.mark.parametrize("cut", range(ALL_STEPS))
async def test_a_step_that_was_not_recorded_is_repeated(database: None, caller: Caller, cut: int) -> None:
    execution = await new_execution(caller, "stored")
    assert not await execution.first(cut, unrecorded=True)
    assert await execution.next()
    found, expected = await in_db_thread(lambda: result_of(execution)), await uninterrupted(caller, "stored")
    assert (found.output, found.usage, found.reads) == (expected.output, expected.usage, expected.reads)
    assert_no_output_was_wasted(execution, again=2)  # both calls of a turn may have been in flight


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, ALL_STEPS), st.booleans()), min_size=2, max_size=5), data=st.data())
async def test_a_run_can_be_resumed_many_times(
    database: None, caller: Caller, cuts: list[tuple[int, bool]], data: st.DataObject
) -> None:
    deltas = data.draw(st.sampled_from(["stored", "lost"]))
    execution = await new_execution(caller, deltas)
    (steps, unrecorded), *others = cuts
    ended = await execution.first(steps, unrecorded=unrecorded)
    for steps, unrecorded in others:
        ended = ended or await execution.next(steps, unrecorded=unrecorded)
    assert ended or await execution.next()
    found, expected = await in_db_thread(lambda: result_of(execution)), await uninterrupted(caller, deltas)
    assert (found.output, found.usage, found.reads) == (expected.output, expected.usage, expected.reads)
    assert_no_output_was_wasted(execution, again=2 * len(cuts))


async def test_text_of_an_interrupted_turn_stays_as_incomplete(database: None, caller: Caller) -> None:
    execution = await new_execution(caller, "stored")
    await execution.first(2)
    await execution.next()
    found = await in_db_thread(lambda: result_of(execution))
    assert [(item["type"], item["status"]) for item in found.fragments] == [
        ("reasoning", "completed"),
        ("message", "incomplete"),
    ]


async def test_deltas_that_were_not_stored_leave_no_trace(database: None, caller: Caller) -> None:
    execution = await new_execution(caller, "lost")
    await execution.first(3)
    await execution.next()
    assert (await in_db_thread(lambda: result_of(execution))).fragments == []


async def test_an_unrepeatable_call_in_flight_fails_the_run(database: None, caller: Caller) -> None:
    execution = await new_execution(caller, "stored")
    model, unique = ScriptedModel(*execution.script), ScriptedTools(repeatable=False, search=[], read=[], more=[])
    async with aclosing(execution.begun.run(model, unique).steps()) as made:
        async for step in made:
            await execution.begun.recorder.record(step)
            if isinstance(step, ToolsStarted):
                break
    resumed = await in_db_thread(lambda: load(execution.begun, unique, ScriptedModel()))
    end = [step async for step in resumed.run.steps()][-1]
    assert isinstance(end, RunEnded)
    assert (end.ending.status, unique.calls) == ("failed", [])


def load(begun: Begun, tools: ScriptedTools, model: ScriptedModel) -> AssembledRun:
    """Load the run as another process would."""
    with scope.team(begun.who.team_id):
        return resume.load(response_id=begun.who.response_id).build(RunFactory(model=model), toolbox(tools))


@pytest.mark.parametrize(
    ("step", "status"), [(TurnEnded, "pending"), (ToolsStarted, "in_progress"), (ToolsReturned, "returned")]
)
async def test_a_resumed_run_knows_the_state_of_its_calls(
    database: None, caller: Caller, step: type[Step], status: str
) -> None:
    execution = await new_execution(caller, "lost")
    await record_until(execution, step)

    def open_calls() -> list[tuple[str, str]]:
        with scope.team(caller.team.pk):
            calls = ToolCall.objects.filter(response_id=execution.begun.who.response_id).order_by("id")
            return [(call.name, call.status) for call in calls]

    assert await in_db_thread(open_calls) == [("search", status), ("read", status)]


async def record_until(execution: Execution, kind: type[Step]) -> None:
    """Execute the run up to this step in the process that created the response."""
    async with aclosing(execution.begun.run(ScriptedModel(*execution.script), execution.tools).steps()) as made:
        async for step in made:
            await execution.begun.recorder.record(step)
            if isinstance(step, kind):
                return


async def test_stored_results_are_not_requested_again(database: None, caller: Caller) -> None:
    execution = await new_execution(caller, "stored")
    await record_until(execution, ToolsReturned)
    assert await execution.next()
    assert sorted(execution.tools.made) == sorted(OUTPUTS)


async def test_a_repeated_call_counts_its_attempts(database: None, caller: Caller) -> None:
    execution = await new_execution(caller, "stored")
    await record_until(execution, ToolsStarted)
    assert await execution.next()

    def attempts() -> dict[str, int]:
        with scope.team(caller.team.pk):
            calls = ToolCall.objects.filter(response_id=execution.begun.who.response_id)
            return {call.name: call.attempt for call in calls}

    assert await in_db_thread(attempts) == {"search": 2, "read": 2, "more": 1}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}


async def test_a_resumed_run_reads_outputs_and_images_without_items(database: None, caller: Caller) -> None:
    begun = await abegin(caller, max_tool_calls=1)
    tools = ScriptedTools(look=[ToolResult(output="see the image", parts=(IMAGE,))])
    script = [calls(look="{}"), calls(look="{}"), text("A cat")]
    second, turns = ScriptedModel(script[2]), 0
    async with aclosing(begun.run(ScriptedModel(*script), tools).steps()) as made:
        while turns < 2:
            await begun.recorder.record(step := await anext(made))
            turns += isinstance(step, TurnEnded)
    resumed = await in_db_thread(lambda: load(begun, tools, second))
    assert [step async for step in resumed.run.steps()][-1].ending.status == "completed"  # type: ignore[union-attr]
    kinds = [type(item).__name__ for item in second.requests[0].items]
    assert kinds == ["InputMessage", "McpCall", "InputMessage", "FunctionCall", "FunctionCallOutput"]


async def test_a_resumed_run_knows_that_a_turn_was_discarded(database: None, caller: Caller) -> None:
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    begun = await abegin(caller, tools=[tool], tool_choice="required")
    async with aclosing(begun.run(ScriptedModel(text("No."))).steps()) as made:
        await begun.recorder.record(step := await anext(made))
    assert isinstance(step, TurnDiscarded)
    second = ScriptedModel(text("No!"))
    resumed = await in_db_thread(lambda: load(begun, ScriptedTools(), second))
    end = [step async for step in resumed.run.steps()][-1]
    assert isinstance(end, RunEnded)
    assert (second.requests[0].sampling.tool_choice, end.ending.status) == ("required", "failed")
    complaint = messages(None, second.requests[0].items)[-1]["content"]
    assert "did not call a tool" in complaint

"""The recorder: the stored rows and their times, and that nothing is sent before it is committed."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from conversations.models import Item, Placement, Section
from core.db.db_threads import in_db_thread
from core.errors import Failure
from core.json.large_work import LARGE_BYTES, note_size
from engine.calls.outcomes import ToolResult
from engine.events.response_body import Ending, failed
from engine.state import PendingCall
from engine.steps import RunEnded, Step, ToolsReturned, ToolsStarted, TurnEnded
from engine.turn import Call
from responses.models import EventBatch, Response, ToolCall, Turn
from responses.runs import store
from responses.runs.event_log import FLUSH_BYTES
from responses.runs.recorder import Recorder
from responses.runs.rows import PREVIEW_LENGTH
from responses.runs.store import LeaseLost
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Caller
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.scripted import Piece, ScriptedModel, ScriptedTools
from tests.support.stored_runs import Begun, abegin, begin, body_of, everything_written, log_of, response_of

GONE = Failure(code="server_error", message="gone")
LONG = "x" * FLUSH_BYTES


async def record_all(begun: Begun, *turns: Sequence[Piece], tools: ScriptedTools | None = None) -> list[Step]:
    """Execute the run to its end and record every step."""
    steps = []
    async for step in begun.run(ScriptedModel(*turns), tools).steps():
        await begun.recorder.record(step)
        steps.append(step)
    return steps


async def first_steps(begun: Begun, turn: list[Chunk], number: int) -> list[Step]:
    """Return this many steps of a run, without recording them."""
    made = begun.run(ScriptedModel(turn)).steps()
    steps = [await anext(made) for _ in range(number)]
    await made.aclose()
    return steps


def rows(begun: Begun, kind: Any, **more: Any) -> list[Any]:
    """Return the response's rows of this model, in the order of their creation."""
    with scope.team(begun.who.team_id):
        return list(kind.objects.filter(response_id=begun.who.response_id, **more).order_by("pk"))


def ledger(begun: Begun) -> list[UsageRecord]:
    """Return the usage records of the response."""
    with scope.team(begun.who.team_id):
        return list(UsageRecord.objects.filter(object_id=begun.who.response_id).order_by("turn"))


async def test_the_stored_response_equals_the_streamed_one(database: None, caller: Caller) -> None:
    begun = await abegin(caller, metadata={"a": "b"}, temperature=0.5)
    await record_all(begun, text("Hel", "lo"))
    log, body = await in_db_thread(lambda: (log_of(begun), body_of(begun)))
    assert log[-1]["response"] == body
    assert [event["sequence_number"] for event in log] == list(range(len(log)))


async def test_the_log_holds_the_bytes_that_were_sent(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    sent = begun.opening
    async for step in begun.run(ScriptedModel(text("Hel", "lo"))).steps():
        sent += await begun.recorder.record(step)
    frames = await in_db_thread(lambda: b"".join(batch.frames for batch in rows(begun, EventBatch)))
    assert sent == frames + b"data: [DONE]\n\n"


async def test_deltas_are_sent_immediately_and_stored_soon_after(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    (delta,) = await first_steps(begun, text("Hello"), 1)
    assert b'"delta":"Hello"' in await begun.recorder.record(delta)
    async with asyncio.timeout(60):
        while len(await in_db_thread(lambda: rows(begun, EventBatch))) == 1:
            await asyncio.sleep(0.02)
    assert (await in_db_thread(lambda: log_of(begun)))[-1]["delta"] == "Hello"


async def test_a_large_buffer_is_stored_without_delay(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    (delta,) = await first_steps(begun, text(LONG), 1)
    await begun.recorder.record(delta)
    await everything_written(begun)
    assert (await in_db_thread(lambda: log_of(begun)))[-1]["delta"] == LONG


async def test_the_end_is_committed_before_it_is_sent(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    *_, end = await first_steps(begun, text("Hi"), 3)
    assert isinstance(end, RunEnded)
    assert b"response.completed" in await begun.recorder.record(end)
    assert (await in_db_thread(lambda: response_of(begun))).status == "completed"


async def test_a_cancelled_end_of_a_large_request_leaves_no_gap_in_the_log(database: None, caller: Caller) -> None:
    begun = await abegin(caller, instructions="x" * LARGE_BYTES)
    note_size(LARGE_BYTES)
    *deltas, end = await first_steps(begun, text("Hi"), 3)
    sent = begun.opening + b"".join([await begun.recorder.record(delta) for delta in deltas])
    recording = asyncio.create_task(begun.recorder.record(end))
    await asyncio.sleep(0)
    # A client that begins to follow now must not take the events away from the step.
    begun.recorder.log.serve_followers()
    recording.cancel()
    sent += await recording
    log, batches = await in_db_thread(lambda: (log_of(begun), rows(begun, EventBatch)))
    opening, ending = batches
    assert sent == opening.frames + ending.frames + b"data: [DONE]\n\n"
    assert log[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in log] == list(range(len(log)))


@pytest.mark.parametrize("length", [1, FLUSH_BYTES + 1])
async def test_the_end_of_a_lost_run_never_reaches_the_log(database: None, caller: Caller, length: int) -> None:
    begun = await abegin(caller)
    *deltas, end = await first_steps(begun, text("x" * length), 3)
    for delta in deltas:
        await begun.recorder.record(delta)
    await in_db_thread(lambda: increment_token(begun))
    with pytest.raises(LeaseLost):
        await begun.recorder.record(end)
    await everything_written(begun)
    log = await in_db_thread(lambda: log_of(begun))
    assert "response.completed" not in {event["type"] for event in log}


async def test_deltas_of_a_lost_run_never_reach_the_log(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    delta, *_, end = await first_steps(begun, text(LONG), 3)
    await in_db_thread(lambda: increment_token(begun))
    await begun.recorder.record(delta)
    with pytest.raises(LeaseLost):
        await begun.recorder.record(end)
    await everything_written(begun)
    assert len(await in_db_thread(lambda: log_of(begun))) == 2


@pytest.mark.slow
async def test_late_deltas_of_a_stopped_run_raise_no_error(database: None, caller: Caller) -> None:
    begun, complaints = await abegin(caller), list[dict[str, Any]]()
    # HTTP clients that earlier tests left behind close themselves in this loop when they are collected, and fail.
    gc.collect()
    await asyncio.sleep(0.1)
    gc.collect()
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    (delta,) = await first_steps(begun, text(LONG), 1)
    await in_db_thread(lambda: increment_token(begun))
    await Recorder(begun.who, next_sequence=2).record(delta)
    await everything_written(begun)
    gc.collect()
    assert (await in_db_thread(lambda: len(log_of(begun))), complaints) == (2, [])


def increment_token(begun: Begun) -> None:
    """Increment the lease token, as another process would."""
    with scope.team(begun.who.team_id):
        Response.objects.filter(pk=begun.who.response_id).update(lease_token=begun.who.lease_token + 1)


def test_a_long_end_can_be_recorded_without_an_event_loop(database: None, caller: Caller) -> None:
    begun = begin(caller, instructions=LONG)
    end = begun.run(ScriptedModel()).end_idle(failed(GONE))
    data, change = begun.recorder.plan(end)
    assert store.apply([change]) == [None]
    assert len(data) > FLUSH_BYTES
    assert log_of(begun)[-1]["type"] == "response.failed"


async def test_every_turn_has_a_row_and_a_usage_record(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    first = [*calls(search="{}")[:-1], usage(prompt_tokens=10, completion_tokens=4)]
    last = [*text("Hi")[:-1], usage(prompt_tokens=20, completion_tokens=1)]
    await record_all(begun, first, last, tools=ScriptedTools(search=["a page"]))
    turns, lines = await in_db_thread(lambda: (rows(begun, Turn), ledger(begun)))
    assert [(turn.number, turn.input_tokens, turn.finish_reason) for turn in turns] == [
        (0, 10, "tool_calls"),
        (1, 20, "stop"),
    ]
    assert [(line.turn, line.input_tokens, line.output_tokens) for line in lines] == [(0, 10, 4), (1, 20, 1)]
    assert {(line.api_key_id, line.team_id, line.endpoint) for line in lines} == {
        (caller.key.pk, caller.team.pk, "responses")
    }


async def test_the_response_has_the_totals(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    await record_all(begun, calls(search="{}"), text("Hi", "there"), tools=ScriptedTools(search=["a page"]))
    row = await in_db_thread(lambda: response_of(begun))
    assert (row.turns, row.tool_calls, row.input_tokens, row.output_tokens) == (2, 1, 14, 6)
    assert row.first_token_ms is not None
    assert row.duration_ms is not None
    assert row.ended_at == row.completed_at


async def test_tool_calls_are_stored_with_their_outcome(database: None, caller: Caller) -> None:
    begun = await abegin(caller, tools=[{"type": "function", "name": "get_time", "parameters": {}, "strict": False}])
    tools = ScriptedTools(search=["a page"])
    await record_all(begun, calls(search='{"q":1}', get_time="{}"), tools=tools)
    found = await in_db_thread(lambda: rows(begun, ToolCall))
    assert [(call.name, call.kind, call.status, call.output) for call in found] == [
        ("search", "scripted", "completed", "a page"),
        ("get_time", "function", "waiting", None),
    ]


async def test_a_running_call_is_in_progress(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    async for step in begun.run(ScriptedModel(calls(search="{}")), ScriptedTools(search=["a page"])).steps():
        await begun.recorder.record(step)
        if isinstance(step, ToolsStarted):
            started_at = step.started_at
            break
    (call,) = await in_db_thread(lambda: rows(begun, ToolCall))
    assert (call.status, call.output, call.started_at) == ("in_progress", None, started_at)


async def test_a_result_without_its_item_is_stored(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    call = Call(item_id="", call_id="call_search", name="search", arguments="{}")
    result = ToolResult(output="a page", fields={"kind": "page"})
    async for step in begun.run(ScriptedModel(calls(search="{}")), ScriptedTools(search=[])).steps():
        await begun.recorder.record(step)
        if isinstance(step, TurnEnded):
            break
    await begun.recorder.record(ToolsReturned(calls=[PendingCall(call=call, turn=0, attempt=1, result=result)]))
    (row,) = await in_db_thread(lambda: rows(begun, ToolCall))
    assert (row.status, row.ended_at, ToolResult.restored(row.result)) == ("returned", None, result)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "unstored"])
async def test_calls_without_an_answer_have_an_unknown_outcome(database: None, caller: Caller, *, stored: bool) -> None:
    begun = await abegin(caller, store=stored)
    tools = ScriptedTools(search=["a page"], read=["text"])
    tools.concurrency = 1
    run = begun.run(ScriptedModel(calls(search="{}", read="{}")), tools)
    async with aclosing(run.steps()) as steps:
        async for step in steps:
            await begun.recorder.record(step)
            if isinstance(step, ToolsStarted):
                break
    await begun.recorder.record(run.interrupt(Ending(status="cancelled")))
    found = await in_db_thread(lambda: rows(begun, ToolCall))
    assert [(call.name, call.status) for call in found] == [("search", "outcome_unknown"), ("read", "abandoned")]
    assert all(call.ended_at for call in found)
    assert bool(found[0].arguments) == bool(found[0].output) == stored


async def test_the_same_call_id_in_two_turns_stands_for_two_calls(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    tools = ScriptedTools(search=["first", "second"])
    await record_all(begun, calls(search="{}"), calls(search="{}"), text("Hi"), tools=tools)
    found = await in_db_thread(lambda: rows(begun, ToolCall))
    assert [(call.turn, call.output) for call in found] == [(0, "first"), (1, "second")]


async def test_items_and_placements_are_written_with_their_turn(database: None, caller: Caller) -> None:
    begun = await abegin(caller, input="What?")
    steps = []
    model = ScriptedModel([chunk(content="Let me look."), *calls(search="{}")])
    async for step in begun.run(model, ScriptedTools(search=["a page"])).steps():
        await begun.recorder.record(step)
        steps.append(step)
        if isinstance(step, TurnEnded):
            break

    def item_rows() -> list[tuple[str, int, str]]:
        with scope.team(caller.team.pk):
            places = Placement.objects.filter(owner=begun.who.response_id).select_related("item").order_by("id")
            return [(place.section, place.position, place.item.type) for place in places]

    assert await in_db_thread(item_rows) == [
        (Section.INPUT, 0, "message"),
        (Section.OUTPUT, 0, "message"),
    ]


async def test_an_unstored_run_leaves_usage_but_no_content(database: None, caller: Caller) -> None:
    begun = await abegin(caller, store=False, instructions="secret", metadata={"secret": "x"})
    steps = await record_all(begun, calls(search="{}"), text("secret"), tools=ScriptedTools(search=["secret"]))
    assert isinstance(steps[-1], RunEnded)

    def found() -> tuple[Response, list[Any], int]:
        with scope.team(caller.team.pk):
            items = Item.objects.filter(team=caller.team).count()
            return response_of(begun), [rows(begun, kind) for kind in (EventBatch, ToolCall)], items

    row, (batches, made), items = await in_db_thread(found)
    assert (batches, items, row.parameters, row.metadata, row.output_preview) == ([], 0, {}, {}, "")
    assert [(call.arguments, call.output, call.result, call.if_ended) for call in made] == [("", None, None, None)]
    assert (row.status, row.turns, row.output_tokens) == ("completed", 2, 6)
    assert len(await in_db_thread(lambda: rows(begun, Turn))) == len(await in_db_thread(lambda: ledger(begun))) == 2


@pytest.mark.parametrize("ending", [Ending(status="cancelled"), failed(GONE)], ids=["cancelled", "failed"])
async def test_an_interrupted_turn_has_a_usage_record(database: None, caller: Caller, ending: Ending) -> None:
    begun = await abegin(caller)
    run = begun.run(ScriptedModel(text("Hello", "you")))
    steps = run.steps()
    await begun.recorder.record(await anext(steps))
    await steps.aclose()
    await begun.recorder.record(run.interrupt(ending))
    (line,) = await in_db_thread(lambda: ledger(begun))
    assert (line.outcome, line.estimated, line.output_tokens) == ("interrupted", True, 2)


async def test_a_failed_turn_has_a_usage_record(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    await record_all(begun, [chunk(content="Hel"), GONE])
    (line,) = await in_db_thread(lambda: ledger(begun))
    row = await in_db_thread(lambda: response_of(begun))
    assert (line.outcome, row.status, row.error_code) == ("failed", "failed", "server_error")


async def test_long_texts_of_upstreams_are_cut_to_their_columns(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    named = chunk(tool_calls=[{"index": 0, "id": "i" * 300, "function": {"name": "n" * 300, "arguments": "{}"}}])
    await record_all(begun, [named, {**chunk(finish="s" * 300), "service_tier": "t" * 300}, usage()])
    row = await in_db_thread(lambda: response_of(begun))
    assert (row.status, row.service_tier) == ("completed", "default")


async def test_previews_are_one_short_line(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    await record_all(begun, text("One\n\ttwo " + "three " * 100))
    preview = (await in_db_thread(lambda: response_of(begun))).output_preview
    assert preview.startswith("One two three")
    assert len(preview) <= PREVIEW_LENGTH


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([chunk(reasoning_content="I think."), *text("It is blue.")], "It is blue."),
        ([chunk(reasoning_content="I think."), *calls(look='{"at": 1}')], "I think."),
        ([chunk(content="Let me look."), *calls(look='{"at": 1}')], "Let me look."),
    ],
)
async def test_a_preview_shows_the_message_if_there_is_one(
    database: None, caller: Caller, pieces: list[Chunk], expected: str
) -> None:
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    begun = await abegin(caller, tools=[tool])
    await record_all(begun, pieces)
    assert (await in_db_thread(lambda: response_of(begun))).output_preview == expected


async def test_a_discarded_turn_has_a_usage_record_but_no_item(database: None, caller: Caller) -> None:
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    begun = await abegin(caller, tools=[tool], tool_choice="required")
    await record_all(begun, text("No."), calls(look="{}"))
    first, second = await in_db_thread(lambda: rows(begun, Turn))
    assert (first.state, second.state, second.discarded) == ("discarded", "stop", None)
    assert first.discarded["defect"] == "The model did not call a tool, as `tool_choice` requires."
    assert [line.outcome for line in await in_db_thread(lambda: ledger(begun))] == ["discarded", "stop"]
    body = await in_db_thread(lambda: body_of(begun))
    assert ([item["type"] for item in body["output"]], body["usage"]["output_tokens"]) == (["function_call"], 6)

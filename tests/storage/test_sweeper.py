"""The sweeper: dead runs end with their stored output, and expired logs are dropped."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, connection
from django.test import override_settings

from conversations.models import Item, Placement, Section
from core.clock import now, shared, uptime
from engine.steps import Step
from responses.lifecycle import dead_processes, sweeper
from responses.models import EventBatch, Response, Status
from responses.runs import store
from responses.runs.store import Change, LeaseGuard, LeaseLost
from tenants import scope
from tests.support.api import Caller, MakeCaller
from tests.support.chunks import calls, chunk
from tests.support.scripted import Piece, ScriptedModel, ScriptedTools
from tests.support.stored_runs import Begun, begin, body_of, log_of, response_of
from tests.support.streams import assert_well_formed, types
from tests.support.waiting import eventually

LONG_AGO = timedelta(minutes=5)


def expire_lease(begun: Begun) -> None:
    """Expire the lease, as if the process had died."""
    with scope.team(begun.who.team_id):
        Response.objects.filter(pk=begun.who.response_id).update(lease_until=now() - LONG_AGO)


def first_steps(begun: Begun, number: int, *turns: Sequence[Piece], tools: ScriptedTools | None = None) -> list[Step]:
    """Return this many steps of the run."""

    async def make() -> list[Step]:
        steps = begun.run(ScriptedModel(*turns), tools).steps()
        found = [await anext(steps) for _ in range(number)]
        await steps.aclose()
        return found

    return asyncio.run(make())


def record(begun: Begun, steps: Sequence[Step]) -> None:
    """Store every one of these steps, including deltas."""
    for step in steps:
        _, change = begun.recorder.plan(step)
        assert store.apply([change]) == [None]


def a_dead_run(caller: Caller, **request: Any) -> Begun:
    """A dead run whose first turn had a hosted call, and whose second turn has sent one word."""
    begun = begin(caller, **request)
    turns = [calls(search="{}"), [chunk(content="Hel"), chunk(content="lo"), chunk(finish="stop")]]
    record(begun, first_steps(begun, 4, *turns, tools=ScriptedTools(search=["a page"])))
    expire_lease(begun)
    return begun


@pytest.mark.slow
def test_a_dead_run_fails_and_keeps_its_finished_output(database: None, caller: Caller) -> None:
    begun = a_dead_run(caller)
    assert sweeper.sweep_dead_runs() >= 1
    body = body_of(begun)
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert [(item["type"], item["status"]) for item in body["output"]] == [
        ("mcp_call", "completed"),
        ("message", "incomplete"),
    ]
    # Three tokens of the finished turn, and an estimate for the interrupted one.
    assert body["usage"]["output_tokens"] == 4


@contextmanager
def clock_set_forward() -> Iterator[None]:
    """Let this process learn that the database's clock was set forward by an hour."""
    shared.set(datetime.now(UTC), at=uptime())
    shared.set(datetime.now(UTC) + timedelta(hours=1), at=uptime())
    yield
    shared.set(datetime.now(UTC), at=uptime())


@pytest.mark.slow
def test_a_clock_that_was_set_forward_ends_no_lease(database: None, caller: Caller) -> None:
    alive, dead = begin(caller), a_dead_run(caller)
    with clock_set_forward():
        sweeper.sweep_dead_runs()
    assert [response_of(begun).status for begun in (alive, dead)] == [Status.IN_PROGRESS, Status.FAILED]


@pytest.mark.slow
def test_a_clock_that_was_set_back_expires_no_lease(database: None, caller: Caller) -> None:
    alive, dead = begin(caller), a_dead_run(caller)
    # The process that leases the run knows the new time already; this one read the old time longer ago than a lease.
    with clock_set_forward(), override_settings(LEASE_SECONDS=0):
        sweeper.sweep_dead_runs()
    assert [response_of(begun).status for begun in (alive, dead)] == [Status.IN_PROGRESS, Status.FAILED]


def test_the_log_of_a_dead_run_is_closed(database: None, caller: Caller) -> None:
    begun = a_dead_run(caller)
    sweeper.sweep_dead_runs()
    log = log_of(begun)
    assert types(log)[-5:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "error",
        "response.failed",
    ]
    assert_well_formed(log)
    assert log[-1]["response"] == body_of(begun)


def test_a_live_run_is_not_swept(database: None, caller: Caller) -> None:
    begun = begin(caller)
    sweeper.sweep_dead_runs()
    assert response_of(begun).status == Status.IN_PROGRESS


def test_sweeping_again_changes_nothing(database: None, caller: Caller) -> None:
    begun = a_dead_run(caller)
    sweeper.sweep_dead_runs()
    before = (response_of(begun).ended_at, len(log_of(begun)))
    expire_lease(begun)
    sweeper.sweep_dead_runs()
    assert (response_of(begun).ended_at, len(log_of(begun))) == before


@pytest.mark.slow
def test_concurrent_sweepers_end_each_run_once(database: None, caller: Caller) -> None:
    sweeper.sweep_dead_runs()
    dead = [a_dead_run(caller) for _ in range(6)]
    with ThreadPoolExecutor(3) as sweepers:
        swept = list(sweepers.map(lambda _: in_a_thread(sweeper.sweep_dead_runs), range(3)))
    assert sum(swept) >= len(dead)
    assert {types(log_of(begun)).count("response.failed") for begun in dead} == {1}


def in_a_thread(work: Callable[[], int]) -> int:
    """Call a function and close the connection of the thread."""
    try:
        return work()
    finally:
        connection.close()


def test_each_process_that_misses_a_dead_one_sweeps(database: None, caller: Caller) -> None:
    """The row that one of them has updated is locked by the next one, and the sweep of the first skips locked rows."""
    begun = begin(caller)
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=begun.who.response_id).update(lease_owner="web:1:deadbeef")
    with ThreadPoolExecutor(1) as threads:
        with scope.team(caller.team.pk):
            expire_lease(begun)
            late = threads.submit(in_a_thread, partial(dead_processes.release, ["deadbeef"]))
            eventually(is_blocking)
        late.result()
    assert response_of(begun).status == Status.FAILED


def is_blocking() -> bool:
    """Return whether another session waits for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))")
        return bool(cursor.fetchone()[0])


def test_a_swept_run_that_still_executes_writes_nothing(database: None, caller: Caller) -> None:
    begun = begin(caller)
    delta, *rest = first_steps(begun, 3, [chunk(content="Hel"), chunk(content="lo"), chunk(finish="stop")])
    record(begun, [delta])
    expire_lease(begun)
    sweeper.sweep_dead_runs()
    before = log_of(begun)
    (outcome,) = store.apply([begun.recorder.plan(rest[0])[1]])
    assert isinstance(outcome, LeaseLost)
    assert log_of(begun) == before


def test_late_deltas_of_a_swept_run_do_not_reach_the_log(database: None, caller: Caller) -> None:
    begun = begin(caller)
    (delta,) = first_steps(begun, 1, [chunk(content="Hel"), chunk(finish="stop")])
    _, change = begun.recorder.plan(delta)
    lease = LeaseGuard(response_id=begun.who.response_id, lease_token=begun.who.lease_token)
    expire_lease(begun)
    sweeper.sweep_dead_runs()
    (outcome,) = store.apply([Change(team_id=change.team_id, insert=change.insert, lease=lease)])
    assert isinstance(outcome, LeaseLost)
    assert types(log_of(begun)) == ["response.created", "response.in_progress", "error", "response.failed"]


def test_the_same_event_numbers_cannot_be_written_twice(database: None, caller: Caller) -> None:
    begun = begin(caller)
    (delta,) = first_steps(begun, 1, [chunk(content="Hel"), chunk(finish="stop")])
    _, change = begun.recorder.plan(delta)
    again = Change(team_id=change.team_id, insert=change.insert)
    assert store.apply([change]) == [None]
    with pytest.raises(IntegrityError, match=r"responses_eventbatch_\w+_pkey"):
        store.apply([again])


def test_a_dead_unstored_run_ends_without_a_log(database: None, caller: Caller) -> None:
    begun = begin(caller, store=False)
    expire_lease(begun)
    sweeper.sweep_dead_runs()
    assert (response_of(begun).status, log_of(begun)) == (Status.FAILED, [])


def test_an_unreadable_dead_run_does_not_stop_the_sweep(database: None, caller: Caller) -> None:
    broken, whole = begin(caller), begin(caller)
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=broken.who.response_id).update(options={"prices": "nonsense"})
    expire_lease(broken)
    expire_lease(whole)
    sweeper.sweep_dead_runs()
    assert [response_of(begun).status for begun in (broken, whole)] == [Status.IN_PROGRESS, Status.FAILED]


def test_a_dead_run_with_an_unreadable_item_is_ended(database: None, caller: Caller) -> None:
    begun = begin(caller)
    with scope.team(caller.team.pk):
        odd = Item.objects.create(team=caller.team, id="x_1", type="nonsense", body={"id": "x_1", "type": "nonsense"})
        Placement.objects.create(
            team=caller.team, owner=begun.who.response_id, section=Section.INPUT, position=1, item=odd
        )
    expire_lease(begun)
    sweeper.sweep_dead_runs()
    assert response_of(begun).status == Status.FAILED


def test_a_released_run_without_attempts_left_is_ended(database: None, caller: Caller) -> None:
    """The limit was lowered after the last worker started the run."""
    begun = begin(caller, background=True)
    with scope.team(caller.team.pk):
        waiting = Response.objects.filter(pk=begun.who.response_id)
        waiting.update(lease_until=None, attempt=settings.BACKGROUND_ATTEMPTS)
    sweeper.sweep_dead_runs()
    assert body_of(begun)["status"] == "failed"


def set_ended(begun: Begun, *, hours: float) -> None:
    """Set the end of the response to this long ago."""
    with scope.team(begun.who.team_id):
        at = now() - timedelta(hours=hours)
        Response.objects.filter(pk=begun.who.response_id).update(status=Status.FAILED, ended_at=at)


def an_ended_run(caller: Caller, *, hours: float, batches: int = 1) -> Begun:
    """A response that was created and ended this long ago, with this many batches in its log."""
    begun = begin(caller, at=now() - timedelta(hours=hours))
    set_ended(begun, hours=hours)
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO responses_eventbatch"
            " SELECT team_id, response_id, number, number, created_at, compressed"
            " FROM responses_eventbatch, generate_series(last_sequence + 1, last_sequence + %s) AS number"
            " WHERE response_id = %s",
            [batches - 1, begun.who.response_id],
        )
    return begun


def batches(begun: Begun) -> int:
    """Return the number of batches left in the log."""
    with scope.team(begun.who.team_id):
        return EventBatch.objects.filter(response_id=begun.who.response_id).count()


def drop_from_the_oldest() -> int:
    """Drop the expired logs, beginning with the oldest, and return the number of batches."""
    # The first call may continue where another test has stopped.
    return sweeper.drop_expired_logs() + sweeper.drop_expired_logs()


def test_logs_are_kept_for_the_retention_of_their_team(database: None, make_caller: MakeCaller) -> None:
    short, long = make_caller(), make_caller()
    with scope.team(short.team.pk):
        short.team.log_retention_hours = 1
        short.team.save()
    over, fresh = an_ended_run(short, hours=1.1), an_ended_run(short, hours=0.9)
    elsewhere = an_ended_run(long, hours=23.9)
    assert drop_from_the_oldest() >= 1
    assert [batches(begun) for begun in (over, fresh, elsewhere)] == [0, 1, 1]


def test_the_log_of_a_running_response_is_never_dropped(database: None, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        caller.team.log_retention_hours = 0
        caller.team.save()
    begun = begin(caller, at=now() - timedelta(hours=2))
    drop_from_the_oldest()
    assert batches(begun) == 1


@pytest.mark.slow
def test_one_call_drops_the_logs_of_500_responses_per_second(database: None, caller: Caller) -> None:
    seconds = settings.CELERY_BEAT_SCHEDULE["drop-old-logs"]["schedule"]
    assert isinstance(seconds, float)
    # Two batches for each response.
    runs = [an_ended_run(caller, hours=25, batches=int(500 * seconds * 2 / 20)) for _ in range(20)]
    began = now()
    assert drop_from_the_oldest() >= 500 * seconds * 2
    assert now() - began < timedelta(seconds=seconds)
    assert [batches(begun) for begun in runs] == [0] * 20


@pytest.mark.slow
def test_the_next_call_continues_a_call_that_ran_out_of_time(database: None, make_caller: MakeCaller) -> None:
    patient, hasty = make_caller(), make_caller()
    with scope.team(patient.team.pk):
        patient.team.log_retention_hours = 1000
        patient.team.save()
    drop_from_the_oldest()
    kept = an_ended_run(patient, hours=900, batches=10_000)
    expired = an_ended_run(hasty, hours=800)
    assert (sweeper.drop_expired_logs(seconds=0), batches(expired)) == (0, 1)
    assert (sweeper.drop_expired_logs(seconds=0), batches(expired)) == (1, 0)
    assert batches(kept) == 10_000
    # The next call begins with the oldest log again.
    late = an_ended_run(hasty, hours=850)
    while batches(late):
        sweeper.drop_expired_logs(seconds=0)


def test_no_log_is_dropped_while_another_process_drops_logs(database: None, caller: Caller) -> None:
    expired = an_ended_run(caller, hours=25)
    with ThreadPoolExecutor(1) as other, scope.team(caller.team.pk), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [sweeper.DROP_LOCK])
        assert other.submit(sweeper.drop_expired_logs).result() == 0
    assert batches(expired) == 1
    assert drop_from_the_oldest() >= 1


def test_a_response_outlives_its_log(database: None, caller: Caller) -> None:
    begun = a_dead_run(caller, at=now() - timedelta(hours=25))
    sweeper.sweep_dead_runs()
    before = body_of(begun)
    set_ended(begun, hours=25)
    drop_from_the_oldest()
    assert (batches(begun), body_of(begun)["output"]) == (0, before["output"])

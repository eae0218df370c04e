"""The lease of a run: only its owner may write, until the run ends, is cancelled or is resumed by another process."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings

from core.clock import now
from core.db.db_threads import in_db_thread
from core.process_name import process_name
from core.work.leases import lease_until
from engine.steps import RunEnded
from responses.models import RUNNING, Response, Status
from responses.runs import run_leases, store
from responses.runs.runner import LiveRun, drain
from responses.runs.store import Change, LeaseLost, ResponseUpdate
from tenants import scope
from tests.support.api import Caller
from tests.support.chunks import chunk, text
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import Begun, abegin, begin, body_of, log_of, prepare, response_of


@pytest.fixture
def short_leases(settings: Settings) -> None:
    """Use leases of three seconds, which are renewed every second."""
    settings.LEASE_SECONDS = 3


def change_row(begun: Begun, **values: Any) -> None:
    """Change columns of the response's row, as another process would."""
    with scope.team(begun.who.team_id):
        assert Response.objects.filter(pk=begun.who.response_id, status__in=RUNNING).update(**values) == 1


def cancel(begun: Begun) -> None:
    """Set the status of the response to cancelled."""
    change_row(begun, status=Status.CANCELLED, ended_at=now())


async def until(look: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(60):
        while not await in_db_thread(look):
            await asyncio.sleep(0.02)


async def hanging_run(caller: Caller, **request: Any) -> tuple[Begun, LiveRun, ScriptedModel, asyncio.Event]:
    """A live run whose model has sent one word and hangs."""
    begun, gate = await abegin(caller, **request), asyncio.Event()
    model = ScriptedModel([chunk(content="Hel"), gate, chunk(content="lo"), chunk(finish="stop")])
    live = begun.live(model)
    live.start()
    frames = live.frames()
    while b"output_text.delta" not in await anext(frames):
        pass
    return begun, live, model, gate


@pytest.mark.slow
async def test_a_live_run_renews_its_lease(database: None, caller: Caller, short_leases: None) -> None:
    begun, live, _, gate = await hanging_run(caller)
    first = (await in_db_thread(lambda: response_of(begun))).lease_until
    assert first is not None
    await until(lambda: (response_of(begun).lease_until or first) > first)
    gate.set()
    assert (await live.finished()).ending.status == "completed"


@pytest.mark.parametrize(
    ("write", "status"),
    [
        (cancel, Status.CANCELLED),
        (lambda begun: change_row(begun, lease_owner="another:1", lease_token=2), Status.IN_PROGRESS),
    ],
    ids=["cancelled", "resumed elsewhere"],
)
async def test_a_run_that_lost_its_lease_stops_within_a_renewal(
    database: None, caller: Caller, short_leases: None, write: Callable[[Begun], None], status: str
) -> None:
    begun, live, model, _ = await hanging_run(caller)
    await in_db_thread(lambda: write(begun))
    async with asyncio.timeout(60):
        await live.finished()
    assert model.opened[0].is_closed
    assert (await in_db_thread(lambda: response_of(begun))).status == status


async def test_a_run_does_not_renew_the_lease_of_a_new_owner(
    database: None, caller: Caller, short_leases: None
) -> None:
    begun, live, _, gate = await hanging_run(caller)
    until_then = lease_until() + timedelta(hours=1)
    await in_db_thread(lambda: change_row(begun, lease_owner="another:1", lease_token=2, lease_until=until_then))
    gate.set()
    await live.finished()
    row = await in_db_thread(lambda: response_of(begun))
    assert (row.status, row.lease_owner, row.lease_until) == (Status.IN_PROGRESS, "another:1", until_then)


@pytest.mark.slow
async def test_a_process_does_not_end_a_run_that_it_considers_lost(
    database: None, caller: Caller, short_leases: None
) -> None:
    begun, live, model, _ = await hanging_run(caller)
    await in_db_thread(lambda: change_row(begun, lease_owner="another:1"))
    assert (await live.finished()).ending.status == "failed"
    assert model.opened[0].is_closed
    assert (await in_db_thread(lambda: response_of(begun))).status == Status.IN_PROGRESS


def ending_change(begun: Begun) -> RunEnded:
    """Return the change that the run writes at its end."""

    async def last() -> RunEnded:
        steps = [step async for step in begun.run(ScriptedModel(text("Hi"))).steps()]
        assert isinstance(steps[-1], RunEnded)
        return steps[-1]

    return asyncio.run(last())


def test_cancel_wins_over_a_late_completion(database: None, caller: Caller) -> None:
    begun = begin(caller)
    _, finish = begun.recorder.plan(ending_change(begun))
    cancel(begun)
    (outcome,) = store.apply([finish])
    assert isinstance(outcome, LeaseLost)
    assert (body_of(begun)["status"], body_of(begun)["output"]) == ("cancelled", [])
    assert [event["type"] for event in log_of(begun)] == ["response.created", "response.in_progress"]


def test_an_ended_response_cannot_end_again(database: None, caller: Caller) -> None:
    begun = begin(caller)
    _, finish = begun.recorder.plan(ending_change(begun))
    assert store.apply([finish]) == [None]
    with pytest.raises(AssertionError):
        cancel(begun)
    (again,) = store.apply([begun.recorder.plan(ending_change(begun))[1]])
    assert isinstance(again, LeaseLost)
    assert len(body_of(begun)["output"]) == 1


def test_an_old_lease_token_writes_nothing(database: None, caller: Caller) -> None:
    begun = begin(caller)
    _, finish = begun.recorder.plan(ending_change(begun))
    change_row(begun, lease_token=2)
    (outcome,) = store.apply([finish])
    assert isinstance(outcome, LeaseLost)
    assert response_of(begun).status == Status.IN_PROGRESS


async def test_a_run_without_its_lease_sends_only_what_is_stored(database: None, caller: Caller) -> None:
    begun, live, _, gate = await hanging_run(caller)
    await in_db_thread(lambda: cancel(begun))
    gate.set()
    rest = b"".join([frames async for frames in live.frames()])
    assert b"response.completed" not in rest
    assert (await live.finished()).ending.status == "failed"


async def test_a_run_cancelled_in_its_process_is_stored_as_cancelled(database: None, caller: Caller) -> None:
    begun, live, model, _ = await hanging_run(caller)
    live.cancel()
    assert (await live.finished()).ending.status == "cancelled"
    body = await in_db_thread(lambda: body_of(begun))
    assert (body["status"], body["output"][0]["status"]) == ("cancelled", "incomplete")
    assert model.opened[0].is_closed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "grace", "ends"),
    [
        pytest.param(False, 30, True, marks=pytest.mark.nightly),
        (True, 0, True),
        pytest.param(True, None, False, marks=pytest.mark.nightly),
    ],
)
async def test_a_run_without_its_client_ends_after_the_grace_period(
    database: None, caller: Caller, stored: bool, grace: float | None, ends: bool
) -> None:
    begun, gate = await abegin(caller, store=stored), asyncio.Event()
    live = begun.live(ScriptedModel([gate, *text("Hi")]), grace_seconds=grace)
    live.start()
    await asyncio.sleep(0)
    live.detach()
    if not ends:
        gate.set()
    assert (await live.finished()).ending.status == ("cancelled" if ends else "completed")


async def test_a_graceful_shutdown_ends_every_run(database: None, caller: Caller) -> None:
    runs = [await hanging_run(caller, store=False) for _ in range(2)]
    await drain(seconds_left=lambda: 0, notify_workers=lambda: None)
    rows = await in_db_thread(lambda: [response_of(begun) for begun, *_ in runs])
    assert [row.status for row in rows] == [Status.FAILED] * 2


def test_a_new_response_is_leased_by_its_process(database: None, caller: Caller) -> None:
    row = response_of(begin(caller))
    assert (row.lease_owner, row.lease_token) == (process_name(), 1)
    assert row.lease_until is not None
    assert row.lease_until > now()


@pytest.mark.slow
def test_renewals_and_writes_do_not_deadlock(database: None, caller: Caller) -> None:
    prepared = [prepare(caller) for _ in range(100)]
    assert store.apply([created for _, created in prepared]) == [None] * len(prepared)
    changes = [locking_change(begun) for begun, _ in prepared]
    with ThreadPoolExecutor(1) as other:
        renewals = other.submit(renew_often, [begun.who.response_id for begun, _ in prepared])
        while not renewals.done():
            store.apply(random.sample(changes, 60))
        renewals.result()


def locking_change(begun: Begun) -> Change:
    """Return a change that locks the response's row."""
    update = ResponseUpdate(response_id=begun.who.response_id, lease_token=1, status=Status.IN_PROGRESS.value)
    return Change(team_id=begun.who.team_id, update=update)


def renew_often(response_ids: list[str]) -> None:
    """Renew the leases of all responses repeatedly, in random order."""
    try:
        for _ in range(40):
            _, lost = run_leases.renew(random.sample(response_ids, len(response_ids)))
            assert lost == []
    finally:
        connection.close()


def test_a_forked_process_has_its_own_name() -> None:
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, process_name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1000).decode() != process_name() == process_name()


_NAMES_IN_THREADS = """
import os, sys, threading
from core.process_name import process_name

def different_names():
    sys.setswitchinterval(1e-6)
    names, may_start = [], threading.Event()
    def look():
        while not may_start.is_set():
            pass
        names.append(process_name())
    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    may_start.set()
    for thread in threads:
        thread.join()
    return len({*names, process_name()})

for _ in range(40):
    if not (child := os.fork()):
        os._exit(different_names())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_all_threads_of_a_process_have_the_same_name() -> None:
    environment = {**os.environ, "PYTHONPATH": "platform:."}
    counts = subprocess.check_output([sys.executable, "-c", _NAMES_IN_THREADS], env=environment, text=True)
    assert counts.split() == ["1"] * 40

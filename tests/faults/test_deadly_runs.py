"""Runs that crash the process executing them fail with the reason, and no other run fails with them."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from responses.models import Response
from tenants import scope
from tests.support.api import Api
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
SECONDS = 90


def queue(api: Api, script: Script) -> str:
    """Queue a response and return its id."""
    response_id: str = api.create(model=script.model, input="Go.", background=True)["id"]
    return response_id


def row(api: Api, response_id: str) -> Response:
    """Return the stored response."""
    with scope.team(api.caller.team.pk):
        return Response.objects.get(pk=response_id)


def pid_of(api: Api, response_id: str) -> int:
    """Return the id of the process that executes a response."""
    return int((row(api, response_id).lease_owner or "::").split(":")[1])


@contextmanager
def killing(api: Api, script: Script, response_id: str) -> Iterator[list[int]]:
    """Kill each process executing the response as soon as it calls the upstream. Yields the process ids."""
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        calls = 0
        while not is_over.wait(0.05):
            if len(script.received) > calls:
                calls = len(script.received)
                pid = pid_of(api, response_id)
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


def test_a_run_that_ends_two_processes_fails_with_the_reason(api: Api, script: Script, make_worker: MakeWorker) -> None:
    script.always(stream(chunk(content="Hal"), Gate()))
    first, second = make_worker(), make_worker()
    response_id = queue(api, script)
    with killing(api, script, response_id) as killed:
        failed = ended(api, response_id, seconds=SECONDS)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert "crashed the process that ran it" in failed["error"]["message"]
    assert len(killed) == len(script.received) == 2
    # The second process was not shared with other runs.
    assert [worker.pid in killed for worker in (first, second)].count(True) == 1
    survivor = second if first.pid in killed else first
    assert "a run has ended two processes" in survivor.output()


@pytest.mark.nightly
def test_a_run_that_ends_its_process_does_not_fail_others(
    api: Api, script: Script, other_script: Script, make_worker: MakeWorker
) -> None:
    gate = Gate()
    script.always(stream(chunk(content="Hal"), Gate()))
    other_script.always(stream(chunk(content="Hel"), gate, *text("lo")))
    first = make_worker()
    others = [queue(api, other_script) for _ in range(20)]
    eventually(lambda: len(other_script.received) == 20, seconds=60)
    second = make_worker()
    with ExitStack() as suspended:
        # So that all of them share a process.
        suspended.enter_context(second.suspended())
        response_id = queue(api, script)
        with killing(api, script, response_id) as killed:
            eventually(lambda: len(killed) == 1, seconds=60)
            suspended.close()
            eventually(lambda: len(killed) == 2, seconds=SECONDS)
            gate.open()
            failed = ended(api, response_id, seconds=SECONDS)
            done = [ended(api, each, seconds=SECONDS) for each in others]
    assert "crashed the process that ran it" in failed["error"]["message"]
    assert {each["status"] for each in done} == {"completed"}
    assert all(text_of(each)[-1].endswith("lo") for each in done)
    assert len(killed) <= 3
    assert (killed[0], second.pid in killed) == (first.pid, False)


@pytest.mark.nightly
def test_runs_of_workers_that_are_killed_from_outside_complete(
    api: Api, script: Script, make_worker: MakeWorker
) -> None:
    gate = Gate()
    script.always(stream(chunk(content="Hel"), gate, *text("lo")))
    workers = [make_worker(), make_worker()]
    response_id = queue(api, script)
    for times in range(2):
        eventually(lambda: len(script.received) == times + 1, seconds=60)  # noqa: B023 - called at once
        # The process of an isolated run ends with its worker.
        executing = pid_of(api, response_id)
        (owner,) = [each for each in workers if each.pid in (executing, parent_of(executing))]
        owner.stop(signal.SIGKILL)
        workers = [*(each for each in workers if each is not owner), make_worker()]
    eventually(lambda: len(script.received) == 3, seconds=60)
    gate.open()
    assert ended(api, response_id, seconds=60)["status"] == "completed"


@pytest.mark.nightly
@pytest.mark.parametrize("is_paralysed", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_an_isolated_run_of_a_stopping_worker_continues_on_another(
    is_paralysed: bool, api: Api, script: Script, make_worker: MakeWorker
) -> None:
    gate = Gate()
    script.always(stream(chunk(content="Hel"), gate, *text("lo")))
    first = make_worker(WORKER_DRAIN_SECONDS="1")
    response_id = queue(api, script)
    eventually(lambda: len(script.received) == 1, seconds=60)
    second = make_worker(WORKER_DRAIN_SECONDS="1")
    first.stop(signal.SIGKILL)
    eventually(lambda: len(script.received) == 2, seconds=60)
    isolated = pid_of(api, response_id)
    assert parent_of(isolated) == second.pid
    if is_paralysed:
        os.kill(isolated, signal.SIGSTOP)
    second.stop()
    eventually(lambda: not exists(isolated))
    third = make_worker()
    eventually(lambda: len(script.received) == 3, seconds=60)
    executing = pid_of(api, response_id)
    assert third.pid in (executing, parent_of(executing))
    gate.open()
    assert text_of(ended(api, response_id, seconds=60))[-1].endswith("lo")
    # A clean stop does not count as a failed attempt.
    assert row(api, response_id).attempt == (3 if is_paralysed else 2)


def test_a_starting_isolated_process_ends_with_its_worker(api: Api, script: Script, make_worker: MakeWorker) -> None:
    script.always(stream(chunk(content="Hel"), Gate()))
    first = make_worker()
    response_id = queue(api, script)
    eventually(lambda: len(script.received) == 1, seconds=60)
    second = make_worker()
    first.stop(signal.SIGKILL)
    eventually(lambda: isolated_processes(second.pid), seconds=60)
    (isolated,) = isolated_processes(second.pid)
    second.stop(signal.SIGKILL)
    eventually(lambda: not exists(isolated))
    assert len(script.received) == 1
    assert api.post(f"/responses/{response_id}/cancel", {}).json()["status"] == "cancelled"


def exists(pid: int) -> bool:
    """Return whether a process runs, even if it is suspended."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def isolated_processes(worker: int) -> list[int]:
    """Return the ids of the processes that a worker has started for isolated runs."""
    children = Path(f"/proc/{worker}/task").glob("*/children")
    ids = [int(pid) for listed in children for pid in listed.read_text().split()]
    return [pid for pid in ids if b"isolated_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def parent_of(pid: int) -> int:
    """Return the id of the process that has started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

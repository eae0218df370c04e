"""Processes that die without a word, with the settings of production: their work goes on within 10 seconds."""

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest
from django.db import connection

from responses.lifecycle import sweeper
from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error
from tests.support.background import ended, text_of
from tests.support.chunks import chunk
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
RECOVERY_SECONDS = 10.0


def outcomes(caller: Caller) -> list[str]:
    """Return the outcomes of the team's upstream calls."""
    with scope.team(caller.team.pk):
        return [one.outcome for one in UsageRecord.objects.order_by("id")]


def is_present(caller: Caller, response_id: str) -> bool:
    """Return whether the database has the connection that proves the life of the process that executes a response."""
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        name = str(Response.objects.get(pk=response_id).lease_owner).rpartition(":")[2]
        cursor.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", [f"platform:{name}"])
        return bool(cursor.rowcount == 1)


def test_another_worker_continues_the_runs_of_a_killed_one(
    api: Api, caller: Caller, script: Script, make_worker: MakeWorker
) -> None:
    gate, first = Gate(), make_worker()
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    gate.wait_until_reached()
    make_worker()
    eventually(lambda: is_present(caller, response_id))
    first.stop(signal.SIGKILL)
    assert text_of(ended(api, response_id, seconds=RECOVERY_SECONDS))[-1:] == ["Hello"]
    assert outcomes(caller) == ["interrupted", "stop"]


def test_the_successor_of_the_only_worker_continues_its_runs(
    api: Api, caller: Caller, script: Script, make_worker: MakeWorker
) -> None:
    gate, first = Gate(), make_worker()
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    gate.wait_until_reached()
    eventually(lambda: is_present(caller, response_id))
    first.stop(signal.SIGKILL)
    make_worker()
    assert text_of(ended(api, response_id, seconds=RECOVERY_SECONDS))[-1:] == ["Hello"]


def test_a_stream_of_a_killed_web_process_fails_with_what_is_stored(
    web: WebProcess, caller: Caller, script: Script, http: httpx2.Client
) -> None:
    """Its connection breaks, so that the client knows at once, and what was sent can be read."""
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate))
    with (
        running_web() as killed,
        Api(http, url=killed.url, caller=caller).stream(model=script.model, input="Hi") as live,
    ):
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
        eventually(lambda: is_present(caller, response_id))
        killed.stop(signal.SIGKILL)
        with pytest.raises(httpx2.TransportError):
            live.rest()
    response = ended(Api(http, url=web.url, caller=caller), response_id, seconds=RECOVERY_SECONDS)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert outcomes(caller) == ["interrupted"]


def test_a_paused_process_keeps_its_runs(api: Api, caller: Caller, script: Script, make_worker: MakeWorker) -> None:
    """Its connection lives, and so does its lease: nothing is repeated."""
    gate, first = Gate(), make_worker()
    script.then(stream(chunk(content="Hal"), gate, chunk(content="lo"), chunk(finish="stop")))
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    gate.wait_until_reached()
    with first.suspended():
        make_worker()
        gate.open()
    assert text_of(ended(api, response_id)) == ["Hallo"]
    with scope.team(caller.team.pk):
        assert Response.objects.get(pk=response_id).attempt == 1


def test_a_client_whose_run_was_taken_for_dead_is_asked_to_retry(
    caller: Caller, script: Script, http: httpx2.Client
) -> None:
    """The process was paused for longer than its lease, so that another one ended its run."""
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate, chunk(content="lo"), chunk(finish="stop")))
    with running_web(LEASE_SECONDS="3") as paused, ThreadPoolExecutor() as threads:
        api = Api(http, url=paused.url, caller=caller)
        answer = threads.submit(api.post, "/responses", {"model": script.model, "input": "Hi"})
        gate.wait_until_reached()
        leader = psutil.Process(paused.pid)
        family = [leader, *leader.children(recursive=True)]
        for process in family:
            process.suspend()
        eventually(sweeper.sweep_dead_runs)
        for process in family:
            process.resume()
        assert error(answer.result()) == (503, None, "database_unavailable")
        assert answer.result().headers["retry-after"]

"""Killed processes: their work continues long before their leases expire."""

import os
import secrets
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest
from django.db import connection

from responses.lifecycle import sweeper
from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk
from tests.support.sandboxes import CODE_INTERPRETER, code, names, running_sandbox
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
# Longer than a test waits, so that only the end of its connection shows that a process has died.
LEASE = {"LEASE_SECONDS": "600"}
SANDBOX_ADDRESS = f"{tempfile.gettempdir()}/killed-{os.getpid()}"
SANDBOX_TOKEN = secrets.token_urlsafe(32)
SANDBOX = {"SANDBOX_URL": SANDBOX_ADDRESS, "SANDBOX_TOKEN": SANDBOX_TOKEN}
SLEEPING = code("import subprocess\nsubprocess.run(['sleep', '60'])")


def outcomes(caller: Caller) -> list[str]:
    """Return the outcomes of the team's upstream calls."""
    with scope.team(caller.team.pk):
        return [one.outcome for one in UsageRecord.objects.order_by("id")]


def is_swept(caller: Caller) -> bool:
    """End dead runs and return whether the caller's run was one of them: earlier tests may have left others."""
    sweeper.sweep_dead_runs()
    with scope.team(caller.team.pk):
        return Response.objects.filter(ended_at__isnull=False).exists()


def is_present(caller: Caller, response_id: str) -> bool:
    """Return whether the presence connection of the process executing a response is open."""
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        name = str(Response.objects.get(pk=response_id).lease_owner).rpartition(":")[2]
        cursor.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", [f"platform:{name}"])
        return bool(cursor.rowcount == 1)


@pytest.mark.nightly
def test_another_worker_continues_the_runs_of_a_killed_one(
    api: Api, caller: Caller, script: Script, make_worker: MakeWorker
) -> None:
    gate, first = Gate(), make_worker(**LEASE)
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    gate.wait_until_reached()
    make_worker(**LEASE)
    eventually(lambda: is_present(caller, response_id))
    first.stop(signal.SIGKILL)
    assert text_of(ended(api, response_id))[-1:] == ["Hello"]
    assert outcomes(caller) == ["interrupted", "stop"]


@pytest.mark.nightly
def test_the_successor_of_the_only_worker_continues_its_runs(
    api: Api, caller: Caller, script: Script, make_worker: MakeWorker
) -> None:
    gate, first = Gate(), make_worker(**LEASE)
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    gate.wait_until_reached()
    eventually(lambda: is_present(caller, response_id))
    first.stop(signal.SIGKILL)
    make_worker(**LEASE)
    assert text_of(ended(api, response_id))[-1:] == ["Hello"]


def test_a_stream_of_a_killed_web_process_fails_and_keeps_stored_output(
    web: WebProcess, caller: Caller, script: Script, http: httpx2.Client
) -> None:
    """The client notices the broken connection at once, and the output already sent can be retrieved."""
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate))
    with (
        running_web(**LEASE) as killed,
        Api(http, url=killed.url, caller=caller).stream(model=script.model, input="Hi") as live,
    ):
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
        eventually(lambda: is_present(caller, response_id))
        killed.stop(signal.SIGKILL)
        with pytest.raises(httpx2.TransportError):
            live.rest()
    response = ended(Api(http, url=web.url, caller=caller), response_id)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert outcomes(caller) == ["interrupted"]


def test_a_paused_process_keeps_its_runs(api: Api, caller: Caller, script: Script, make_worker: MakeWorker) -> None:
    """Its connection and its lease remain valid, so that nothing is repeated."""
    gate, first = Gate(), make_worker(**LEASE)
    script.then(stream(chunk(content="Hal"), gate, chunk(content="lo"), chunk(finish="stop")))
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    gate.wait_until_reached()
    with first.suspended():
        make_worker(**LEASE)
        gate.open()
    assert text_of(ended(api, response_id)) == ["Hallo"]
    with scope.team(caller.team.pk):
        assert Response.objects.get(pk=response_id).attempt == 1


def test_a_client_of_a_run_declared_dead_is_asked_to_retry(caller: Caller, script: Script, http: httpx2.Client) -> None:
    """The process was paused for longer than its lease, so another process ended its run."""
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
        eventually(lambda: is_swept(caller))
        for process in family:
            process.resume()
        assert error(answer.result()) == (503, None, "database_unavailable")
        assert answer.result().headers["retry-after"]


# -- the sandbox service -----------------------------------------------------------------------------------------------


def test_the_model_reads_that_its_call_was_interrupted_by_a_killed_sandbox(
    caller: Caller, script: Script, http: httpx2.Client
) -> None:
    """The call is not repeated. Until the service is back, clients are asked to retry."""
    script.call(code_interpreter=SLEEPING).say("It failed.")
    body = {"model": script.model, "input": "Work.", "tools": [CODE_INTERPRETER]}
    with (
        running_sandbox(SANDBOX_ADDRESS, SANDBOX_TOKEN) as killed,
        running_web(**SANDBOX, **LEASE) as web,
        ThreadPoolExecutor() as threads,
    ):
        api = Api(http, url=web.url, caller=caller)
        answer = threads.submit(api.post, "/responses", body)
        eventually(lambda: "sleep" in names(killed))
        files = f"/containers/{ok(api.post('/containers', {'name': 'files'}))['id']}/files"
        kept = ok(api.request("POST", files, files={"file": ("kept.txt", b"Hello")}))
        killed.process.kill()
        first = ok(answer.result(PATIENCE))
        assert (first["status"], first["output"][0]["status"]) == ("completed", "failed")
        assert script.messages[1][-1]["content"] == "error: the sandbox service does not answer"
        refused = api.post("/responses", body)
        assert error(refused) == (503, None, "server_is_overloaded")
        assert refused.headers["retry-after"]
        unread, unsent = (
            api.get(f"{files}/{kept['id']}/content"),
            api.request("POST", files, files={"file": ("new.txt", b"Hello")}),
        )
        assert error(unread) == error(unsent) == (503, None, "server_is_overloaded")
        with running_sandbox(SANDBOX_ADDRESS, SANDBOX_TOKEN) as successor:
            script.call(code_interpreter=code("6 * 7")).say("42.")
            answer = threads.submit(api.post, "/responses", body)
            second = ok(answer.result(PATIENCE))
            assert (second["output"][0]["status"], script.messages[3][-1]["content"]) == ("completed", "42")
            # Its container is lost, which the next response of the chain notices at its first call.
            script.call(code_interpreter=code("1")).call(code_interpreter=code("2")).say("2.")
            third = ok(api.post("/responses", {**body, "previous_response_id": first["id"]}))
            assert [item["status"] for item in third["output"]] == ["failed", "completed", "completed"]
            assert "sleep" not in names(successor)


@pytest.mark.nightly
def test_a_call_is_not_repeated_when_sandbox_and_worker_were_killed(
    caller: Caller, script: Script, http: httpx2.Client, make_worker: MakeWorker
) -> None:
    """As when their machine loses power: the run fails, because the code may have had effects."""
    script.call(code_interpreter=SLEEPING)
    with running_sandbox(SANDBOX_ADDRESS, SANDBOX_TOKEN) as killed, running_web(**SANDBOX, **LEASE) as web:
        api, first = Api(http, url=web.url, caller=caller), make_worker(**SANDBOX, **LEASE)
        tools = [CODE_INTERPRETER]
        response_id = api.create(model=script.model, input="Work.", tools=tools, background=True)["id"]
        eventually(lambda: "sleep" in names(killed) and is_present(caller, response_id))
        # The worker first, because it would report the failed call to the model.
        first.stop(signal.SIGKILL)
        killed.process.kill()
        with running_sandbox(SANDBOX_ADDRESS, SANDBOX_TOKEN) as successor:
            make_worker(**SANDBOX, **LEASE)
            response = ended(api, response_id)
            assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
            assert "not known to be repeatable" in response["error"]["message"]
            assert "sleep" not in names(successor)

"""Networks that silently drop all packets: clients get an answer, and everything works again afterwards."""

import json
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from launcher.address import any_free_port
from tests.support.api import error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.deployment import (
    DATABASE_TIMEOUT_SECONDS,
    RECOVERY_SECONDS,
    Deployment,
    running_deployment,
    script_fixture,
)
from tests.support.machine_clock import machine_time
from tests.support.network import Network, network
from tests.support.sampling import rest_at_night
from tests.support.sandboxes import CODE_INTERPRETER, Sandbox, code, names, running_sandbox
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
IDLE_SECONDS = 4
SANDBOX_TOKEN = secrets.token_urlsafe(32)
script = script_fixture()


@pytest.fixture(scope="module")
def links() -> Iterator[Network]:
    """The network between the processes and the servers."""
    with network() as links:
        yield links


@pytest.fixture(scope="module")
def sandbox_address(links: Network) -> str:
    """The address of the sandbox service, which runs only for the tests that use it."""
    return f"{links.addresses['sandbox']}:{any_free_port()}"


@pytest.fixture(scope="module")
def sandbox(sandbox_address: str) -> Iterator[Sandbox]:
    """The sandbox service of the deployment."""
    with running_sandbox(sandbox_address, SANDBOX_TOKEN) as running:
        yield running


@pytest.fixture(scope="module")
def deployment(links: Network, sandbox_address: str) -> Iterator[Deployment]:
    """The deployment of all tests of this file, which leave it running."""
    variables = {
        "UPSTREAM_IDLE_TIMEOUT": str(IDLE_SECONDS),
        "UPSTREAM_CONNECT_TIMEOUT": "2",
        "SANDBOX_URL": sandbox_address,
        "SANDBOX_TOKEN": SANDBOX_TOKEN,
    }
    with running_deployment(network=links, **variables) as running:
        yield running
        eventually(lambda: running.unfinished() == 0)


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def test_web_answers_503_while_it_cannot_reach_postgres(deployment: Deployment, links: Network, script: Script) -> None:
    api, gate = deployment.api, Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    body = {"model": script.model, "input": "Hi", "stream": True}
    with ThreadPoolExecutor() as threads:
        # Not read by `api.stream`, which would compare it with a response that cannot be retrieved.
        whole = threads.submit(deployment.http.post, f"{deployment.url}/v1/responses", json=body, headers=api.headers)
        # The other requests follow it, because its answer is the first of the script.
        gate.wait_until_reached()
        with deployment.load(script.model) as answers:
            with links.link("web", "postgres").cut():
                gate.open()
                eventually(lambda: deployment.readiness() == 503)
                began = machine_time()
                assert error(api.get("/models")) == (503, None, "database_unavailable")
                assert machine_time() - began < 4 * DATABASE_TIMEOUT_SECONDS
                # Its end cannot be stored.
                sent = whole.result(60).text
            steady = deployment.wait_until_steady(script.model, answers)
    last = json.loads(sent.splitlines()[-2].removeprefix("data: "))
    assert (last["type"], last["error"]["code"]) == ("error", "database_unavailable")
    numbers = [int(number) for number in re.findall(r'^data: {"type":"[a-z._]+","sequence_number":(\d+)', sent, re.M)]
    assert (numbers, last["sequence_number"]) == ([*range(sent.count("event: "))], numbers[-1])
    deployment.assert_nothing_lost(answers, steady=steady, codes={"database_unavailable"})


def test_a_worker_continues_after_a_cut_from_postgres(deployment: Deployment, links: Network, script: Script) -> None:
    api, gate = deployment.api, Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    running = api.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with links.link("worker", "postgres").cut():
        gate.open()
        queued = api.create(model=script.model, input="Hi", background=True)
        # Its lease expires meanwhile.
        expired = "SELECT 1 FROM responses_response WHERE id = %s AND lease_until < now()"
        eventually(lambda: deployment.sql(expired, running["id"]))
        assert deployment.ask(script.model).status == 200
    for response in (running, queued):
        assert text_of(ended(api, response["id"], seconds=RECOVERY_SECONDS))[-1:] == ["Hello"]


@pytest.mark.nightly
def test_a_session_whose_client_has_vanished_loses_its_locks(
    deployment: Deployment, links: Network, script: Script
) -> None:
    """PostgreSQL notices it long before Linux' default of two hours."""
    url = deployment.servers.environment["DATABASE_URL"]
    program = (
        "import psycopg, sys\n"
        "connection = psycopg.connect(sys.argv[1], application_name='vanished')\n"
        "connection.execute('SELECT pg_advisory_xact_lock(1)')\n"
        "sys.stdin.read()"
    )
    locks = (
        "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND application_name = 'vanished'"
    )
    command = [*links.command("worker"), sys.executable, "-c", program, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as client:
        try:
            eventually(lambda: deployment.sql(locks))
            with links.link("worker", "postgres").cut():
                eventually(lambda: not deployment.sql(locks), seconds=2 * RECOVERY_SECONDS)
        finally:
            client.kill()


# -- Valkey ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", rest_at_night(["worker", "web"], first=1))
def test_responses_continue_without_valkey(
    deployment: Deployment, links: Network, script: Script, process: str
) -> None:
    api, gate = deployment.api, Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    running = api.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with api.follow(running["id"]) as live:
        live.next()
        with links.link(process, "valkey").cut():
            gate.open()
            assert types(live.rest())[-1] == "response.completed"
            assert deployment.ask(script.model).status == 200
            queued = api.create(model=script.model, input="Hi", background=True)
            assert text_of(ended(api, queued["id"], seconds=2 * RECOVERY_SECONDS)) == ["Hello"]
    # Scheduled tasks continue as well: the most frequent one comes every five seconds.
    runs = deployment.task_runs()
    eventually(lambda: deployment.task_runs() - runs, seconds=RECOVERY_SECONDS + 5)


@pytest.mark.nightly
def test_scheduled_tasks_continue_after_a_cut_of_the_scheduler(deployment: Deployment, links: Network) -> None:
    log = deployment.servers.log("beat")
    known = log.stat().st_size
    with links.link("beat", "valkey").cut():
        # The scheduler has closed its connection and fails to open another one.
        eventually(lambda: log.read_bytes()[known:].count(b"Timeout connecting to server"))
        runs = deployment.task_runs()
    # The most frequent task comes every five seconds.
    eventually(lambda: deployment.task_runs() - runs, seconds=RECOVERY_SECONDS + 5)


def test_scheduled_tasks_continue_while_the_scheduler_cannot_reach_postgres(
    deployment: Deployment, links: Network
) -> None:
    with links.link("beat", "postgres").cut():
        runs = deployment.task_runs()
        eventually(lambda: deployment.task_runs() - runs, seconds=RECOVERY_SECONDS + 5)


# -- the upstream ------------------------------------------------------------------------------------------------------


def test_streams_continue_after_a_short_cut_from_the_upstream(
    deployment: Deployment, links: Network, script: Script
) -> None:
    api, gates = deployment.api, [Gate(), Gate()]
    with ExitStack() as cuts, ThreadPoolExecutor() as threads:
        for gate in gates:
            script.then(stream(chunk(content="Hel"), gate, *text("lo")))
        queued = api.create(model=script.model, input="Hi", background=True)
        gates[0].wait_until_reached()
        with api.stream(model=script.model, input="Hi") as live:
            live.next()
            gates[1].wait_until_reached()
            for process in ("web", "worker"):
                cuts.enter_context(links.link(process, "upstream").cut())
            for gate in gates:
                gate.open()
            rest = threads.submit(live.rest)
            time.sleep(IDLE_SECONDS / 4)
            assert not rest.done()
            cuts.close()
            assert types(rest.result(RECOVERY_SECONDS))[-1] == "response.completed"
        assert text_of(ended(api, queued["id"], seconds=RECOVERY_SECONDS)) == ["Hello"]


def test_streams_end_with_an_error_in_a_long_cut_from_the_upstream(
    deployment: Deployment, links: Network, script: Script
) -> None:
    api, gate = deployment.api, Gate()
    script.then(stream(chunk(content="Hel"), gate))
    with api.stream(model=script.model, input="Hi") as live:
        live.next()
        gate.wait_until_reached()
        with links.link("web", "upstream").cut():
            failed = live.rest()[-1]["response"]
            assert failed["error"]["code"] == "server_error"
            refused = deployment.ask(script.model)
            assert (refused.status, refused.code) == (503, "upstream_unreachable")
        assert refused.seconds < 3 * IDLE_SECONDS
    gate.open()


# -- the sandbox service -----------------------------------------------------------------------------------------------


def test_clients_are_asked_to_retry_while_web_cannot_reach_the_sandbox(
    deployment: Deployment, links: Network, script: Script, sandbox: Sandbox
) -> None:
    body = {"model": script.model, "input": "Work.", "tools": [CODE_INTERPRETER]}
    with links.link("web", "sandbox").cut():
        began = machine_time()
        refused = deployment.api.post("/responses", body)
        assert error(refused) == (503, None, "server_is_overloaded")
        assert refused.headers["retry-after"]
        assert machine_time() - began < 2 * RECOVERY_SECONDS
        assert deployment.ask(script.model).status == 200
    script.call(code_interpreter=code("6 * 7"))
    began = machine_time()
    (call, _) = ok(deployment.api.post("/responses", body))["output"]
    assert (call["status"], script.messages[-1][-1]["content"]) == ("completed", "42")
    assert machine_time() - began < RECOVERY_SECONDS


@pytest.mark.nightly
def test_a_call_fails_while_a_worker_cannot_reach_the_sandbox(
    deployment: Deployment, links: Network, script: Script, sandbox: Sandbox
) -> None:
    """The request was accepted by a web process, which can reach it."""
    script.call(code_interpreter=code("6 * 7"))
    with links.link("worker", "sandbox").cut():
        queued = deployment.api.create(model=script.model, input="Work.", tools=[CODE_INTERPRETER], background=True)
        response = ended(deployment.api, queued["id"], seconds=3 * RECOVERY_SECONDS)
    assert (response["status"], response["output"][0]["status"]) == ("completed", "failed")
    assert "the sandbox service does not answer" in script.messages[-1][-1]["content"]


@pytest.mark.parametrize("process", rest_at_night(["worker", "web"], first=1))
def test_a_call_continues_after_a_short_cut_from_the_sandbox(
    deployment: Deployment, links: Network, script: Script, sandbox: Sandbox, process: str
) -> None:
    script.call(code_interpreter=code("import subprocess\nsubprocess.run(['sleep', '3'])\n6 * 7"))
    with running_call(deployment, script, process) as response_of:
        eventually(lambda: "sleep" in names(sandbox))
        with links.link(process, "sandbox").cut():
            # Its result is sent during the cut.
            eventually(lambda: "sleep" not in names(sandbox))
        (call, _) = response_of(RECOVERY_SECONDS)["output"]
    assert (call["status"], script.messages[-1][-1]["content"]) == ("completed", "42")


@pytest.mark.nightly
@pytest.mark.parametrize("process", rest_at_night(["worker", "web"], first=1))
def test_a_call_ends_in_a_long_cut_from_the_sandbox(
    deployment: Deployment, links: Network, script: Script, sandbox: Sandbox, process: str
) -> None:
    """On both sides: the model reads that the call has failed, and the program is stopped. The call is not repeated."""
    script.call(
        code_interpreter=code("import subprocess\nopen('log', 'a').write('x')\nsubprocess.run(['sleep', '100'])")
    )
    with running_call(deployment, script, process) as response_of:
        eventually(lambda: "sleep" in names(sandbox))
        with links.link(process, "sandbox").cut():
            response = response_of(3 * RECOVERY_SECONDS)
            assert (response["status"], response["output"][0]["status"]) == ("completed", "failed")
            assert script.messages[-1][-1]["content"] == "error: the sandbox service does not answer"
            eventually(lambda: "sleep" not in names(sandbox), seconds=2 * RECOVERY_SECONDS)
    # Its container has survived, with its files.
    script.call(code_interpreter=code("print(open('log').read())"))
    with running_call(deployment, script, process, previous_response_id=response["id"]) as response_of:
        (call, _) = response_of(RECOVERY_SECONDS)["output"]
    assert (call["status"], script.messages[-1][-1]["content"].splitlines()[0]) == ("completed", "x")


@contextmanager
def running_call(
    deployment: Deployment, script: Script, process: str, **body: str
) -> Iterator[Callable[[float], dict[str, Any]]]:
    """Create a response that runs code; yields a function that waits some seconds for it."""
    api = deployment.api
    request = {"model": script.model, "input": "Work.", "tools": [CODE_INTERPRETER], **body}
    if process == "worker":
        queued = api.create(**request, background=True)
        yield lambda seconds: ended(api, queued["id"], seconds=seconds)
        return
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(api.create, **request)
        yield answer.result

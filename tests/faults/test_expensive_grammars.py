"""More expensive inputs than the compute pool can process: neither the web process nor other teams are slowed down."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.support import documents
from tests.support.api import Api, Caller, MakeCaller, ok
from tests.support.chunks import text
from tests.support.memory import ProcessTreeMeter
from tests.support.upstream import Script, ScriptedUpstream, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
REQUESTS = 60
# The default of COMPUTE_PROCESSES.
PROCESSES = 3
# Of a team in the queue, in addition to the computations in progress.
WAITING = 32
# For one answer on a busy machine.
PATIENCE = 10.0
FORMS: list[dict[str, Any]] = [{}, {"stream": True}, {"background": True}]


@pytest.fixture(params=["uvicorn", "daphne"])
def server(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process, which is killed at the end instead of waiting for the grammars."""
    with running_web(server=request.param) as process:
        yield process
        process.stop(signal.SIGKILL)


def lark(definition: str) -> dict[str, Any]:
    grammar = {"type": "grammar", "syntax": "lark", "definition": definition}
    return {"type": "custom", "name": "write", "format": grammar}


def expensive(number: int) -> dict[str, Any]:
    """Return a tool whose grammar takes its whole time limit: each optional symbol doubles its rules."""
    options = range(number, number + 16)
    rules = "\n".join(f'x{option}: "{option}"' for option in options)
    return lark(f"start: {' '.join(f'[x{option}]' for option in options)}\n{rules}")


def grammar_body(number: int) -> dict[str, Any]:
    """Return a request with an expensive grammar."""
    return {"model": "any", "input": "Hi", "tools": [expensive(number)]}


def document_body(number: int) -> dict[str, Any]:
    """Return a request with an expensive document."""
    return asking_about(documents.slow_pdf(), f"{number}.pdf")


def asking_about(content: bytes, filename: str) -> dict[str, Any]:
    """Return a request with a document."""
    file = {"type": "input_file", "filename": filename, "file_data": documents.data_url(content, "application/pdf")}
    return {"model": "any", "input": [{"role": "user", "content": [file]}]}


def post(server: WebProcess, caller: Caller, body: dict[str, Any]) -> httpx2.Response:
    """Send one of the expensive requests."""
    headers = {"Authorization": f"Bearer {caller.secret}"}
    return httpx2.post(f"{server.url}/v1/responses", json=body, headers=headers, timeout=600)


@pytest.mark.parametrize("body", [grammar_body, document_body])
def test_a_flood_of_expensive_inputs_delays_neither_probes_nor_other_teams(
    server: WebProcess,
    caller: Caller,
    make_caller: MakeCaller,
    script: Script,
    http: httpx2.Client,
    body: Callable[[int], dict[str, Any]],
) -> None:
    script.always(stream(*text("Hello")))
    other = Api(http, url=server.url, caller=make_caller())
    with ThreadPoolExecutor(REQUESTS) as threads, ProcessTreeMeter(server.pid) as meter:
        bodies = [{**body(number), **FORMS[number % len(FORMS)], "model": script.model} for number in range(REQUESTS)]
        flood = [threads.submit(post, server, caller, body) for body in bodies]
        try:
            eventually(lambda: sum(task.done() for task in flood) >= REQUESTS - WAITING - PROCESSES)
            refused = [task.result() for task in flood if task.done()]
            for number in range(5):
                assert httpx2.get(f"{server.url}/livez", timeout=PATIENCE).status_code == 200
                tools = [lark(f'start: "yes {number}"')]
                ok(other.post("/responses", {"model": script.model, "input": "Hi", "tools": tools}))
                ok(other.post("/responses", {**asking_about(documents.pdf("Hi"), "a.pdf"), "model": script.model}))
            # All of this happened during the flood of requests.
            assert sum(not task.done() for task in flood) > WAITING / 2
        finally:
            server.stop(signal.SIGKILL)
    statuses = Counter(answer.status_code for answer in refused)
    # On a slow machine, computations end before the last requests arrive, which then take their places.
    assert statuses[503] > statuses.total() / 2
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused if answer.status_code == 503)
    # The program that starts the processes, and these.
    assert meter.most_processes <= 1 + PROCESSES
    assert meter.most_bytes < 512 * MIB

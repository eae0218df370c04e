"""`manage.py web` on SIGTERM: it finishes or hands over its runs, and clients lose nothing."""

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import orjson
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.mcp_requests import calling, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.websocket_client import open_socket
from tests.support.work import SERVED, paths_of_work
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.slow
SERVERS = pytest.mark.parametrize("server", ["uvicorn", "daphne"])


@contextmanager
def leaving(caller: Caller, *, delay: str = "0", seconds: str = "0", server: str = "uvicorn", **variables: str) -> Any:
    """Run a web process that is to be stopped, with a client of it."""
    with (
        running_web(server=server, DRAIN_DELAY_SECONDS=delay, DRAIN_SECONDS=seconds, **variables) as process,
        httpx2.Client(timeout=PATIENCE) as http,
    ):
        yield process, Api(http, url=process.url, caller=caller)


def is_ready(process: WebProcess) -> bool:
    """Return whether `/readyz` reports that the process serves requests."""
    return httpx2.get(f"{process.url}/readyz", timeout=PATIENCE).status_code == 200


@contextmanager
def streaming(api: Api, **body: Any) -> Iterator[Iterator[bytes]]:
    """Create a streamed response and yield its bytes, without the checks that send further requests to its process."""
    content = orjson.dumps({"stream": True, **body})
    headers = {**api.headers, "Content-Type": "application/json"}
    with api._http.stream("POST", f"{api._url}/responses", content=content, headers=headers) as answer:
        yield answer.iter_raw()


def read_cut(api: Api, gate: Gate, stop: Callable[[], object], **body: Any) -> list[bytes]:
    """Create a streamed response, stop its process in the middle, and return the events that arrived."""
    raw = b""
    with streaming(api, **body) as pieces:
        while b"output_text.delta" not in raw:
            raw += next(pieces)
        gate.wait_until_reached()
        stop()
        try:
            for piece in pieces:
                raw += piece
        except httpx2.TransportError:
            pass
        else:
            pytest.fail("the answer ended as if it were complete")
    return [event + b"\n\n" for event in raw.split(b"\n\n") if event.startswith(b"event: ")]


def number_of(event: bytes) -> int:
    """Return the sequence number of an event."""
    return int(orjson.loads(event.partition(b"\ndata: ")[2])["sequence_number"])


def read_on(api: Api, response_id: str, *, after: int) -> list[bytes]:
    """Return the events of a response after one of them, up to its end."""
    url = f"{api._url}/responses/{response_id}"
    query = {"stream": "true", "starting_after": str(after)}
    with api._http.stream("GET", url, params=query, headers=api.headers) as answer:
        raw = b"".join(answer.iter_raw())
    assert raw.endswith(b"data: [DONE]\n\n")
    return [event + b"\n\n" for event in raw.split(b"\n\n") if event.startswith(b"event: ")]


def log_of(caller: Caller, response_id: str) -> bytes:
    """Return the event log of a response."""
    with scope.team(caller.team.pk):
        response = Response.objects.get(pk=response_id)
        return b"".join(batch.frames for batch in response.event_batches.order_by("first_sequence"))


@SERVERS
def test_a_closed_stream_continues_on_another_process_without_gap_or_repetition(
    server: str, api: Api, caller: Caller, script: Script, worker: WorkerProcess
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    with leaving(caller, server=server) as (process, old):
        codes: list[int] = []
        first = read_cut(old, gate, lambda: codes.append(process.stop()), model=script.model, input="Hi")
    assert codes == [0]
    response_id = orjson.loads(first[0].partition(b"\ndata: ")[2])["response"]["id"]
    rest = read_on(api, response_id, after=number_of(first[-1]))
    assert [number_of(event) for event in [*first, *rest]] == list(range(len(first) + len(rest)))
    assert b"".join([*first, *rest]) == log_of(caller, response_id)
    final = api.retrieve(response_id)
    assert (final["status"], final["background"], text_of(final)) == ("completed", False, ["Hal", "Hello"])
    with scope.team(caller.team.pk):
        outcomes = [one.outcome for one in UsageRecord.objects.order_by("id")]
    assert outcomes == ["interrupted", "stop"]


@SERVERS
def test_a_repetition_gets_the_whole_stream_of_a_request_whose_process_was_stopped(
    server: str, api: Api, caller: Caller, script: Script, worker: WorkerProcess
) -> None:
    """The run continues on a worker, and a request with the same idempotency key follows it."""
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    keys = {"Idempotency-Key": uuid.uuid4().hex}
    with leaving(caller, server=server) as (process, old):
        codes: list[int] = []
        old.headers |= keys
        first = read_cut(old, gate, lambda: codes.append(process.stop()), model=script.model, input="Hi")
    assert codes == [0]
    response_id = orjson.loads(first[0].partition(b"\ndata: ")[2])["response"]["id"]
    body = {"model": script.model, "input": "Hi", "stream": True}
    repeated = api.post("/responses", body, headers=keys)
    assert repeated.headers["idempotent-replayed"] == "true"
    assert repeated.content.startswith(b"".join(first))
    assert repeated.content.endswith(b"data: [DONE]\n\n")
    assert text_of(api.retrieve(response_id)) == ["Hal", "Hello"]
    assert api.post("/responses", body, headers=keys).content == repeated.content


def test_a_run_is_handed_over_between_two_turns(
    reaching: Api, caller: Caller, script: Script, served: McpServer, worker: WorkerProcess
) -> None:
    """Nothing is repeated: the tool call ends in the stopping process, and a worker executes the next turn."""
    script.then(calling(("box__wait", "{}"))).say("Done.")
    with leaving(caller, seconds="20", EGRESS_ALLOW="127.0.0.1") as (process, old):
        with old.stream(model=script.model, input="Go.", tools=[tool(served)]) as live:
            response_id = live.next()["response"]["id"]
            served.wait_for_calls(1)
            process._process.send_signal(signal.SIGTERM)
            served.opened.set()
            with pytest.raises(httpx2.TransportError):
                live.rest()
        process.stop()
    assert text_of(ended(reaching, response_id)) == ["Done."]
    assert served.names() == ["wait"]
    assert len(script.received) == 2


@SERVERS
def test_a_stopping_process_fails_its_probe_and_serves_during_the_drain_delay(
    server: str, caller: Caller, script: Script
) -> None:
    script.say("Hello")
    with leaving(caller, delay="30", server=server) as (process, old):
        process._process.send_signal(signal.SIGTERM)
        eventually(lambda: not is_ready(process))
        answer = httpx2.get(f"{process.url}/readyz", timeout=PATIENCE)
        assert answer.json() == {"status": "not ready", "reasons": ["the process is shutting down"]}
        assert old.create(model=script.model, input="Hi")["status"] == "completed"
        # A second signal ends the wait.
        assert process.stop() == 0


@SERVERS
def test_a_draining_process_refuses_new_work_and_finishes_what_it_has(
    server: str, caller: Caller, script: Script
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with leaving(caller, seconds="30", server=server) as (process, old):
        with streaming(old, model=script.model, input="Hi", store=False) as pieces:
            gate.wait_until_reached()
            process._process.send_signal(signal.SIGTERM)
            body = {"model": script.model, "input": "Hi"}
            refused = eventually(lambda: _refused(process, caller, body))
            assert refused is not None
            assert refused.json()["error"]["code"] == "server_is_shutting_down"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            assert httpx2.get(f"{process.url}/livez", timeout=PATIENCE).status_code == 200
            refusals = {path: old.post(path, b"{").status_code for path in paths_of_work()}
            assert {path: status for path, status in refusals.items() if status not in {503, 529}} == {}
            for path in SERVED:
                assert old.post(path, b"").status_code in {400, 401, 403, 404}
            url = f"{process.url.replace('http', 'ws', 1)}/v1/responses"
            with pytest.raises(InvalidStatus):
                connect(url, additional_headers=old.headers, open_timeout=PATIENCE)
            gate.open()
            assert b"event: response.completed\n" in b"".join(pieces)
        assert process.stop() == 0


def _refused(process: WebProcess, caller: Caller, body: Any) -> httpx2.Response | None:
    # The unknown parameter is refused before the process could refuse the work.
    headers = {"Authorization": f"Bearer {caller.secret}"}
    answer = httpx2.post(f"{process.url}/v1/responses", json={**body, "unknown": 1}, headers=headers, timeout=PATIENCE)
    return answer if answer.status_code == 503 else None


@SERVERS
@pytest.mark.parametrize("stored", [True, False])
def test_a_json_request_that_is_not_finished_in_time_asks_for_a_retry(
    server: str, stored: bool, caller: Caller, script: Script
) -> None:
    gate, answers = Gate(), list[httpx2.Response]()
    script.then(stream(chunk(content="Hel"), gate))
    with leaving(caller, server=server) as (process, old):
        body = {"model": script.model, "input": "Hi", "store": stored}
        asking = threading.Thread(target=lambda: answers.append(old.post("/responses", body)))
        asking.start()
        gate.wait_until_reached()
        assert process.stop() == 0
        asking.join()
    (answer,) = answers
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_shutting_down")
    assert int(answer.headers["retry-after"]) >= 1
    with scope.team(caller.team.pk):
        assert Response.objects.get().status == "failed"


def test_an_unstored_stream_that_is_not_finished_in_time_fails(caller: Caller, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate))
    with leaving(caller) as (process, old), streaming(old, model=script.model, input="Hi", store=False) as pieces:
        gate.wait_until_reached()
        process.stop()
        *_, last, done, _ = b"".join(pieces).split(b"\n\n")
    assert last.startswith(b"event: response.failed\n")
    assert b"The server is shutting down. Please try again" in last
    assert done == b"data: [DONE]"


@SERVERS
def test_sockets_are_closed_with_a_code_and_a_reason(
    server: str, api: Api, caller: Caller, script: Script, worker: WorkerProcess
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate)).say("Hello")
    with (
        leaving(caller, server=server) as (process, _),
        open_socket(process.url, secret=caller.secret) as busy,
        open_socket(process.url, secret=caller.secret) as idle,
    ):
        busy.ask(model=script.model, input="Hi")
        response_id = busy.next()["response"]["id"]
        gate.wait_until_reached()
        assert process.stop() == 0
        error = busy.rest()[-1]
        assert (error["status"], error["error"]["code"]) == (503, "server_is_shutting_down")
        assert f"/v1/responses/{response_id}?stream=true" in error["error"]["message"]
        for socket in (busy, idle):
            with pytest.raises(ConnectionClosed) as closed:
                socket.next()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "shutting down" in closed.value.rcvd.reason) == (1012, True)
    assert text_of(ended(api, response_id)) == ["Hal", "Hello"]


def test_followers_of_a_stopping_process_continue_on_another(
    api: Api, caller: Caller, script: Script, worker: WorkerProcess
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    made = api.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with leaving(caller) as (process, old), old.follow(made["id"]) as live:
        last = live.next()["sequence_number"]
        process.stop()
        with suppress(httpx2.TransportError):
            while True:
                last = live.next()["sequence_number"]
    gate.open()
    numbers = [number_of(event) for event in read_on(api, made["id"], after=last)]
    assert numbers == list(range(last + 1, last + 1 + len(numbers)))


@pytest.mark.nightly
def test_a_run_that_was_handed_over_ends_if_its_client_does_not_come_back(
    caller: Caller, script: Script, worker: WorkerProcess, api: Api
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate)).then(stream(chunk(content="Hal"), Gate()))
    with scope.every_team():
        type(caller.team).objects.filter(pk=caller.team.pk).update(disconnect_grace_seconds=0)
    with leaving(caller) as (process, old):
        first = read_cut(old, gate, process.stop, model=script.model, input="Hi")
    response_id = orjson.loads(first[0].partition(b"\ndata: ")[2])["response"]["id"]
    assert ended(api, response_id, seconds=30)["status"] == "cancelled"


@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
def test_a_stopping_server_accepts_no_new_requests(server: str, caller: Caller, script: Script) -> None:
    with running_web(server=server) as process, open_socket(process.url, secret=caller.secret) as socket:
        # A stored response would be continued by a worker.
        gate = Gate()
        script.then(stream(chunk(content="Hel"), gate, *text("lo")[1:]))
        socket.ask(model=script.model, input="Hi", store=False)
        gate.wait_until_reached()
        socket.ask(model=script.model, input="never", store=False)
        process.stop()
        last = socket.rest()[-1]
        assert (last["type"], last["error"]["code"]) == ("error", "server_is_shutting_down")
        with pytest.raises(ConnectionClosed):
            list(socket._connection)
    with scope.team(caller.team.pk):
        assert Response.objects.get().status == "failed"

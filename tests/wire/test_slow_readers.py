"""Clients that read slowly or not at all are disconnected after a while, and use little memory until then."""

import base64
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
import psutil
import pytest

from tenants import services
from tests.support.api import Api, Caller, ok
from tests.support.chunks import text
from tests.support.raw_http import RawConnection
from tests.support.upstream import Answer, Script, ScriptedUpstream, running_upstream, stream
from tests.support.usage_records import usage_record
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web

PIECES, PIECE_BYTES = 200, 100_000
FORWARDED_PIECES = 500
pytestmark = pytest.mark.slow
WORDS = "word " * (PIECE_BYTES // 5)
SECONDS = 2
LEAVES = "disconnecting a client that reads too slowly"
# More than the kernel buffers for a client. There are more clients than database connections.
FILE_BYTES, CLIENTS = 12_000_000, 6


@pytest.fixture(scope="module", params=["daphne", "uvicorn"])
def impatient(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process that gives a client two seconds to read something."""
    with running_web(server=request.param, SLOW_READER_SECONDS=str(SECONDS)) as process:
        yield process


def ask(web: WebProcess, caller: Caller, script: Script) -> RawConnection:
    """Request a stream of 20 MB, and return the connection, from which nothing has been read."""
    script.then(stream(*text(*[WORDS] * PIECES)))
    return post(web, caller, "/responses", {"model": script.model, "input": "Hi", "stream": True})


def post(web: WebProcess, caller: Caller, path: str, body: dict[str, Any]) -> RawConnection:
    """Send a request, and return the connection, from which nothing has been read."""
    connection, raw = connect(web), orjson.dumps(body)
    headers = {"Authorization": f"Bearer {caller.secret}", "Content_Type": "application/json"}
    connection.send_head("POST", f"/v1{path}", Content_Length=len(raw), **headers)
    connection.send(raw)
    return connection


def connect(web: WebProcess) -> RawConnection:
    """Connect a client with a small receive buffer."""
    connection = RawConnection(web.url)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    return connection


def request(web: WebProcess, caller: Caller, path: str) -> RawConnection:
    """Request an answer, and return the connection, from which nothing has been read."""
    connection = connect(web)
    connection.send_head("GET", f"/v1{path}", Authorization=f"Bearer {caller.secret}")
    return connection


def received_until_the_end(peer: RawConnection) -> int:
    """Read until the server has closed the connection, and return the number of bytes."""
    received = 0
    with suppress(ConnectionResetError):
        while data := peer.socket.recv(2**20):
            received += len(data)
    return received


def test_a_client_that_reads_nothing_is_disconnected_in_bounded_memory(
    impatient: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    process, api = psutil.Process(impatient.pid), Api(http, url=impatient.url, caller=caller)
    before = process.memory_info().rss
    with ask(impatient, caller, script) as peer:
        peaks = []

        def has_left() -> bool:
            peaks.append(process.memory_info().rss - before)
            return LEAVES in impatient.output()

        eventually(has_left)
        # Its text is kept for the row, and the first request of a process costs several megabytes.
        assert max(peaks) < 2 * PIECES * PIECE_BYTES
        assert received_until_the_end(peer) < PIECES * PIECE_BYTES / 2
    # Its run continues, as after any disconnect.
    (response,) = api.get("/responses").json()["data"]
    eventually(lambda: api.retrieve(response["id"])["status"] == "completed")
    assert len(api.retrieve(response["id"])["output"][0]["content"][0]["text"]) == PIECES * PIECE_BYTES


@dataclass(frozen=True, kw_only=True)
class Forwarded:
    """A request whose 50 MB answer is forwarded from the upstream; Linux may buffer up to 36 MB for a connection."""

    path: str
    body: dict[str, Any]
    script: Script


@pytest.fixture(scope="module")
def speech_upstream() -> Iterator[ScriptedUpstream]:
    """A scripted upstream that generates speech."""
    with running_upstream(path="/v1/audio/speech") as running:
        yield running


@pytest.fixture(params=["chat", "speech"])
def forwarded(
    request: pytest.FixtureRequest, script: Script, speech_upstream: ScriptedUpstream, database: None
) -> Iterator[Forwarded]:
    """A stream of chat completions, or speech."""
    if request.param == "chat":
        script.then(stream(*text(*[WORDS] * FORWARDED_PIECES)))
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": script.model, "messages": messages, "stream": True}
        yield Forwarded(path="/chat/completions", body=body, script=script)
        return
    with speech_upstream.script() as spoken:
        services.add_upstream(name="slow speech", base_url=speech_upstream.url, models=[spoken.model])
        spoken.then(Answer(pieces=[bytes(PIECE_BYTES)] * FORWARDED_PIECES, content_type="audio/mpeg", done=False))
        body = {"model": spoken.model, "input": "Hi", "voice": "alloy"}
        yield Forwarded(path="/audio/speech", body=body, script=spoken)


def test_reading_from_the_upstream_stops_while_a_client_does_not_read(
    impatient: WebProcess, caller: Caller, forwarded: Forwarded
) -> None:
    process, before = psutil.Process(impatient.pid), impatient.written
    memory, peaks = process.memory_info().rss, []
    with post(impatient, caller, forwarded.path, forwarded.body) as peer:

        def has_left() -> bool:
            peaks.append(process.memory_info().rss - memory)
            return LEAVES in impatient.output(since=before)

        eventually(has_left)
        # Its text is kept for the row, and the first request of a process costs several megabytes.
        assert max(peaks) < 2 * PIECES * PIECE_BYTES
        assert received_until_the_end(peer) < PIECES * PIECE_BYTES / 2
    assert forwarded.script.wait_for_call().was_closed()
    assert usage_record(caller).outcome == "interrupted"


def test_a_websocket_that_reads_nothing_is_closed(
    impatient: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    script.then(stream(*text(*[WORDS] * PIECES)))
    created = orjson.dumps({"type": "response.create", "model": script.model, "input": "Hi"})
    before = impatient.written
    with connect(impatient) as peer:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": 13}
        key = base64.b64encode(bytes(16)).decode()
        peer.send_head(
            "GET", "/v1/responses", Authorization=f"Bearer {caller.secret}", Sec_WebSocket_Key=key, **upgrade
        )
        peer.socket.recv(4096)
        # A text frame whose mask is zero.
        peer.send(b"\x81" + bytes([0x80 | len(created)]) + bytes(4) + created)
        eventually(lambda: LEAVES in impatient.output(since=before))
        assert received_until_the_end(peer) < PIECES * PIECE_BYTES / 2


@pytest.fixture(params=["file", "response"])
def path(
    request: pytest.FixtureRequest, impatient: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> str:
    """The path of a large answer: the content of a file, or the JSON of a response."""
    api = Api(http, url=impatient.url, caller=caller)
    if request.param == "file":
        content = {"file": ("zeros.txt", bytes(FILE_BYTES))}
        stored = ok(api.request("POST", "/files", files=content, data={"purpose": "user_data"}))
        return f"/files/{stored['id']}/content"
    script.then(stream(*text(*[WORDS] * (FILE_BYTES // PIECE_BYTES))))
    return f"/responses/{api.create(model=script.model, input='Hi')['id']}"


@pytest.mark.nightly
def test_clients_that_do_not_read_a_json_answer_or_file_are_disconnected(
    impatient: WebProcess, http: httpx2.Client, caller: Caller, script: Script, path: str
) -> None:
    before, api = impatient.written, Api(http, url=impatient.url, caller=caller)
    script.say("Hello")
    with ExitStack() as stack:
        peers = [stack.enter_context(request(impatient, caller, path)) for _ in range(CLIENTS)]

        def have_been_left() -> bool:
            # The others read nothing.
            for peer in peers[: CLIENTS // 2]:
                with suppress(ConnectionResetError):
                    peer.socket.recv(1)
            return impatient.output(since=before).count(LEAVES) == CLIENTS

        # Meanwhile others are served: no client keeps a connection to the database.
        assert api.create(model=script.model, input="Hi")["status"] == "completed"
        eventually(have_been_left)
        assert max(map(received_until_the_end, peers)) < FILE_BYTES


@pytest.mark.parametrize("path", ["response"], indirect=True)
def test_a_client_that_reads_slowly_gets_its_answer(impatient: WebProcess, caller: Caller, path: str) -> None:
    received, before = 0, impatient.written
    with request(impatient, caller, path) as peer:
        began = time.monotonic()
        while received < FILE_BYTES:
            received += len(peer.socket.recv(2**16))
            # The whole answer takes longer than the time limit for reading something.
            time.sleep(max(0.0, began + 1.5 * SECONDS * received / FILE_BYTES - time.monotonic()))
    assert LEAVES not in impatient.output(since=before)

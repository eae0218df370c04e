"""WebSocket messages that are too large or too many: they neither fill the server's memory nor stop other clients."""

import base64
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat

import httpx2
import orjson
import pytest

from core.http.socket_messages import TRY_AGAIN_LATER
from server.settings import MAX_BODY_BYTES
from tests.support.api import Caller, MakeCaller
from tests.support.chunks import text
from tests.support.memory import MemoryMeter
from tests.support.raw_http import RawConnection
from tests.support.upstream import Script, ScriptedUpstream, stream
from tests.support.waiting import HANGS_AFTER
from tests.support.web import WebProcess, running_web
from tests.support.websocket_client import open_socket

pytestmark = pytest.mark.slow
MIB = 1024 * 1024
TOO_LARGE = 100 * MIB
TEXT, CONTINUATION, CLOSE = 1, 0, 8
LAST, COMPRESSED = 0x80, 0x40
MESSAGE_TOO_BIG = 1009
# The part of a message that the server has read, in up to two copies, and some margin.
HELD = 3 * MAX_BODY_BYTES


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def fresh_web(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A fresh web process: memory freed by earlier requests would hide new allocations."""
    with running_web(server=request.param) as process:
        yield process


@contextmanager
def opened(web: WebProcess, caller: Caller, **headers: str) -> Iterator[RawConnection]:
    """Open a WebSocket whose frames the test writes itself."""
    with RawConnection(web.url) as peer:
        key = base64.b64encode(bytes(16)).decode()
        peer.send_head(
            "GET",
            "/v1/responses",
            Authorization=f"Bearer {caller.secret}",
            Connection="Upgrade",
            Upgrade="websocket",
            Sec_WebSocket_Key=key,
            Sec_WebSocket_Version=13,
            **headers,
        )
        assert peer.response().status == 101
        yield peer


def frame(kind: int, size: int) -> bytes:
    """Return the beginning of a frame, in front of its content, with a mask that changes nothing."""
    return bytes([kind, 0x80 | 127]) + size.to_bytes(8) + bytes(4)


def one_frame() -> Iterator[bytes]:
    yield frame(TEXT | LAST, TOO_LARGE)
    yield from repeat(b"x" * MIB, TOO_LARGE // MIB)


def endless_fragments() -> Iterator[bytes]:
    yield frame(TEXT, MIB) + b"x" * MIB
    yield from repeat(frame(CONTINUATION, MIB) + b"x" * MIB)


def expanding_frame() -> Iterator[bytes]:
    """Yield a message of 100 kB that becomes one of 100 MiB when it is decompressed."""
    compressor = zlib.compressobj(wbits=-15)
    packed = b"".join(compressor.compress(b"x" * MIB) for _ in range(TOO_LARGE // MIB))
    packed = (packed + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")
    yield frame(TEXT | LAST | COMPRESSED, len(packed)) + packed


def close_code_after(peer: RawConnection, message: Iterator[bytes]) -> int:
    """Send a message until the server closes the connection, and return the code of its close frame."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        sending = threads.submit(lambda: all(map(peer.send, message)))
        received = b""
        while len(received) < 4:
            piece = peer.socket.recv(1024)
            assert piece, "the connection was closed without a code"
            received += piece
        # Clients that do not stop now are disconnected.
        sending.result(timeout=HANGS_AFTER)
    assert received[0] == CLOSE | LAST, received
    return int.from_bytes(received[2:4])


@pytest.mark.parametrize("message", [one_frame, endless_fragments], ids=["one frame", "endless fragments"])
def test_a_message_of_more_than_64_mib_closes_only_its_connection(
    fresh_web: WebProcess, caller: Caller, script: Script, message: "type[Iterator[bytes]]"
) -> None:
    script.say("Hello").say("Hello")
    with open_socket(fresh_web.url, secret=caller.secret) as other, opened(fresh_web, caller) as peer:
        with ThreadPoolExecutor(max_workers=1) as threads, MemoryMeter(fresh_web.pid) as memory:
            code = threads.submit(close_code_after, peer, message())
            assert other.respond(model=script.model, input="Hi")["status"] == "completed"
            assert code.result(timeout=HANGS_AFTER) == MESSAGE_TOO_BIG
        assert other.respond(model=script.model, input="Hi")["status"] == "completed"
    assert memory.most < HELD


def test_a_compressed_message_that_expands_beyond_64_mib_closes_its_connection(caller: Caller, web: WebProcess) -> None:
    # daphne agrees to no compression.
    offer = {"Sec_WebSocket_Extensions": "permessage-deflate"}
    with opened(web, caller, **offer) as peer, MemoryMeter(web.pid) as memory:
        assert close_code_after(peer, expanding_frame()) == MESSAGE_TOO_BIG
    assert memory.most < HELD


def test_messages_of_a_client_that_does_not_read_do_not_fill_the_memory(
    fresh_web: WebProcess, caller: Caller, script: Script
) -> None:
    # Refused, with an error that repeats the input.
    event = orjson.dumps({"type": "response.steer", "previous_response_id": "resp_1", "input": "x" * 8 * MIB})
    message = frame(TEXT | LAST, len(event)) + event
    with (
        opened(fresh_web, caller) as peer,
        MemoryMeter(fresh_web.pid) as memory,
        open_socket(fresh_web.url, secret=caller.secret) as other,
    ):
        peer.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            all(map(peer.send, repeat(message, 64)))
        assert other.respond(model=script.say("Hello").model, input="Hi")["status"] == "completed"
    assert memory.most < HELD


def create_event(size: int, model: str) -> bytes:
    """Return a frame with a `response.create` event whose input has a size."""
    event = orjson.dumps({"type": "response.create", "model": model, "input": "x" * size})
    return frame(TEXT | LAST, len(event)) + event


def test_large_messages_of_many_connections_do_not_fill_the_memory(
    fresh_web: WebProcess, caller: Caller, make_caller: MakeCaller, script: Script
) -> None:
    # Incomplete: each keeps the part that the server has read.
    message = create_event(60 * MIB, "unknown")[:-1]
    script.always(stream(*text("Hello")))
    with ExitStack() as stack, MemoryMeter(fresh_web.pid) as memory:
        peers = [stack.enter_context(opened(fresh_web, caller)) for _ in range(24)]
        threads = stack.enter_context(ThreadPoolExecutor(max_workers=24))
        for peer in peers:
            peer.socket.settimeout(5)
            threads.submit(_send_until_paused, peer, message)
        for other in (caller, make_caller()):
            with open_socket(fresh_web.url, secret=other.secret) as socket:
                assert socket.respond(model=script.model, input="Hi")["status"] == "completed"
        with open_socket(fresh_web.url, secret=make_caller().secret) as socket:
            assert socket.respond(model=script.model, input="x" * 5 * MIB)["status"] == "completed"
        assert httpx2.get(f"{fresh_web.url}/livez", timeout=HANGS_AFTER).status_code == 200
        threads.shutdown()
    assert memory.most < HELD


def _send_until_paused(peer: RawConnection, message: bytes) -> None:
    with suppress(TimeoutError):
        peer.send(message)


@pytest.mark.nightly
def test_complete_large_messages_are_served_one_after_the_other(fresh_web: WebProcess, caller: Caller) -> None:
    def ask(_: int) -> object:
        with open_socket(fresh_web.url, secret=caller.secret) as socket:
            # Complete, and quickly refused.
            socket.ask(model="unknown", input="x" * 30 * MIB)
            return socket.next()["error"]["code"]

    with ThreadPoolExecutor(max_workers=6) as threads:
        assert {*threads.map(ask, range(6))} == {"string_above_max_length"}


def empty_fragments() -> Iterator[bytes]:
    yield frame(TEXT, 0)
    yield from repeat(frame(CONTINUATION, 0) * 10_000, 50)


def test_empty_fragments_take_no_memory(fresh_web: WebProcess, caller: Caller) -> None:
    with opened(fresh_web, caller) as peer, MemoryMeter(fresh_web.pid) as memory:
        all(map(peer.send, empty_fragments()))
    # 500,000 fragments: less than 32 bytes for each. A process that was just forked has most of its code still to load.
    assert memory.most < 15 * MIB


def test_a_fragmented_message_closes_its_connection_without_free_memory(fresh_web: WebProcess, caller: Caller) -> None:
    with opened(fresh_web, caller) as peer, opened(fresh_web, caller) as second:
        # Together more than the share of a team, 96 MiB.
        for sender in (peer, second):
            assert sender.send(frame(TEXT, 40 * MIB) + b"x" * 40 * MIB)
        assert close_code_after(second, iter([frame(CONTINUATION, 20 * MIB) + b"x" * 20 * MIB])) == TRY_AGAIN_LATER
        # Its reserved memory is free again.
        with opened(fresh_web, caller) as third:
            assert third.send(create_event(50 * MIB, "unknown"))


def test_an_unfinished_message_releases_its_memory(caller: Caller, upstream: ScriptedUpstream) -> None:
    with running_web(BODY_WINDOW_SECONDS="1") as web, opened(web, caller) as peer:
        assert peer.send(frame(TEXT, 20 * MIB) + b"x" * MIB)
        assert peer.socket.recv(2)[0] == CLOSE | LAST

"""Requests leave no reference cycles, whose memory would not be freed until one of the rare collections."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from core.admission.request_bodies import REJECTED
from core.errors import Overloaded
from providers.clients import close_clients
from server.asgi import application
from tests.support.api import Caller
from tests.support.upstream import Script

REQUESTS = 10
# Not everything: event loops of other tests end here as well, and transports of asyncio are cycles, unlike uvloop's.
OF_REQUESTS = ("core.", "responses.", "tenants.", "django.", "rest_framework.")


@contextmanager
def no_cycles() -> Iterator[None]:
    """Check that the block leaves no unreachable cycles with objects of requests."""
    # Finalizers of the first collection leave garbage for the second one.
    gc.collect()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        names = {f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {name for name in names if name.startswith(OF_REQUESTS)}


async def answer(caller: Caller, method: str, path: str, body: bytes = b"", **entries: Any) -> int:
    """Send a request to the application and return the status of its answer."""
    headers = [(b"authorization", f"Bearer {caller.secret}".encode()), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers], "client": ("127.0.0.1", 1), "scheme": "http",
        "http_version": "1.1", "root_path": "", **entries,
    }  # fmt: skip
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await application(scope, receive, send)
    return statuses[0]


async def check(send: Callable[[], Any], *, status: int) -> None:
    """Check one kind of request."""
    # The first requests import modules, open connections and fill caches.
    for _ in range(3):
        assert await send() == status
    with no_cycles():
        for _ in range(REQUESTS):
            assert await send() == status
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_a_request_without_a_key_leaves_no_reference_cycles(caller: Caller) -> None:
    await check(
        lambda: answer(caller, "POST", "/v1/responses", b"{}", **{REJECTED: Overloaded("Try again.")}), status=503
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "status"), [("/v1/responses", 200), ("/v1/models", 200), ("/v1/responses/resp_unknown", 404)]
)
async def test_a_view_leaves_no_reference_cycles(caller: Caller, path: str, status: int) -> None:
    await check(lambda: answer(caller, "GET", path), status=status)


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"{", b"{}", b'{"model":"unknown","input":3}'])
async def test_a_rejected_request_leaves_no_reference_cycles(caller: Caller, body: bytes) -> None:
    await check(lambda: answer(caller, "POST", "/v1/responses", body), status=400)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_leaves_no_reference_cycles(caller: Caller, script: Script, streamed: bool) -> None:
    async def create() -> int:
        script.say("Hello")
        body = {"model": script.model, "input": "Hi", "stream": streamed}
        return await answer(caller, "POST", "/v1/responses", orjson.dumps(body))

    await check(create, status=200)
    await close_clients()

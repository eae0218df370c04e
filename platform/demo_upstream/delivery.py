"""From steps to the socket: sends, waits, hangs and cuts, and stops at once when the client goes away."""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from demo_upstream.steps import Cut, Hang, Send, Step, Wait

# aiohttp tells a handler of a lost connection only if its runner was made so; looking works with every runner.
LOOK_EVERY = 0.02


class ClientGoneError(ConnectionError):
    """The client closed the connection before the answer was complete."""


async def deliver(request: web.Request, steps: Sequence[Step], *, content_type: str) -> web.StreamResponse:
    """Answer with the bytes of `steps`, chunked; the headers leave with the first of them."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    for step in steps:
        await _perform(step, request, response)
    return response


async def _perform(step: Step, request: web.Request, response: web.StreamResponse) -> None:
    match step:
        case Send(data):
            _check_connected(request)
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
        case Wait(seconds):
            await _wait(request, seconds)
        case Hang():
            await _wait(request, float("inf"))
        case Cut():
            # Closed, not aborted: what was sent still arrives, and then the end comes too early.
            if request.transport is not None:
                request.transport.close()


async def _wait(request: web.Request, seconds: float) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while (left := end - clock()) > 0:
        await asyncio.sleep(min(left, LOOK_EVERY))
        _check_connected(request)


def _check_connected(request: web.Request) -> None:
    if request.transport is None or request.transport.is_closing():
        raise ClientGoneError

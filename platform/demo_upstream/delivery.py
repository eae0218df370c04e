"""Delivery of an answer: performs its steps on the socket.

A disconnect cancels the handler (`handler_cancellation`, see `server.py`), which ends every wait.
"""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from demo_upstream.steps import Cut, Delay, Hang, Send, Step


async def deliver(request: web.Request, steps: Sequence[Step], *, content_type: str) -> web.StreamResponse:
    """Answer with the bytes of `steps`, chunked. The headers are sent with the first bytes."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    for step in steps:
        await _perform(step, request, response)
    return response


async def _perform(step: Step, request: web.Request, response: web.StreamResponse) -> None:
    match step:
        case Send(data):
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
        case Delay(seconds):
            await asyncio.sleep(seconds)
        case Hang():
            await asyncio.get_running_loop().create_future()
        case Cut():
            # Closed, not aborted: bytes that were sent before still arrive.
            if request.transport is not None:
                request.transport.close()

"""From steps to the socket: sends, waits, hangs and cuts.

A client that goes away cancels the handler (`handler_cancellation` of the runner, see `server.py`), so that a wait or a
hang ends at once and nothing here has to look for it.
"""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from demo_upstream.steps import Cut, Delay, Hang, Send, Step


async def deliver(request: web.Request, steps: Sequence[Step], *, content_type: str) -> web.StreamResponse:
    """Answer with the bytes of `steps`, chunked; the headers leave with the first of them."""
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
            # Closed, not aborted: what was sent still arrives, and then the end comes too early.
            if request.transport is not None:
                request.transport.close()

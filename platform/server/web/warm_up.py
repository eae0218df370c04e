"""Warm-up of a process at its start, for which the first request would otherwise wait.

`/readyz` of a web process returns 200 only afterwards, and a worker claims nothing before.
"""

import asyncio
import importlib
import logging
from contextlib import suppress

import orjson
from django.conf import settings
from django.db import Error as DatabaseError
from django.urls import resolve

from core.admission.overload import admission
from core.db.db_threads import connect_threads, in_db_thread
from core.errors import ApiError
from core.work.notifications import loop_notifications
from providers.clients import clients_for
from responses.runs.store import Change, writer
from responses.schema.create import parse_create
from tenants import directory
from tenants.authentication import authenticate

logger = logging.getLogger(__name__)
# Otherwise their first use would import them. The client of MCP takes most of a second of CPU time.
_MODULES = ("mcp", "mcp.client.streamable_http", "mcp.client.sse", "mcp_types", "anyio._core._sockets")
_RETRY_SECONDS = 0.2
_MAX_UPSTREAMS = 20


class _Progress:
    is_pending = False


def is_pending() -> bool:
    """Return true from `load_modules` until the end of `connect`."""
    return _Progress.is_pending


def load_modules(*, with_urls: bool = False) -> None:
    """Import modules that are otherwise imported late, and the console and the API if `with_urls`; needs no server."""
    if settings.WARM_UP:
        _Progress.is_pending = True
        for name in _MODULES:
            importlib.import_module(name)
        if with_urls:
            resolve("/v1/responses")


async def connect() -> None:
    """Open the connections of this process, once the database answers, and run the code that every request runs."""
    admission.start()
    # `up` starts the process before the database is prepared.
    while _Progress.is_pending:
        try:
            await _rehearse()
        except DatabaseError:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        except Exception:
            # The process serves its requests all the same; the first ones take longer.
            logger.exception("the warm-up failed")
        _Progress.is_pending = False


async def _rehearse() -> None:
    await connect_threads()
    for upstream in await in_db_thread(lambda: directory.upstreams(limit=_MAX_UPSTREAMS)):
        # Loads the certificates of authorities.
        clients_for(upstream)
    with suppress(ApiError):
        await authenticate("Bearer sk-warm-up")
    parse_create(orjson.loads(b'{"model": "warm-up", "input": "Hello", "stream": true}'))
    await writer.submit(Change(team_id=""))
    with loop_notifications().listening("warm-up", asyncio.Event()):
        pass

"""Check of an upstream: whether it answers, and which models it lists."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from core.errors import Failure, UpstreamError
from providers.clients import UpstreamFailed, close_clients, get
from providers.event_stream import read_document
from tenants import directory

TIMEOUT_SECONDS = 30

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCheck:
    """Answer of an upstream to a request for its models. `error` is empty if it listed them."""

    models: Sequence[str] = ()
    error: str = ""
    took_ms: int = 0

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """Return the wanted models that the upstream does not list. Unknown, and so empty, after an error."""
        return [] if self.error else [name for name in wanted if name not in {*self.models, "*"}]


def run_sync(work: Coroutine[Any, Any, T], *, seconds: float = TIMEOUT_SECONDS) -> T:
    """Run a coroutine that calls an upstream in a new event loop. Raises `TimeoutError`."""
    # Clients and their connections belong to a loop, so they are closed before it ends.

    async def run() -> T:
        try:
            return await asyncio.wait_for(work, seconds)
        finally:
            await close_clients()

    return asyncio.run(run())


async def list_models(upstream: directory.UpstreamEndpoint) -> Sequence[str]:
    """Return the models that an upstream lists, which costs nothing. Raises `UpstreamFailed`."""
    async with get(upstream, "/models") as answer:
        body = await read_document(answer)
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list):
        raise UpstreamFailed(Failure.of(UpstreamError("The upstream did not return a list of models.")))
    return sorted({row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)})


async def check_upstream(upstream: directory.UpstreamEndpoint) -> UpstreamCheck:
    """Request the models of an upstream, which costs nothing."""
    began = time.monotonic()
    try:
        names = await list_models(upstream)
    except UpstreamFailed as failed:
        return UpstreamCheck(error=failed.failure.message)
    return UpstreamCheck(models=names, took_ms=round((time.monotonic() - began) * 1000))

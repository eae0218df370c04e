"""`GET /v1/models`: the models of the platform, and the models that the upstream of the route `*` lists.

People choose a model from this list, so it must be fast: a process asks an upstream at most once a minute, and the
models of an upstream that is down or slow are left out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from core import clock
from core.db import wait_limit
from core.db.db_threads import in_db_thread
from core.errors import Failure, UnknownModel, UpstreamError
from engine.events.types import Body
from providers.clients import UpstreamFailed, get, read_bytes
from providers.event_stream import check_object, decode
from providers.http_client import Answer
from tenants import directory
from tenants.directory import UpstreamEndpoint, Wildcard
from tenants.principal import Principal

_FRESH_SECONDS = 60.0
_RETRY_SECONDS = 10.0
_TIMEOUT_SECONDS = 3.0
_MAX_BYTES = 4 * 1024 * 1024
_MAX_MODELS = 2000
_MAX_NAME = 200
_MAX_LISTS = 1000
_TOO_LARGE = Failure.of(UpstreamError("The model's server sent too much."))

Models = Mapping[str, int | None]
"""Names of models with their Unix times of creation, or None if a time is unknown."""


class ModelLists:
    """Cached model lists of upstreams. An old list is used until a new list was received."""

    def __init__(
        self, fetch: Callable[[UpstreamEndpoint], Awaitable[Models]], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._now = now
        self._known: dict[tuple[str, str, str], Models] = {}
        self._due: dict[tuple[str, str, str], float] = {}
        self._fetching: dict[tuple[str, str, str], asyncio.Task[None]] = {}

    async def find(self, upstream: UpstreamEndpoint) -> Models | None:
        """Return the models of an upstream; None if it has never returned a list."""
        # The URL and the API key are part of the cache key, because the models may change when they change.
        key = (upstream.id, upstream.base_url, upstream.api_key)
        if self._due.get(key, 0.0) <= self._now() and key not in self._fetching:
            if len(self._due) >= _MAX_LISTS:
                self._due.clear()
                self._known.clear()
            task = self._fetching[key] = asyncio.create_task(
                self._refresh(key, upstream), context=wait_limit.unrelated()
            )
            task.add_done_callback(lambda _: self._fetching.pop(key, None))
        if key not in self._known and key in self._fetching:
            # Shielded, because other requests wait for the same list.
            await asyncio.shield(self._fetching[key])
        return self._known.get(key)

    async def _refresh(self, key: tuple[str, str, str], upstream: UpstreamEndpoint) -> None:
        self._due[key] = self._now() + _RETRY_SECONDS
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                self._known[key] = await self._fetch(upstream)
        except (UpstreamFailed, TimeoutError):
            return
        self._due[key] = self._now() + _FRESH_SECONDS


async def fetch_models(upstream: UpstreamEndpoint) -> Models:
    """Request the list of an upstream. Raises `UpstreamFailed`."""
    async with get(upstream, "/models") as response:
        document = await _document(response)
    rows = document.get("data")
    return dict(_readable(rows if isinstance(rows, list) else []))


def _readable(rows: list[Any]) -> Iterable[tuple[str, int | None]]:
    for row in rows[:_MAX_MODELS]:
        name = row.get("id") if isinstance(row, dict) else None
        # Skip names that requests cannot contain, and `*`, which is the wildcard here.
        if isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable() and name != "*":
            created = row.get("created")
            yield name, created if isinstance(created, int) and not isinstance(created, bool) else None


async def _document(response: Answer) -> Body:
    content = bytearray()
    async for piece in read_bytes(response):
        content += piece
        if len(content) > _MAX_BYTES:
            raise UpstreamFailed(_TOO_LARGE)
    return decode(bytes(content), check=check_object)


_lists = ModelLists(fetch_models)


async def list_models(caller: Principal) -> list[Body]:
    """Return the models that the caller may use, by name."""
    own = await in_db_thread(lambda: directory.list_models(caller))
    wildcard = await directory.wildcard.aget(caller.team_id, caller.key_id)
    if wildcard is None:
        return own
    by_name = {model["id"]: model for model in own}
    for name, created in (await _names(wildcard) or {}).items():
        if caller.may_use(name):
            by_name.setdefault(name, _public(wildcard, name, created))
    return [by_name[name] for name in sorted(by_name)]


async def retrieve_model(caller: Principal, name: str) -> Body:
    """Return one model that the caller may use. Raises `NotFound`."""
    for model in await in_db_thread(lambda: directory.list_models(caller)):
        if model["id"] == name:
            return model
    wildcard = await directory.wildcard.aget(caller.team_id, caller.key_id)
    if wildcard is not None and caller.may_use(name) and 0 < len(name) <= _MAX_NAME and name != "*":
        names = await _names(wildcard)
        # If there is no list, the upstream may have the model, and requests for the model would be sent there.
        if names is None or name in names:
            return _public(wildcard, name, (names or {}).get(name))
        # Some servers have more models than they list, such as dated or fine-tuned ones.
        if not wildcard.upstream_model and await _exists(wildcard.upstream, name):
            return _public(wildcard, name, None)
    raise UnknownModel(f"The model '{name}' does not exist.", param="model")


async def _names(wildcard: Wildcard) -> Models | None:
    # All names stand for this model, so the other models of the upstream cannot be used.
    if wildcard.upstream_model:
        return {wildcard.upstream_model: None}
    return await _lists.find(wildcard.upstream)


async def _exists(upstream: UpstreamEndpoint, name: str) -> bool:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS), get(upstream, f"/models/{quote(name, safe='')}") as response:
            return (await _document(response)).get("id") == name
    except (UpstreamFailed, TimeoutError):
        return False


def _public(wildcard: Wildcard, name: str, created: int | None) -> Body:
    created = clock.unix(wildcard.created) if created is None else created
    return {"id": name, "object": "model", "created": created, "owned_by": wildcard.owner, "shutdown_date": None}

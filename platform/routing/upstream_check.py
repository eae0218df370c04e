"""Check of an upstream: whether it answers, which models it lists, and what it says about them."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from core.errors import Failure, UpstreamError
from core.redaction import redact
from providers.clients import UpstreamFailed, close_clients, get
from providers.event_stream import read_document
from providers.http_client import ErrorStatus
from providers.upstream_errors import MAX_MESSAGE, parse_error
from routing.detection import ModelDetails, details_of, entries_of
from routing.native_lists import native_details
from tenants import directory

TIMEOUT_SECONDS = 30
_NO_LIST = "The upstream has no list of models at this address."

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCheck:
    """Answer of an upstream to a request for its models. `error` is empty if it listed them.

    `status` and `words` are the status and the text of its error, without its credentials; None and empty if it sent
    none. `details` is what it says about the models, by name.
    """

    models: Sequence[str] = ()
    error: str = ""
    took_ms: int = 0
    status: int | None = None
    words: str = ""
    details: Mapping[str, ModelDetails] = field(default_factory=dict)

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """Return the wanted models that the upstream does not list. Unknown, and so empty, after an error."""
        return [] if self.error else [name for name in wanted if name not in {*self.models, "*"}]

    def context_windows(self, wanted: Sequence[str]) -> dict[str, int]:
        """Return the context windows of the wanted models that the upstream states."""
        found = ((name, self.details[name].context_window) for name in wanted if name in self.details)
        return {name: window for name, window in found if window is not None}

    def document(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the check as JSON, without the details of models that are not wanted."""
        return {
            "models": list(self.models),
            "error": self.error,
            "took_ms": self.took_ms,
            "status": self.status,
            "words": self.words,
            "missing": self.missing(wanted),
            "context_windows": self.context_windows(wanted),
        }


def run_sync(work: Coroutine[Any, Any, T], *, seconds: float = TIMEOUT_SECONDS) -> T:
    """Run a coroutine that calls an upstream in a new event loop. Raises `TimeoutError`."""
    # Clients and their connections belong to a loop, so they are closed before it ends.

    async def run() -> T:
        try:
            return await asyncio.wait_for(work, seconds)
        finally:
            await close_clients()

    return asyncio.run(run())


async def list_models(upstream: directory.UpstreamEndpoint) -> Sequence[Mapping[str, Any]]:
    """Return the models that an upstream lists, which costs nothing. Raises `UpstreamFailed`."""
    async with get(upstream, "/models") as answer:
        body = await read_document(answer)
    entries = entries_of(body)
    if entries is None:
        raise UpstreamFailed(Failure.of(UpstreamError("The upstream did not return a list of models.")))
    return entries


async def check_upstream(upstream: directory.UpstreamEndpoint) -> UpstreamCheck:
    """Request the models of an upstream, which costs nothing."""
    began = time.monotonic()
    try:
        entries = await list_models(upstream)
    except UpstreamFailed as failed:
        status, words = error_words(upstream, failed)
        # The general text is about an unknown model.
        error = _NO_LIST if status == HTTPStatus.NOT_FOUND else failed.failure.message
        return UpstreamCheck(error=error, status=status, words=words)
    took_ms = round((time.monotonic() - began) * 1000)
    native = await native_details(upstream, entries)
    details = {entry["id"]: details_of(entry).with_known(native.get(entry["id"], ModelDetails())) for entry in entries}
    return UpstreamCheck(models=sorted(details), took_ms=took_ms, details=details)


def error_words(upstream: directory.UpstreamEndpoint, failed: UpstreamFailed) -> tuple[int | None, str]:
    """Return the status and the text of an upstream's error, without its credentials. None and "" if it sent none."""
    cause = failed.__cause__
    if not isinstance(cause, ErrorStatus):
        return None, ""
    # The page of a proxy has no words of the server.
    is_page = isinstance(cause.body, str) and cause.body.lstrip().startswith("<")
    text = "" if is_page else parse_error(cause.body).message
    # Shortened afterwards, so that no part of a credential is left at the end.
    return cause.status, redact(text, upstream.secrets)[:MAX_MESSAGE]

"""Details of failed requests to upstreams: for operators in the console, and one line of the log for each failure."""

import logging
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from structlog.contextvars import get_contextvars

from core.errors import Failure
from core.origin import origin
from core.redaction import redact, redact_unknown
from engine.turn import Attempt
from providers.http_client import ErrorStatus, NoAnswer, RequestFailed
from providers.upstream_errors import error_names
from tenants.directory import Route, UpstreamEndpoint

logger = logging.getLogger(__name__)
MAX_BODY = 2000
"""Characters of an upstream's answer that are stored."""
_MAX_ERROR = 300
UpstreamDetail = Mapping[str, Any]
"""Details of a failed request for operators: `cause`, `address`, and if known `error`, `status` and `body`."""


def request_id() -> str:
    """Return the id of the API request that the current code serves; empty outside of requests."""
    # A run in a worker, or on a WebSocket, has bound the id of the request that created it.
    return str(get_contextvars().get("request_id") or origin().request_id)


def failed_request(upstream: UpstreamEndpoint, path: str, error: RequestFailed) -> UpstreamDetail:
    """Return the details of a request without a usable answer."""
    detail: dict[str, Any] = {"cause": cause_of(error), "address": _address(upstream, path)}
    if isinstance(error, ErrorStatus):
        detail |= {"status": error.status} | _text("error", ", ".join(error_names(error.body)), upstream, _MAX_ERROR)
        return detail | _text("body", _body(error.body), upstream, MAX_BODY)
    return detail | _text("error", error.connection_error, upstream, _MAX_ERROR)


def failed_answer(upstream: UpstreamEndpoint, path: str, failure: Failure, *, status: int | None) -> UpstreamDetail:
    """Return the details of an answer that began well, and was cut or contained an error."""
    return {
        "cause": "the answer failed",
        "address": _address(upstream, path),
        "status": status,
        **_text("body", failure.message, upstream, MAX_BODY),
    }


def cause_of(error: RequestFailed) -> str:
    """Return in few words why there is no usable answer."""
    below = error.__cause__
    # The SDK's client wraps the error of the connection in two others.
    while below is not None and not isinstance(below, aiohttp.ClientError | OSError) and below.__cause__ is not None:
        below = below.__cause__
    os_error = getattr(below, "os_error", below)
    match error, below:
        case ErrorStatus(status=status), _:
            return f"HTTP {status}"
        case NoAnswer(), _:
            return "no answer in time"
        case _, aiohttp.ClientConnectorDNSError():
            return "host name not found"
        case _, aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            return "TLS error"
        case _, TimeoutError():
            return "connection timed out"
    if isinstance(os_error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(os_error, ssl.SSLError):
        return "TLS error"
    return "connection broken" if error.was_sent else "no connection"


def log_failure(route: Route, failure: Failure, attempt: Attempt | None) -> None:
    """Write the line of a request that has failed because of its upstream."""
    detail = (attempt.failure if attempt is not None else None) or {}
    logger.warning(
        "the upstream of a request failed",
        extra={
            "model": route.model,
            "upstream": route.upstream.name,
            # The body may contain content, which is never logged.
            "cause": ": ".join(filter(None, [detail.get("cause", ""), detail.get("error", "")])) or failure.code,
            "address": detail.get("address"),
            "code": failure.code,
            "request_id": request_id(),
        },
    )


def _address(upstream: UpstreamEndpoint, path: str) -> str:
    url = upstream.base_url.rstrip("/") + path if path.startswith("/") else path
    return redact_unknown(redact(url, upstream.secrets))


def _body(body: object) -> str:
    return body if isinstance(body, str) else orjson.dumps(body, default=str).decode()


def _text(name: str, text: str, upstream: UpstreamEndpoint, most: int) -> dict[str, str]:
    # Shortened afterwards, so that no part of a credential is left at the end.
    text = redact_unknown(redact(text[: 8 * most], upstream.secrets)).replace("\0", "")
    return {name: text if len(text) <= most else f"{text[:most]}…"} if text else {}

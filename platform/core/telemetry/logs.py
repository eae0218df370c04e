"""Lines of the log: the ids of the current request, redaction, and the access log."""

import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from typing_extensions import override

from core.origin import Caller, origin
from core.redaction import redact_unknown
from core.telemetry import tracing

logger = logging.getLogger("access")
# Requested every few seconds by load balancers and monitoring.
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})


def add_request(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids of the current request and span to a line, as a processor of structlog."""
    # Background runs have bound the id of the request that created them.
    if request_id := origin().request_id:
        event.setdefault("request_id", request_id)
    event.update(tracing.log_ids())
    return event


def redact_line(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove secrets from a line, as the last processor of structlog before the writer."""
    # Libraries log URLs and headers. Django adds the request, and the writer would show its path.
    return {
        name: value if value is None or isinstance(value, bool | int | float) else _redacted(value)
        for name, value in event.items()
    }


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redact_unknown(value)
        case dict():
            return {name: _redacted(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_redacted(inner) for inner in value]
    return redact_unknown(repr(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAccess:
    """A request to the API that was answered with an error. `key_hint` is the beginning and end of an unknown key."""

    method: str
    path: str
    route: str
    request_id: str
    status: int
    code: str
    message: str
    model: str
    team_id: str
    key_id: str
    key_hint: str


@dataclass(slots=True)
class Access:
    """A request or WebSocket connection, which becomes one line of the access log at its end."""

    method: str
    path: str
    request_id: str
    caller: Caller
    status: int | None = None
    bytes_sent: int = 0
    is_complete: bool = False
    started: float = field(default_factory=time.perf_counter)

    def sent(self, message: Any) -> None:
        """Record an ASGI message that was sent to the client."""
        match message["type"]:
            case "http.response.body":
                self.bytes_sent += len(message.get("body", b""))
                self.is_complete = not message.get("more_body", False)
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
            case "websocket.send":
                # Characters instead of bytes for text, which is nearly the same and costs nothing.
                self.bytes_sent += len(message.get("text") or message.get("bytes") or b"")
            case "websocket.accept":
                self.status = 101
            case "websocket.close":
                self.is_complete = True
                # Servers answer a connection that was not accepted with 403.
                self.status = self.status or 403

    def write(self) -> None:
        """Write the line. A request without a complete answer was ended by its client."""
        level = logging.DEBUG if self.path in _PROBES else logging.INFO
        if not logger.isEnabledFor(level):
            return
        # Created here: `logger.log` would search the stack for its caller, which takes half of the time of a line.
        record = logging.LogRecord(logger.name, level, __file__, 0, "request", None, None)
        record.__dict__.update(
            method=self.method,
            path=redact_unknown(self.path),
            status=self.status,
            ms=round((time.perf_counter() - self.started) * 1000, 1),
            bytes=self.bytes_sent,
            request_id=self.request_id,
            team=self.caller.team_id or None,
            key=self.caller.key_id or None,
            code=self.caller.code or None,
            disconnected=not self.is_complete,
        )
        logger.handle(record)


class AccessFormatter(logging.Formatter):
    """Formats lines of the access log like other lines of the log, in a fraction of the time."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        given = record.__dict__
        line = {
            "event": record.msg,
            **{name: given[name] for name in _FIELDS},
            "level": record.levelname.lower(),
            "logger": record.name,
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        }
        return orjson.dumps(line).decode()


_FIELDS = ("method", "path", "status", "ms", "bytes", "request_id", "team", "key", "code", "disconnected")

"""Origin of the current request: client address, user agent and request id.

Used by the audit log and by API keys that are limited to networks. Set at the edge
(`core.http.asgi.with_request_id`, in tests by the site's middleware) in a context variable, which threads of
`core.db.db_threads` and of Django inherit.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address

from core.records import record

_MAX_AGENT = 200


@dataclass(slots=True)
class Caller:
    """Team, key, model and error of a request, for the access log and for the list of refused requests.

    Team and key are empty until it has been authenticated. `message` is the text of the error without an upstream's
    text, which may quote content.
    """

    team_id: str = ""
    key_id: str = ""
    model: str = ""
    code: str = ""
    message: str = ""


def note_model(model: str) -> None:
    """Note the model of the current request."""
    current = origin()
    if current.request_id:
        current.caller.model = model[:200]


def note_error(code: str | None, message: str) -> None:
    """Note the error with which the current request is answered."""
    current = origin()
    # Outside of requests there is one origin for all.
    if current.request_id:
        current.caller.code, current.caller.message = code or "", message


@record
class Origin:
    """Sender of a request. All fields are empty outside of requests, in periodic tasks and commands."""

    address: str = ""
    agent: str = ""
    request_id: str = ""
    caller: Caller = field(default_factory=Caller, compare=False)


_current: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039 - frozen


def origin() -> Origin:
    """Return the origin of the current request."""
    return _current.get()


class use_origin:  # noqa: N801 - a context manager
    """Set the origin that `origin()` returns inside the block."""

    # Not a generator of `contextlib`, which takes 0.3 KB more per open stream.
    __slots__ = ("_token", "_value")

    def __init__(self, value: Origin) -> None:
        self._value = value

    def __enter__(self) -> None:
        self._token = _current.set(self._value)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def use_own_caller(request_id: str, *, team_id: str = "", key_id: str = "") -> use_origin:
    """Note model and error of one request of a connection, or of one line of a batch, apart from the others."""
    caller = Caller(team_id=team_id, key_id=key_id)
    return use_origin(replace(origin(), request_id=request_id, caller=caller))


def origin_of(*, peer: str, forwarded_for: str, agent: str, request_id: str, trusted_proxies: int) -> Origin:
    """Return the origin of a request.

    The address is the client address that the outermost trusted proxy saw, or the peer if `trusted_proxies` is 0.
    """
    # Clients can send any X-Forwarded-For; proxies append to it. Only as many entries as we have proxies are trusted,
    # counted from the right.
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    address = _normalized(hops[-min(trusted_proxies, len(hops))] if trusted_proxies and hops else peer)
    return Origin(address=address, agent=agent[:_MAX_AGENT], request_id=request_id)


# Parsing takes 0.5 % of the CPU of a request, and most requests come from few addresses.
@lru_cache(maxsize=1024)
def _normalized(text: str) -> str:
    """Return an address in its usual form, or an empty string for anything else."""
    try:
        found = ip_address(text)
    except ValueError:
        return ""
    # A dual-stack socket reports IPv4 clients as ::ffff:1.2.3.4, which would match no IPv4 network of a key.
    return str(getattr(found, "ipv4_mapped", None) or found)

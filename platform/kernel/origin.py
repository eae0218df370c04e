"""Where the request that is being served comes from: for the audit log, and for whoever admits by address.

Set once at the edge (`kernel.asgi.identified`, and the site's middleware for tests), read anywhere below without being
handed down; threads of `kernel.db_threads` and of Django see it too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address

_MOST_AGENT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A request's sender. Empty where there is no request: periodic tasks and commands."""

    address: str = ""
    agent: str = ""
    request_id: str = ""


_current: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039 - frozen


def origin() -> Origin:
    """Where the current request comes from."""
    return _current.get()


@contextmanager
def coming_from(sender: Origin) -> Iterator[None]:
    """Inside of the block, requests come from there."""
    token = _current.set(sender)
    try:
        yield
    finally:
        _current.reset(token)


def sender(*, peer: str, forwarded_for: str, agent: str, request_id: str, trusted_proxies: int) -> Origin:
    """The origin of a request. `forwarded_for` counts only as far as proxies of ours have written it: the address that
    the outermost of `trusted_proxies` saw, and the peer where there is none."""
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    address = peer
    if trusted_proxies and hops:
        address = hops[-min(trusted_proxies, len(hops))]
    return Origin(address=_valid(address), agent=agent[:_MOST_AGENT], request_id=request_id)


def _valid(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return ""
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)

"""Bound on the requests and streams that one API key has open in this process.

Each request takes memory and a connection until it ends, and a faulty client may open more and more of them. Keys are
distinguished by the value of their header, without a lookup, so the refusal of a request costs neither a query nor the
reading of its body.
"""

from collections import Counter

from django.conf import settings

from core.admission.request_bodies import REJECTED
from core.errors import RateLimited, TooManyOpenRequests, retry_headers
from core.http.asgi import App, Receive, Scope, Send, header

_RETRY_SECONDS = 1.0
# By the hash of the header, so that no secret is kept.
_open: Counter[int] = Counter()


def refusal(authorization: str, *, counted: int = 0) -> RateLimited | None:
    """Return the error for a new request with this header if its key has too many open requests, or None.

    `counted` is the number of the key's open requests that do not count.
    """
    if not authorization or _open[hash(authorization)] - counted < settings.MAX_OPEN_REQUESTS_PER_KEY:
        return None
    return TooManyOpenRequests(
        f"Your API key already has {settings.MAX_OPEN_REQUESTS_PER_KEY:,} requests and streams open on this server "
        "process, which is the maximum. Wait until some of them have ended.",
        headers=retry_headers(_RETRY_SECONDS),
    )


def check(authorization: str, *, counted: int = 0) -> None:
    """Raise `RateLimited` if the key of this header has too many open requests."""
    if (error := refusal(authorization, counted=counted)) is not None:
        raise error


class OpenRequest:
    """Counts a request with a header until the end of the block."""

    # Not a generator of `contextlib`, which takes 0.5 KB more per open stream.
    __slots__ = ("_key",)

    def __init__(self, authorization: str) -> None:
        self._key = hash(authorization)

    def __enter__(self) -> None:
        _open[self._key] += 1

    def __exit__(self, *_: object) -> None:
        _open[self._key] -= 1
        if not _open[self._key]:
            del _open[self._key]


def with_bound(guard: App) -> App:
    """Wrap a `BodyGuard` so that it refuses requests of keys that have too many open requests."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        authorization = header(scope, b"authorization")
        if (error := refusal(authorization)) is not None:
            # The guard sends the error so that clients receive it while they are sending their body.
            scope.setdefault(REJECTED, error)
            await guard(scope, receive, send)
            return
        with OpenRequest(authorization):
            await guard(scope, receive, send)

    return bounded

"""Limits of connections and of a request's URL and headers, the same under every server."""

import resource
from collections.abc import Iterable

from django.conf import settings

from core.errors import ApiError, BadRequest, Overloaded, RequestTimeout
from core.http.rendering import error_response

MAX_URL_BYTES = 32 * 1024
MAX_HEAD_BYTES = 64 * 1024
"""Limit of the request line and all headers together, and again of the framing of a body: chunk lines and trailers."""
MAX_HEADERS = 500
# Longer than clients and proxies keep connections (60 s by default in nginx and most load balancers): a request that
# is sent while the server closes its connection fails, and a client may not repeat it.
KEEP_ALIVE_SECONDS = 75
"""Time for which a connection without a request is kept."""
_RESERVED_FILES = 5000
_SHORT = 200


def short_path(url: bytes) -> bytes:
    """Return the beginning of a URL's path, for the answer to a request that is rejected."""
    path = url[:_SHORT].split(b"?")[0].decode("ascii", "ignore").encode()
    return path if path.startswith(b"/") else b"/"


def framing_bytes(chunk: bytes) -> int:
    """Return the number of bytes that a client may send for a part of a body, including its framing.

    A client may send each byte as a chunk of its own, which takes six bytes. The limit allows this, but not much more.
    """
    return 16 + 3 * len(chunk)


def is_chunked_only(coding: bytes) -> bool:
    """Return true for `chunked`. With another Transfer-Encoding, a proxy may see another end of the body than we do."""
    return coding.strip().lower() == b"chunked"


def has_valid_handshake(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return true if the headers of a WebSocket are in ASCII, as libraries expect without a check."""
    return all(value.isascii() for name, value in headers if name.lower().startswith(b"sec-websocket-"))


def max_connections() -> int:
    """Return how many connections of clients a process accepts."""
    # The remaining files are for connections to upstreams, the database and Redis. If clients could use all files, the
    # process could not even accept a connection to refuse it.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(settings.MAX_CONNECTIONS, files - min(files // 2, _RESERVED_FILES))


def invalid_request() -> ApiError:
    """Return the error of bytes that are not an HTTP request."""
    return BadRequest("Invalid HTTP request.")


def upgrade_with_body() -> ApiError:
    """Return the error of a body that would be read before the connection becomes a WebSocket."""
    return BadRequest("A request for an upgrade cannot have a body.")


def slow_head() -> ApiError:
    """Return the error of a request whose headers are not complete in time."""
    return RequestTimeout("The request headers arrived too slowly.")


def too_many_connections() -> ApiError:
    """Return the error of a connection beyond the limit."""
    return Overloaded("The server has too many connections. Please try again.")


def raw_response(error: ApiError) -> bytes:
    """Return the answer to a request that no application can handle, and count it; the connection has to be closed."""
    response = error_response(error)
    response.headers["Content-Length"] = str(len(response.content))
    response.headers["Connection"] = "close"
    head = [f"HTTP/1.1 {response.status_code} {response.reason_phrase}"]
    head += [f"{name}: {value}" for name, value in response.items()]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + response.content

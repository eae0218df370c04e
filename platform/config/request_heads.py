"""Limits of a request's URL and headers, the same under every server."""

MAX_URL_BYTES = 32 * 1024
MAX_HEAD_BYTES = 64 * 1024
"""Limit of the request line and all headers together."""
MAX_HEADERS = 500
_SHORT = 200


def short_path(url: bytes) -> bytes:
    """Return the beginning of a URL's path, for the answer to a request that is rejected."""
    path = url[:_SHORT].split(b"?")[0].decode("ascii", "ignore").encode()
    return path if path.startswith(b"/") else b"/"

"""Basic authentication: credentials that operators write into the URL of a server."""

from base64 import b64encode
from urllib.parse import unquote, urlsplit

PREFIX = "Basic "


def split_credentials(url: str) -> tuple[str, str]:
    """Return the URL without `user:password@`, and the `Authorization` header for these credentials; empty if none."""
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    user, _, password = credentials.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}"
    return parts._replace(netloc=host).geturl(), PREFIX + b64encode(pair.encode()).decode()

"""Removal of known secrets from texts of other servers: some repeat a request's credentials in their error messages."""

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlsplit

REDACTED = "[redacted]"
SECRET_NAME = re.compile(r"auth|cookie|key|pass|secret|session|token", re.IGNORECASE)
"""Matches names of headers and parameters whose values are credentials."""
# Shorter values occur in ordinary text by chance, so they are not redacted.
_SHORTEST_SECRET = 8
# Servers also show the beginning and the end of a key, with something like asterisks between them.
_BEGINNING = 4
_MASKED = r"[\w.-]{{0,{0}}}?(?:\*{{2,}}|•{{2,}}|…|\.{{3,}})[\w-]{{0,{0}}}"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets: as they are, encoded for a URL, or masked in the middle.

    A text that is shortened must be redacted first: otherwise part of a secret may be at its end.
    """
    # Of "Bearer sk-1", the key itself is also a secret.
    values = {part for secret in secrets for part in (secret, secret.rpartition(" ")[2])}
    for value in sorted(values, key=len, reverse=True):
        if len(value) < _SHORTEST_SECRET:
            continue
        text = text.replace(value, REDACTED).replace(quote(value, safe=""), REDACTED)
        masked = re.escape(value[:_BEGINNING]) + _MASKED.format(len(value))
        text = re.sub(masked, REDACTED, text)
    return text


def secrets_of_url(url: str) -> list[str]:
    """Return the credentials in a URL: the password, and the values of parameters named like credentials."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query) if SECRET_NAME.search(name)]
    return [*filter(None, [parts.password]), *named]

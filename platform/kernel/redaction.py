"""Removal of known secrets from texts of other servers: some repeat a request's credentials in their error messages."""

import html
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from kernel import basic_auth

REDACTED = "[redacted]"
SECRET_NAME = re.compile(r"auth|cookie|key|pass|secret|session|token", re.IGNORECASE)
"""Matches names of headers and parameters whose values are credentials."""
# Shorter values occur in ordinary text by chance, so they are not redacted.
_SHORTEST_SECRET = 8
# Servers also show the beginning and the end of a key, with something like asterisks between them.
_BEGINNING = 4
_MASKED = r"[\w.-]{{0,{0}}}?(?:\*{{2,}}|•{{2,}}|…|\.{{3,}})[\w-]{{0,{0}}}"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets: as they are, encoded, escaped, or masked in the middle.

    A text that is shortened must be redacted first: otherwise part of a secret may be at its end.
    """
    values = {value for secret in secrets for value in _values(secret) if len(value) >= _SHORTEST_SECRET}
    spellings = {spelling for value in values for spelling in _spellings(value)}
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, REDACTED)
    for value in sorted(values, key=len, reverse=True):
        text = re.sub(re.escape(value[:_BEGINNING]) + _MASKED.format(len(value)), REDACTED, text)
    return text


def _values(secret: str) -> Iterator[str]:
    """Yield a secret and the secrets inside of it: the key of "Bearer sk-1", user and password of "Basic …"."""
    yield secret
    credentials = secret.rpartition(" ")[2]
    yield credentials
    if secret.startswith(basic_auth.PREFIX):
        try:
            pair = b64decode(credentials).decode()
        except ValueError:
            return
        yield pair
        yield pair.partition(":")[2]


def _spellings(value: str) -> Iterator[str]:
    """Yield a value as it is, encoded for a URL or in base64, and escaped as in JSON and HTML."""
    yield value
    encoded = quote(value, safe="")
    yield from (encoded, encoded.replace("%20", "+"), re.sub(r"%..", lambda found: found[0].lower(), encoded))
    raw = value.encode()
    # The padding is left in the text: some encoders omit it.
    yield from (encode(raw).decode().rstrip("=") for encode in (b64encode, urlsafe_b64encode))
    yield from (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    yield html.escape(value)


def secrets_of_url(url: str) -> list[str]:
    """Return the credentials in a URL: user and password, and the values of parameters named like credentials."""
    parts = urlsplit(url)
    user, password = (unquote(part or "") for part in (parts.username, parts.password))
    # The pair is what clients send in base64. A user without a password is a token.
    secrets = [f"{user}:{password}", password or user, parts.password or ""]
    named = [value for name, value in parse_qsl(parts.query) if SECRET_NAME.search(name)]
    return [*dict.fromkeys(secret for secret in secrets if secret.strip(":")), *named]

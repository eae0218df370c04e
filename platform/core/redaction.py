"""Removal of known secrets from texts of other servers: some repeat a request's credentials in their error messages."""

import html
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from core import basic_auth

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
    spellings = {spelling for value in values for spelling in _cached_spellings(value)}
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, REDACTED)
    for value in sorted(values, key=len, reverse=True):
        text = re.sub(re.escape(value[:_BEGINNING]) + _MASKED.format(len(value)), REDACTED, text)
    return text


# The last part of a link that grants access is a secret.
_LINKS = re.compile(r"(/account/(?:invitations|unsubscribe)/)[^/\s\"'<>?#]+")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
# Prefixes of keys: this platform and OpenAI (sk), Stripe (pk, rk), webhooks (whsec), GitHub (ghp, gho), Slack (xox).
_KEYS = re.compile(r"\b(sk|pk|rk|whsec|ghp|gho|xox[abp])([-_])[A-Za-z0-9_-]{12,}")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")


def redact_unknown(text: str) -> str:
    """Return the text without anything that looks like a secret, for texts whose secrets are not known."""
    text = _AUTHORIZATION.sub(rf"\1\2{REDACTED}", text)
    text = _KEYS.sub(rf"\1\2{REDACTED}", text)
    text = _URL_CREDENTIALS.sub(REDACTED, text) if "://" in text else text
    return _LINKS.sub(rf"\1{REDACTED}", text) if "/account/" in text else text


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


@lru_cache(maxsize=1000)
def _cached_spellings(value: str) -> tuple[str, ...]:
    return tuple(_spellings(value))


def _spellings(value: str) -> Iterator[str]:
    """Yield a value as it is, encoded for a URL or in base64, and escaped as in JSON and HTML."""
    yield value
    encoded = quote(value, safe="")
    yield from (encoded, encoded.replace("%20", "+"), re.sub(r"%..", lambda found: found[0].lower(), encoded))
    for encode in (b64encode, urlsafe_b64encode):
        # The encoded characters depend on the value's position in the encoded text, such as "Bearer sk-1". Characters
        # at the ends, which also depend on neighbours of the value, are left in the text, like the padding.
        for before in range(3):
            code = encode(b"x" * before + value.encode()).decode()
            yield code.rstrip("=")[(0, 2, 3)[before] : -1 if code.endswith("=") else None]
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

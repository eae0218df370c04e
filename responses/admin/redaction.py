"""Redaction of secrets and binary data in documents shown in the admin.

Credentials that belong to a request are never stored. These functions catch secrets that clients put elsewhere, for
example a token in a prompt or in a tool's arguments.
"""

import re
from collections.abc import Callable
from typing import Any

from core.redaction import REDACTED, redact_unknown
from responses.admin.transcript.parts import describe_data

# Shorter values are shown, as they are not binary data: for example a URL, or the result of a call, in such a field.
_MAX_DATA_CHARACTERS = 256
_SECRET_NAMES = frozenset(
    {
        "authorization", "proxy-authorization", "cookie", "set-cookie", "api_key", "api-key", "apikey", "x-api-key",
        "access_token", "refresh_token", "id_token", "client_secret", "secret", "secret_key", "password", "passwd",
        "private_key",
    }
)  # fmt: skip
_DATA_NAMES = frozenset({"file_data", "result", "b64_json", "encrypted_content", "image_url", "url"})
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]+")


def redacted(document: Any) -> Any:
    """Return the document without secrets. Binary data is replaced by its size."""
    return _redact(document, _shorten_data)


def without_secrets(document: Any) -> Any:
    """Return the complete document except for its secrets."""
    return _redact(document, lambda _, text: text)


def _redact(value: Any, shorten: Callable[[str, str], str], name: str = "") -> Any:
    match value:
        case dict():
            # Any header may carry a credential: custom ones have no name that could be recognised.
            if name.lower() == "headers":
                return dict.fromkeys(value, REDACTED)
            return {key: _redact(inner, shorten, str(key)) for key, inner in value.items()}
        case list():
            return [_redact(inner, shorten, name) for inner in value]
        case str():
            return REDACTED if value and name.lower() in _SECRET_NAMES else shorten(name, redact_unknown(value))
    return value


def _shorten_data(name: str, text: str) -> str:
    if text.startswith("data:") and "," in text[:200] and len(text) > _MAX_DATA_CHARACTERS:
        return f"{text[: text.index(',') + 1]}… ({describe_data(text, 'URL')})"
    if name in _DATA_NAMES and len(text) > _MAX_DATA_CHARACTERS and _BASE64.fullmatch(text):
        return f"{text[:16]}… ({len(text):,} characters)"
    return text


__all__ = ["REDACTED", "redacted", "without_secrets"]

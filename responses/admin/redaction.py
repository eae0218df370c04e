"""What is taken out of a document before people see it: secrets, wherever they stand, and bytes.

What a request brought of secrets is not kept to begin with; this is for what clients wrote where no secret belongs.
"""

import re
from collections.abc import Callable
from typing import Any

from responses.admin.transcript.parts import measured

REDACTED = "[redacted]"
_LONGEST_BYTES = 256
_SECRET = frozenset(
    {
        "authorization", "proxy-authorization", "cookie", "set-cookie", "api_key", "api-key", "apikey", "x-api-key",
        "access_token", "refresh_token", "id_token", "client_secret", "secret", "secret_key", "password", "passwd",
        "private_key",
    }
)  # fmt: skip
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_KEY = re.compile(r"\b(sk|pk|rk|whsec|ghp|gho|xox[abp])([-_])[A-Za-z0-9_-]{12,}")
_IN_URL = re.compile(r"(?<=://)[^/@\s:]+:[^/@\s]+(?=@)")
_BYTES = frozenset({"file_data", "result", "b64_json", "encrypted_content", "image_url", "url"})
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]+")


def redacted(document: Any) -> Any:
    """The document without secrets; of bytes it says only how many there are."""
    return _walk(document, _shorten)


def without_secrets(document: Any) -> Any:
    """The document without secrets, and whole but for them."""
    return _walk(document, lambda _, text: text)


def _walk(value: Any, bytes_of: Callable[[str, str], str], name: str = "") -> Any:
    match value:
        case dict():
            if name.lower() == "headers":
                return dict.fromkeys(value, REDACTED)
            return {key: _walk(inner, bytes_of, str(key)) for key, inner in value.items()}
        case list():
            return [_walk(inner, bytes_of, name) for inner in value]
        case str():
            return REDACTED if value and name.lower() in _SECRET else bytes_of(name, _clean(value))
    return value


def _clean(text: str) -> str:
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _KEY.sub(rf"\1\2{REDACTED}", text)
    return _IN_URL.sub(REDACTED, text) if "://" in text else text


def _shorten(name: str, text: str) -> str:
    if text.startswith("data:") and "," in text[:200] and len(text) > _LONGEST_BYTES:
        return f"{text[: text.index(',') + 1]}… ({measured(text, 'URL')})"
    if name in _BYTES and len(text) > _LONGEST_BYTES and _BASE64.fullmatch(text):
        return f"{text[:16]}… ({len(text):,} characters)"
    return text

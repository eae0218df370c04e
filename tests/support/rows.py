"""Searches for secrets in every table, backups, Redis, logs, traces and pages.

Secrets are found as they are, in base64, encoded for a URL and escaped as in JSON, also within compressed data.
"""

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from django.db import connection

from engine.events.compression import decompress
from tenants import scope

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{40,}={0,2}")
_HEX = re.compile(rb"\\\\?x([0-9a-f]{16,})")
_MAX_DEPTH = 3
_COMPRESSED = (b"\x1f", b"\x78", b"\x68", b"\x58", b"\x48", b"\x38", b"\x28", b"\x18", b"\x08")


def every_row_with(*texts: str) -> list[str]:
    """Return the tables with a row that contains one of these texts."""
    patterns, searched = [f"%{text}%" for text in texts], [text.encode() for text in texts]
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT count(*) FROM "{table}" AS one WHERE one::text LIKE ANY (%s)', [patterns])
            if cursor.fetchone()[0] or any(text in content for content in _binary(cursor, table) for text in searched):
                found.append(table)
    return found


def _binary(cursor: Any, table: str) -> Iterator[bytes]:
    """Yield the binary columns of a table, whose text is hexadecimal, and those of event logs compressed."""
    cursor.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND data_type = 'bytea'", [table]
    )
    for (column,) in cursor.fetchall():
        cursor.execute(f'SELECT "{column}" FROM "{table}"')
        for (value,) in cursor.fetchall():
            yield bytes(value)
            with suppress(ValueError, zlib.error):
                yield decompress(value)


def spellings(secret: str) -> set[bytes]:
    """Return the forms in which a secret may be written."""
    raw = secret.encode()
    # In base64, the characters depend on the position within the whole: those at the ends are left out.
    shifted = [base64.b64encode(b"x" * shift + raw).rstrip(b"=") for shift in range(3)]
    inner = [code[(0, 2, 3)[shift] : -1 if (len(raw) + shift) % 3 else None] for shift, code in enumerate(shifted)]
    texts = [secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]]
    return (
        {text.encode() for text in texts}
        | {*inner}
        | {code.translate(_FOR_URLS) for code in inner}
        | {raw.hex().encode()}
    )


_FOR_URLS = bytes.maketrans(b"+/", b"-_")


def occurrences(content: bytes, secret: str) -> list[bytes]:
    """Return the places where a content has a secret, with the surrounding text."""
    found, text = [], _readable(content)
    for spelling in spellings(secret):
        if spelling in text:
            matches = re.finditer(re.escape(spelling), text)
            found += [text[max(0, match.start() - 80) : match.end() + 20] for match in matches]
    return found


@lru_cache(maxsize=32)
def _readable(content: bytes) -> bytes:
    # Unpacking takes most of the time of a search, and many secrets are sought in the same content.
    return b"\n".join(dict.fromkeys(_unpacked(content)))


def _unpacked(content: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield a content, and the contents that it has in base64, in hexadecimal digits or compressed."""
    yield content
    if depth == _MAX_DEPTH:
        return
    # Most contents do not begin with the headers of RFC 1952 or RFC 1950.
    for unpack in (gzip.decompress, zlib.decompress, decompress) if content[:1] in _COMPRESSED else ():
        try:
            yield from _unpacked(unpack(content), depth + 1)
        except (OSError, EOFError, ValueError, zlib.error):
            continue
    for match in _HEX.finditer(content):
        yield from _unpacked(bytes.fromhex(match[1][: len(match[1]) // 2 * 2].decode()), depth + 1)
    for match in _BASE64.finditer(content):
        code = match[0].rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        yield from _unpacked(base64.b64decode(code[: len(code) // 4 * 4]), depth + 1)

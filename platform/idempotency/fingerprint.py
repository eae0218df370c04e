"""Fingerprints of request bodies: equal for the bodies that an SDK sends when it repeats a request."""

import hashlib
from collections.abc import Iterable
from typing import IO, Any, NamedTuple

import orjson

_BLOCK_BYTES = 1024 * 1024
_BOUNDARY = b"boundary="


class Fingerprint(NamedTuple):
    """The SHA-256 of a body. `is_stored` is false if the body asks that nothing is stored.

    `is_stream` is true if it asks for a stream.
    """

    digest: bytes
    is_stored: bool = True
    is_stream: bool = False


def of_body(body: bytes, content_type: str, query: bytes) -> Fingerprint:
    """Return the fingerprint of a body. The order of the keys of a JSON object makes no difference."""
    boundary = _boundary(content_type)
    if boundary:
        return of_blocks([body], boundary, query)
    try:
        document = orjson.loads(body)
        body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):
        document = None
    return of_document(document, body, query)


def of_document(document: Any, body: bytes, query: bytes = b"") -> Fingerprint:
    """Return the fingerprint of a JSON document whose canonical text is known."""
    values = document if isinstance(document, dict) else {}
    return Fingerprint(
        hashlib.sha256(query + b"\n" + body).digest(),
        is_stored=values.get("store") is not False,
        is_stream=values.get("stream") is True,
    )


def of_upload(upload: IO[bytes], content_type: str, query: bytes) -> Fingerprint:
    """Return the fingerprint of a body on disk, which is read from its beginning and set back to it."""
    found = of_blocks(iter(lambda: upload.read(_BLOCK_BYTES), b""), _boundary(content_type), query)
    upload.seek(0)
    return found


def of_blocks(blocks: Iterable[bytes], boundary: bytes, query: bytes) -> Fingerprint:
    """Return the fingerprint of a form. Its boundary, which differs in each request, is left out."""
    digest, rest = hashlib.sha256(query + b"\n"), b""
    for block in blocks:
        data = rest + block
        if boundary:
            *pieces, data = data.split(boundary)
            for piece in pieces:
                digest.update(piece)
            # The beginning of a boundary may be at the end of the block.
            keep = min(len(data), len(boundary) - 1)
            data, rest = data[: len(data) - keep], data[len(data) - keep :]
        digest.update(data)
    digest.update(rest)
    return Fingerprint(digest.digest())


def _boundary(content_type: str) -> bytes:
    kind, _, parameters = content_type.encode("latin-1").partition(b";")
    if not kind.strip().lower().startswith(b"multipart/"):
        return b""
    _, _, value = parameters.partition(_BOUNDARY)
    return value.split(b";")[0].strip().strip(b'"')

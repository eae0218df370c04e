"""`/openapi.json`, generated on the first request: most processes never need its texts."""

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import orjson
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.cache import get_conditional_response

from core.http.rendering import JSON, accepts_gzip


def openapi_json(request: HttpRequest) -> HttpResponseBase:
    """Respond to `/openapi.json`, which needs no key; with 304 if the client already has it."""
    file = _file()
    # Caches may keep the document, but have to ask whether it is current.
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if accepts_gzip(request.headers.get("Accept-Encoding", "")):
        response = HttpResponse(file.compressed, content_type=JSON, headers={**headers, "Content-Encoding": "gzip"})
    else:
        response = HttpResponse(file.content, content_type=JSON, headers=headers)
    return get_conditional_response(request, etag=file.etag, response=response) or response


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes
    etag: str


@cache
def _file() -> _File:
    from server.reference.openapi import document

    content = orjson.dumps(document())
    # Weak, because it is the same for both encodings.
    etag = f'W/"{sha256(content).hexdigest()[:32]}"'
    return _File(content=content, compressed=gzip.compress(content, mtime=0), etag=etag)

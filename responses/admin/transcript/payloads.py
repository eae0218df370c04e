"""Views that serve content on demand: the rest of a long text, images and files.

Each view checks the permissions of the viewer: it answers 404 for a row of another team, and 403 if the viewer may not
read content. Content is served as plain text, as an image of a known type, or as a download, but never as HTML.
"""

import base64
import binascii
from typing import Any
from urllib.parse import unquote_to_bytes
from uuid import UUID

from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from console.widgets import SHOWN_CHARACTERS
from conversations.files import storage
from conversations.models import File, Item
from core.clock import now
from responses.admin.transcript.entries import IMAGE_TYPES, parts_of
from responses.admin.transcript.parts import MEDIA, ItemPart, parse_data_url
from responses.models import ToolCall
from tenants.console.content_access import read_allowed
from tenants.console.row_pages import start_of
from tenants.console.site import page
from tenants.console.viewer import Viewer

_SAFE = {
    "X-Content-Type-Options": "nosniff",
    # A second line of defence: even if a browser interprets the content, it allows no scripts, forms or requests.
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, max-age=300",
}
_SIGNATURES = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


@page("content/items/<uuid:key>/text/<int:number>/", name="item_text")
def item_text(request: HttpRequest, viewer: Viewer, key: UUID, number: int) -> HttpResponse:
    """Serve a text of an item, from character `?from=` on."""
    part = _part(viewer, key, number)
    if part.kind in MEDIA:
        raise Http404
    return _text(request, part.text)


@page("content/calls/<int:pk>/<str:field>/", name="call_text")
def call_text(request: HttpRequest, viewer: Viewer, pk: int, field: str) -> HttpResponse:
    """Serve the arguments, the output or the error of a tool call."""
    # The name comes from the URL, so only fixed fields are allowed.
    row = ToolCall.objects.filter(pk=pk).first() if field in {"output", "error", "arguments"} else None
    if row is None:
        raise Http404
    _check(viewer, row)
    return _text(request, getattr(row, field) or "")


@page("content/items/<uuid:key>/media/<int:number>/", name="item_media")
def item_media(request: HttpRequest, viewer: Viewer, key: UUID, number: int) -> HttpResponse:
    """Serve an image or a file that an item contains as a data URL."""
    part = _part(viewer, key, number)
    data = parse_data_url(part.source) if part.kind in MEDIA else None
    if data is None:
        raise Http404
    try:
        content = base64.b64decode(data.payload) if data.is_base64 else unquote_to_bytes(data.payload)
    except (binascii.Error, ValueError):
        raise Http404 from None
    headers = _headers(data.type, content[:16], name=f"item-{number}")
    return HttpResponse(content, content_type=headers.pop("type"), headers=headers)


@page("content/files/<str:file_id>/", name="file_content")
def file_content(request: HttpRequest, viewer: Viewer, file_id: str) -> HttpResponseBase:
    """Serve a stored file."""
    # PostgreSQL rejects NUL characters in text: such an id is unknown, not an error.
    file = File.objects.filter(pk=file_id).first() if "\x00" not in file_id else None
    if file is None or not file.exists_at(now()):
        raise Http404
    _check(viewer, file)
    content = async_to_sync(storage.open_content)(file)
    # These bytes are enough to recognise every image type. The rest of the file is streamed.
    first_bytes = content.read(16)
    content.seek(0)
    headers = _headers(file.content_type, first_bytes, name=file.filename)
    headers["Content-Length"] = str(file.size)
    return StreamingHttpResponse(storage.chunks(content), content_type=headers.pop("type"), headers=headers)


def _part(viewer: Viewer, key: UUID, number: int) -> ItemPart:
    item = Item.objects.filter(pk=key).first()
    if item is None:
        raise Http404
    _check(viewer, item)
    parts = parts_of(item.body)
    if number >= len(parts):
        raise Http404
    return parts[number]


def _check(viewer: Viewer, row: Any) -> None:
    if not read_allowed(viewer, row):
        raise PermissionDenied


def _text(request: HttpRequest, text: str) -> HttpResponse:
    """Serve up to 65,536 characters. `X-Total` is the length of the text, `X-Next` the start of the next piece."""
    start = start_of(request.GET)
    end = start + SHOWN_CHARACTERS
    headers = {**_SAFE, "X-Total": str(len(text)), **({"X-Next": str(end)} if end < len(text) else {})}
    return HttpResponse(text[start:end], content_type="text/plain; charset=utf-8", headers=headers)


def _headers(content_type: str, first_bytes: bytes, *, name: str) -> dict[str, str]:
    # The declared type comes from a client. Only content that also begins like an image of that type is displayed;
    # anything else is downloaded without its type.
    is_image = content_type in IMAGE_TYPES and first_bytes.startswith(_SIGNATURES[content_type])
    disposition = content_disposition_header(as_attachment=not is_image, filename=name) or "inline"
    return {
        **_SAFE,
        "type": content_type if is_image else "application/octet-stream",
        "Content-Disposition": disposition,
    }

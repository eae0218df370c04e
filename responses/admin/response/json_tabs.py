"""Request and Response tabs: the JSON of the request, with secrets redacted, and of the response as `GET` returns it.

The page embeds 64 KB at most. A longer document, or one with hundreds of items, is loaded on demand.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from console.widgets import SHOWN_CHARACTERS, Shown, size
from conversations.models import Section
from kernel.errors import ApiError
from responses.admin.redaction import redacted
from responses.admin.response.span_details import download
from responses.engine.events.types import Body
from responses.models import Mode, Response
from responses.requests import rebuild
from responses.runs import selectors
from tenants.console.content_access import audit_read, hidden_notice, may_read

MAX_ON_DEMAND = 1_000_000
_INLINE_ITEMS = 200
_SIZE_SQL = """
SELECT count(*), coalesce(sum(pg_column_size(item.body)), 0)
FROM conversations_placement AS place JOIN conversations_item AS item ON item.key = place.item_id
WHERE place.owner = %s AND place.section = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A JSON document about a response. `section` holds its items, `make` builds it."""

    name: str
    title: str
    section: Section
    note: str
    make: Callable[[Response], Any]


def request_body(response: Response) -> Body:
    """Return the body of the request as its client sent it, as far as it is stored.

    Raises `ApiError` if the request was not stored.
    """
    body = rebuild.rebuild_request(response, with_history=False)
    body["input"] = [_as_sent(item) for item in body["input"]]
    if response.conversation_id is not None:
        body["conversation"] = response.conversation_id
    if response.background:
        body["background"] = True
    if response.mode == Mode.STREAM:
        body["stream"] = True
    return body


def _as_sent(item: Body) -> Body:
    # Ids and statuses of input items are assigned when they are stored, except where the client sent back an item of
    # an earlier output.
    was_added = item["type"].endswith("_output") or (item["type"] == "message" and item["role"] != "assistant")
    return {name: value for name, value in item.items() if name not in {"id", "status"}} if was_added else item


def _response_body(response: Response) -> Body:
    output = selectors.outputs([response]).get(response.pk, [])
    return selectors.public_body(response, output)


REQUEST = Document(
    name="request",
    title="Request",
    section=Section.INPUT,
    note="Rebuilt from the stored parameters and items; text input appears as a message. Credentials are not stored, "
    "secrets are redacted, and binary data is replaced by its size.",
    make=lambda response: redacted(request_body(response)),
)
RESPONSE = Document(
    name="response",
    title="Response",
    section=Section.OUTPUT,
    note="The response object, as GET /v1/responses/{id} returns it.",
    make=_response_body,
)
_BY_NAME = {document.name: document for document in (REQUEST, RESPONSE)}


def read_request(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the context of the Request tab."""
    return _tab(request, response, REQUEST)


def read_response(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the context of the Response tab."""
    return _tab(request, response, RESPONSE)


def document(request: HttpRequest, response: Response, name: str) -> HttpResponse:
    """Serve a whole document: as JSON, as a file with `?download=1`, or as an HTML fragment for htmx.

    The fragment has a megabyte at most: browsers become slow with longer text.
    """
    found = _BY_NAME.get(name)
    if found is None or not response.stored:
        raise Http404
    if not may_read(request, response.team_id):
        raise PermissionDenied
    audit_read(request, response, team_id=response.team_id)
    try:
        text = _text(found.make(response))
    except ApiError as failed:
        raise Http404(failed.message) from failed
    if "HX-Request" in request.headers:
        code = Shown(text[:MAX_ON_DEMAND], max(0, len(text) - MAX_ON_DEMAND))
        return TemplateResponse(request, "console/code.html", {"code": code})
    answer = download(text, f"{response.pk}-{name}.json", "application/json")
    if not request.GET.get("download"):
        del answer["Content-Disposition"]
    return answer


def _tab(request: HttpRequest, response: Response, found: Document) -> dict[str, Any]:
    context: dict[str, Any] = {
        "document": found,
        "url": reverse("admin:responses_response_document", args=[response.pk, found.name]),
    }
    if not may_read(request, response.team_id):
        return {**context, "hidden": hidden_notice(request, response.team_id)}
    if not response.stored:
        return {**context, "problem": "Not stored: the request set store to false."}
    items, stored_size = _stored_size(response, found.section)
    if items > _INLINE_ITEMS or stored_size > SHOWN_CHARACTERS:
        return {**context, "long": f"{items:,} items, {size(stored_size)} in storage"}
    try:
        text = _text(found.make(response))
    except ApiError as failed:
        return {**context, "problem": failed.message}
    if len(text) > SHOWN_CHARACTERS:
        return {**context, "long": size(len(text))}
    return {**context, "code": Shown(text)}


def _stored_size(response: Response, section: Section) -> tuple[int, int]:
    # Number of items and their compressed size on disk, without reading a body: deciding whether a document fits on the
    # page must not cost as much as building it.
    with connection.cursor() as cursor:
        cursor.execute(_SIZE_SQL, [response.pk, section.value])
        items, stored_size = cursor.fetchone()
    return int(items), int(stored_size)


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

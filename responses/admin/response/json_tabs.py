"""The tabs with JSON: the request as it was asked, without secrets, and the response as `GET` returns it.

A page carries 64 KB of either at most. What is longer, or has hundreds of items, is loaded when somebody asks for it.
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

SHOWN_ON_DEMAND = 1_000_000
_INLINE_ITEMS = 200
_WEIGHT = """
SELECT count(*), coalesce(sum(pg_column_size(item.body)), 0)
FROM conversations_placement AS place JOIN conversations_item AS item ON item.key = place.item_id
WHERE place.owner = %s AND place.section = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One of the two: what it is made of, and how it is made."""

    name: str
    title: str
    section: Section
    note: str
    make: Callable[[Response], Any]


def asked(response: Response) -> Body:
    """The body of the request as its client sent it, as far as that is kept. Raises `ApiError` where nothing is."""
    body = rebuild.request_of(response, with_history=False)
    body["input"] = [_sent(item) for item in body["input"]]
    if response.conversation_id is not None:
        body["conversation"] = response.conversation_id
    if response.background:
        body["background"] = True
    if response.mode == Mode.STREAM:
        body["stream"] = True
    return body


def _sent(item: Body) -> Body:
    """An item of an input without what it got when it was stored."""
    is_ours = item["type"].endswith("_output") or (item["type"] == "message" and item["role"] != "assistant")
    return {name: value for name, value in item.items() if name not in {"id", "status"}} if is_ours else item


def _answered(response: Response) -> Body:
    output = selectors.outputs([response]).get(response.pk, [])
    return selectors.public_body(response, output)


REQUEST = Document(
    name="request",
    title="Request",
    section=Section.INPUT,
    note="Rebuilt from what is kept: what the client sent, a text as the message that it became. Headers and tokens of "
    "tools are not kept; keys are taken out, and bytes are only measured.",
    make=lambda response: redacted(asked(response)),
)
RESPONSE = Document(
    name="response",
    title="Response",
    section=Section.OUTPUT,
    note="The public object, as GET /v1/responses/{id} returns it.",
    make=_answered,
)
_BY_NAME = {document.name: document for document in (REQUEST, RESPONSE)}


def read_request(request: HttpRequest, response: Response) -> dict[str, Any]:
    """The tab with the request."""
    return _tab(request, response, REQUEST)


def read_response(request: HttpRequest, response: Response) -> dict[str, Any]:
    """The tab with the response."""
    return _tab(request, response, RESPONSE)


def document(request: HttpRequest, response: Response, name: str) -> HttpResponse:
    """All of a document: for htmx up to a megabyte as a piece of the page, else as JSON; `?download=1` as a file."""
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
        code = Shown(text[:SHOWN_ON_DEMAND], max(0, len(text) - SHOWN_ON_DEMAND))
        return TemplateResponse(request, "console/code.html", {"code": code})
    answer = download(text, f"{response.pk}-{name}.json", "application/json")
    if not request.GET.get("download"):
        del answer["Content-Disposition"]
    return answer


def _tab(request: HttpRequest, response: Response, found: Document) -> dict[str, Any]:
    told: dict[str, Any] = {
        "document": found,
        "url": reverse("admin:responses_response_document", args=[response.pk, found.name]),
    }
    if not may_read(request, response.team_id):
        return {**told, "hidden": hidden_notice(request, response.team_id)}
    if not response.stored:
        return {**told, "problem": "The client asked not to store this response: there is nothing to show."}
    items, weight = _weigh(response, found.section)
    if items > _INLINE_ITEMS or weight > SHOWN_CHARACTERS:
        return {**told, "long": f"{items:,} items, {size(weight)} as they are stored"}
    try:
        text = _text(found.make(response))
    except ApiError as failed:
        return {**told, "problem": failed.message}
    if len(text) > SHOWN_CHARACTERS:
        return {**told, "long": size(len(text))}
    return {**told, "code": Shown(text)}


def _weigh(response: Response, section: Section) -> tuple[int, int]:
    """How many items there are, and what they weigh on disk; reads none of them."""
    with connection.cursor() as cursor:
        cursor.execute(_WEIGHT, [response.pk, section.value])
        items, weight = cursor.fetchone()
    return int(items), int(weight)


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

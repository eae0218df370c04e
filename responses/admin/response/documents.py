"""Request and Response tabs: the JSON of the request, with secrets redacted, and of the response as `GET` returns it.

The page embeds 64 KB at most. A longer document, or one with hundreds of items, is loaded on demand, as a tree.
The request is also served as code to run, a curl command or a Python program, with placeholders for credentials.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pprint import pformat
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.widgets import SHOWN_CHARACTERS, Shown, size
from conversations.models import Section
from core.errors import ApiError
from engine.events.types import Body
from responses.admin.redaction import redacted, without_secrets
from responses.models import Mode, Response
from responses.requests import rebuild
from responses.runs import selectors
from tenants.console.content_access import read_allowed
from tenants.console.viewer import Viewer

_INLINE_ITEMS = 200
# Number of items and their compressed size on disk, without reading a body: deciding whether a document fits on the
# page must not cost as much as building it.
_SIZE_SQL = """
SELECT count(*), coalesce(sum(pg_column_size(item.body)), 0)
FROM conversations_placement AS place JOIN conversations_item AS item ON item.key = place.item_id
WHERE place.owner = %s AND place.section = %s
"""
KEY = "RESPONSES_API_KEY"
# Parameters that the SDK's method does not have. They go into `extra_body`.
EXTRA = frozenset(
    {
        "top_k", "seed", "repetition_penalty", "min_p", "chat_template_kwargs", "enable_response_messages", "generate",
        "client_metadata", "stop", "presence_penalty", "frequency_penalty", "previous_input_messages", "request_id",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A JSON document about a response. `section` holds its items, `make` builds it."""

    name: str
    title: str
    section: Section
    note: str
    make: Callable[[Response], Any]


def _request_body(response: Response) -> Body:
    """Return the stored part of the body that the client sent.

    Raises `ApiError` if the request was not stored.
    """
    body = rebuild.rebuild_request(response, with_history=False)
    # Ids and statuses of input items were assigned when the items were stored, so they are removed. Only items that the
    # client has sent back from an earlier output keep them.
    for item in body["input"]:
        if item["type"].endswith("_output") or (item["type"] == "message" and item["role"] != "assistant"):
            item.pop("id", None)
            item.pop("status", None)
    return body | _delivery(response)


def request_parameters(response: Response) -> Body:
    """Return the stored part of the body that the client sent, without model and input, and without secrets.

    Raises `ApiError` if the request was not stored.
    """
    parameters: Body = redacted({**rebuild.rebuild_parameters(response), **_delivery(response)})
    return parameters


def _delivery(response: Response) -> Body:
    """Return the parameters of the request that are stored in columns."""
    body: Body = {}
    if response.conversation_id is not None:
        body["conversation"] = response.conversation_id
    if response.background:
        body |= {"background": True, **rebuild.waiting_options(response)}
    if response.mode == Mode.STREAM:
        body["stream"] = True
    return body


DOCUMENTS = {
    document.name: document
    for document in (
        Document(
            name="request",
            title="Request",
            section=Section.INPUT,
            note="Rebuilt from the stored parameters and items; text input appears as a message. Credentials are not "
            "stored, secrets are redacted, and binary data is replaced by its size.",
            make=lambda response: redacted(_request_body(response)),
        ),
        Document(
            name="response",
            title="Response",
            section=Section.OUTPUT,
            note="The response object, as GET /v1/responses/{id} returns it.",
            make=lambda response: selectors.public_bodies([response])[0],
        ),
    )
}


def document_tab(document: Document, viewer: Viewer, response: Response, query: QueryDict) -> dict[str, Any]:
    """Return the context of the tab of a document."""
    context: dict[str, Any] = {
        "document": document,
        "url": reverse("admin:responses_response_document", args=[response.pk, document.name]),
    }
    if not viewer.may_read(response.team_id):
        return {**context, "hidden_team": response.team_id}
    if not response.stored:
        return {**context, "problem": "Not stored: the request set store to false."}
    with connection.cursor() as cursor:
        cursor.execute(_SIZE_SQL, [response.pk, document.section.value])
        items, stored_size = map(int, cursor.fetchone())
    if items > _INLINE_ITEMS or stored_size > SHOWN_CHARACTERS:
        return {**context, "long": f"{items:,} items, {size(stored_size)} in storage"}
    try:
        text = _json(document.make(response))
    except ApiError as failed:
        return {**context, "problem": failed.message}
    if len(text) > SHOWN_CHARACTERS:
        return {**context, "long": size(len(text))}
    return {**context, "code": Shown(text)}


@require_safe
def document_view(request: HttpRequest, viewer: Viewer, response: Response, name: str) -> HttpResponse:
    """Serve a whole document: as JSON, or as a file with `?download=1`."""
    if name not in DOCUMENTS or not response.stored:
        raise Http404
    if not read_allowed(viewer, response):
        raise PermissionDenied
    try:
        text = _json(DOCUMENTS[name].make(response))
    except ApiError as failed:
        raise Http404(failed.message) from failed
    answer = download(text, f"{response.pk}-{name}.json", "application/json")
    if not request.GET.get("download"):
        del answer["Content-Disposition"]
    return answer


def download(text: str, name: str, kind: str = "text/plain") -> HttpResponse:
    """Return a text as a download, so that no browser interprets it."""
    answer = HttpResponse(text, content_type=f"{kind}; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


# -- the request as code -----------------------------------------------------------------------------------------------


@require_safe
def snippet(request: HttpRequest, viewer: Viewer, response: Response, name: str) -> HttpResponse:
    """Serve the request of a response as a code snippet, in plain text."""
    make = {"curl": curl, "python": python}.get(name)
    if make is None:
        raise Http404
    if not read_allowed(viewer, response):
        raise PermissionDenied
    try:
        body = without_secrets(_request_body(response))
    except ApiError as failed:
        raise Http404(failed.message) from failed
    answer = HttpResponse(make(body, base=request.build_absolute_uri("/v1")), content_type="text/plain; charset=utf-8")
    # The text contains input of clients: no browser may interpret it as HTML.
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def curl(body: Body, *, base: str) -> str:
    """Return a shell command. The body is a quoted here-document, so the shell expands nothing in it."""
    lines = [
        *_notes(body),
        f"curl {'-N ' if body.get('stream') else ''}{base}/responses \\",
        f'  -H "Authorization: Bearer ${KEY}" \\',
        '  -H "Content-Type: application/json" \\',
        "  --data-binary @- <<'JSON'",
        _json(body),
        "JSON",
    ]
    return "\n".join(lines) + "\n"


def python(body: Body, *, base: str) -> str:
    """Return a Python program that uses the openai SDK."""
    arguments = {name: value for name, value in body.items() if name not in EXTRA}
    if extra := {name: value for name, value in body.items() if name in EXTRA}:
        arguments["extra_body"] = extra
    lines = []
    for name, value in arguments.items():
        written = pformat(value, width=100, sort_dicts=False).replace("\n", "\n    " + " " * (len(name) + 1))
        lines.append(f"    {name}={written},")
    program = [
        # The key comes from the environment: a pasted snippet must not contain one.
        "import os",
        "",
        "from openai import OpenAI",
        "",
        *_notes(body),
        f'client = OpenAI(base_url={base!r}, api_key=os.environ["{KEY}"])',
        f"{'stream' if body.get('stream') else 'response'} = client.responses.create(",
        *lines,
        ")",
        *(["for event in stream:", "    print(event)"] if body.get("stream") else ["print(response.output_text)"]),
    ]
    return "\n".join(program) + "\n"


def _notes(body: Body) -> list[str]:
    # Credentials of MCP servers are not stored: the snippet names the credentials to add.
    servers = [tool for tool in body.get("tools") or [] if tool.get("type") == "mcp" and tool.get("server_url")]
    if not servers:
        return []
    labels = ", ".join(str(tool.get("server_label")) for tool in servers)
    return [f"# MCP servers ({labels}): the path, headers and authorization are not stored. Add them here."]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

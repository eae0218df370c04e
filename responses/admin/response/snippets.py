"""The request of a response as code to run: a curl command or a Python program. Credentials are placeholders."""

import json
from pprint import pformat
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse

from kernel.errors import ApiError
from responses.admin.redaction import without_secrets
from responses.admin.response.json_tabs import request_body
from responses.engine.events.types import Body
from responses.models import Response
from tenants.console.content_access import audit_read, may_read

KEY = "RESPONSES_API_KEY"
# Parameters that the SDK's method does not have. They go into `extra_body`.
EXTRA = frozenset(
    {
        "top_k", "seed", "repetition_penalty", "min_p", "chat_template_kwargs", "enable_response_messages", "generate",
        "presence_penalty", "frequency_penalty", "previous_input_messages", "request_id",
    }
)  # fmt: skip


def snippet(request: HttpRequest, response: Response, name: str) -> HttpResponse:
    """Serve the request of a response as a code snippet, in plain text."""
    make = {"curl": curl, "python": python}.get(name)
    if make is None:
        raise Http404
    if not may_read(request, response.team_id):
        raise PermissionDenied
    audit_read(request, response, team_id=response.team_id)
    try:
        body = without_secrets(request_body(response))
    except ApiError as failed:
        raise Http404(failed.message) from failed
    answer = HttpResponse(make(body, base=request.build_absolute_uri("/v1")), content_type="text/plain; charset=utf-8")
    # The text contains what clients wrote: no browser may interpret it as HTML.
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
        json.dumps(body, indent=2, ensure_ascii=False),
        "JSON",
    ]
    return "\n".join(lines) + "\n"


def python(body: Body, *, base: str) -> str:
    """Return a Python program that uses the openai SDK."""
    extra = {name: value for name, value in body.items() if name in EXTRA}
    known = {name: value for name, value in body.items() if name not in EXTRA}
    lines = [*_argument_lines(known), *(_argument_lines({"extra_body": extra}) if extra else [])]
    call = ["client.responses.create(", *lines, ")"]
    end = ["for event in stream:", "    print(event)"] if body.get("stream") else ["print(response.output_text)"]
    name = "stream" if body.get("stream") else "response"
    # The key comes from the environment: a pasted snippet must not contain one.
    head = ["import os", "", "from openai import OpenAI", "", *_notes(body)]
    client = f'client = OpenAI(base_url={base!r}, api_key=os.environ["{KEY}"])'
    return "\n".join([*head, client, f"{name} = {call[0]}", *call[1:], *end]) + "\n"


def _argument_lines(arguments: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in arguments.items():
        written = pformat(value, width=100, sort_dicts=False).replace("\n", "\n    " + " " * (len(name) + 1))
        lines.append(f"    {name}={written},")
    return lines


def _notes(body: Body) -> list[str]:
    # Credentials of MCP servers are not stored: the snippet says what to add.
    servers = [tool for tool in body.get("tools") or [] if tool.get("type") == "mcp" and tool.get("server_url")]
    if not servers:
        return []
    labels = ", ".join(str(tool.get("server_label")) for tool in servers)
    return [f"# MCP servers ({labels}): the path, headers and authorization are not stored. Add them here."]

"""Header of the response page: status, ids with links, key figures and actions."""

from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from console.widgets import copyable, duration
from responses.admin import cells
from responses.admin.response_list.actions import RESPONSE_ACTIONS
from responses.models import Response
from tenants.console.content_access import may_read
from tenants.console.site import may_open
from tenants.prices import amount

_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")


def header_context(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the context of the header. Actions are those that the user's roles and the response's state allow."""
    can_copy = response.stored and may_read(request, response.team_id)
    return {
        "actions": [
            {"action": action, "url": reverse(f"admin:responses_response_{action.name}", args=[response.pk])}
            for action in RESPONSE_ACTIONS
            if action.may(request, response)
        ],
        "playground_url": _playground(request, response) if can_copy else None,
        "snippets": [
            {"title": title, "url": reverse("admin:responses_response_snippet", args=[response.pk, name])}
            for name, title in (("curl", "curl"), ("python", "Python"))
            if can_copy
        ],
        "status_badge": cells.status(response),
        "id_link": copyable(response.pk),
        "ids": _ids(response),
        "first_token": duration(response.first_token_ms),
        "total": duration(response.duration_ms),
        "speed": _speed(response),
        "cost": amount(response.cost) if response.cost is not None else "",
        **{name: f"{getattr(response, name):,}" for name in _TOKENS},
    }


def _ids(response: Response) -> list[tuple[str, Any]]:
    conversation, previous = response.conversation_id, response.previous_response_id
    found = [
        ("Previous response", copyable(previous, href=cells.url(previous)) if previous else ""),
        ("Conversation", copyable(conversation, href=_page_of(conversation)) if conversation else ""),
        ("Request ID", copyable(response.request_id) if response.request_id else ""),
        ("Client request ID", copyable(response.client_request_id) if response.client_request_id else ""),
    ]
    return [(name, link) for name, link in found if link]


def _page_of(conversation_id: str) -> str | None:
    try:
        return reverse("admin:conversations_conversation_change", args=[conversation_id])
    except NoReverseMatch:
        return None


def _playground(request: HttpRequest, response: Response) -> str | None:
    try:
        url = reverse("console:playground")
    except NoReverseMatch:
        return None
    return f"{url}?{urlencode({'from': response.pk})}" if may_open(request, "playground") else None


def _speed(response: Response) -> str:
    """Return the output tokens per second, counted from the first token."""
    if not response.duration_ms or response.first_token_ms is None or not response.output_tokens:
        return "–"
    # The time to the first token is spent on the queue and the prompt, not on generating output.
    spent = response.duration_ms - response.first_token_ms
    return f"{response.output_tokens * 1000 / spent:,.0f}" if spent > 0 else "–"

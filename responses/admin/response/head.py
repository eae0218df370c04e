"""The head of the page of a response: its state, its ids with what they lead to, and its figures."""

from typing import Any

from django.urls import NoReverseMatch, reverse

from kernel.console import copyable, duration
from responses.admin import cells
from responses.models import Response

_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")


def head(response: Response) -> dict[str, Any]:
    """What stands above the tabs."""
    return {
        "status_badge": cells.status(response),
        "id_link": copyable(response.pk),
        "ids": _ids(response),
        "first_token": duration(response.first_token_ms),
        "total": duration(response.duration_ms),
        "speed": _speed(response),
        **{name: f"{getattr(response, name):,}" for name in _TOKENS},
    }


def _ids(response: Response) -> list[tuple[str, Any]]:
    """What it is called elsewhere, and what it belongs to."""
    conversation, previous = response.conversation_id, response.previous_response_id
    found = [
        ("Follows", copyable(previous, href=cells.url(previous)) if previous else ""),
        ("Conversation", copyable(conversation, href=_page_of(conversation)) if conversation else ""),
        ("Request", copyable(response.request_id) if response.request_id else ""),
        ("Client's request id", copyable(response.client_request_id) if response.client_request_id else ""),
    ]
    return [(name, link) for name, link in found if link]


def _page_of(conversation_id: str) -> str | None:
    try:
        return reverse("admin:conversations_conversation_change", args=[conversation_id])
    except NoReverseMatch:
        return None


def _speed(response: Response) -> str:
    """Output tokens per second after the first one."""
    if not response.duration_ms or response.first_token_ms is None or not response.output_tokens:
        return "–"
    spent = response.duration_ms - response.first_token_ms
    return f"{response.output_tokens * 1000 / spent:,.0f}" if spent > 0 else "–"

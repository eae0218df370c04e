"""Stored chat completions: their rows, their JSON representations, and access by team.

All functions but `build_row` must run inside a scope (`tenants.scope`) that makes the team's rows visible.
"""

from dataclasses import dataclass, field
from typing import Any

from core.clock import now, unix
from core.errors import NotFound
from core.http.pagination import Order, Page, PageRequest, keyset
from core.ids import new_id
from engine.converter.chat import Chunk
from gateway.chat.requests import ChatRequest
from responses.models import ChatCompletion
from responses.runs.rows import Row, new_row
from responses.runs.usage_records import RoutedCall
from tenants.audit import audit_call
from tenants.principal import Principal

_NOT_PARAMETERS = {"messages", "metadata", "store", "stream", "stream_options"}
_SHOWN_PARTS = {"text", "image_url"}


def completion_id() -> str:
    """Return a new id of a completion."""
    # Unlike all other ids of OpenAI, ids of completions have a hyphen after the prefix.
    return new_id("chatcmpl").replace("_", "-", 1)


def build_row(request: ChatRequest, call: RoutedCall, *, completion_id: str, completion: Chunk) -> Row:
    """Return the row of a completion."""
    created_at = now()
    # Upstreams may omit fields that OpenAI requires; clients would fail to parse the stored completion later.
    known = {name: value for name, value in completion.items() if value is not None}
    model = call.answering.model
    body = {"created": unix(created_at), "model": model, "choices": [], **known}
    return new_row(
        ChatCompletion,
        id=completion_id,
        team_id=call.principal.team_id,
        api_key_id=call.principal.key_id,
        created_at=created_at,
        model=model,
        metadata=request.body.metadata or {},
        messages=request.values["messages"],
        parameters={name: value for name, value in request.values.items() if name not in _NOT_PARAMETERS},
        body={**body, "id": completion_id, "object": "chat.completion"},
        request_id=call.request_id,
    )


def public_body(completion: ChatCompletion) -> dict[str, Any]:
    """Return the completion as its client received it, with its current metadata."""
    return {**completion.body, "metadata": completion.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFilter:
    """Filters of the list of completions."""

    model: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def list_completions(*, team_id: str, filters: CompletionFilter, page: PageRequest) -> Page[ChatCompletion]:
    """Return a page of a team's stored completions, by time."""
    # The input can be large, and lists do not show it.
    rows = ChatCompletion.objects.filter(team_id=team_id).defer("messages", "parameters")
    if filters.model is not None:
        rows = rows.filter(model=filters.model)
    if filters.metadata:
        rows = rows.filter(metadata__contains=filters.metadata)
    known = ChatCompletion.objects.filter(team_id=team_id).only("created_at")
    return keyset(rows, page=page, find=lambda cursor: known.filter(pk=cursor).first(), unknown=_not_found)


def get_completion(*, principal: Principal, completion_id: str) -> ChatCompletion:
    """Return a stored completion; raises `NotFound` for an unknown id or another team's id."""
    completion = ChatCompletion.objects.filter(pk=completion_id, team_id=principal.team_id).first()
    if completion is None:
        raise _not_found(completion_id)
    return completion


def _not_found(completion_id: str, *, param: str | None = None) -> NotFound:
    return NotFound(f"Chat completion with id '{completion_id}' not found.", param=param)


def list_messages(*, completion: ChatCompletion, page: PageRequest) -> Page[dict[str, Any]]:
    """Return a page of the completion's input messages."""
    messages = [_public_message(completion.pk, index, message) for index, message in enumerate(completion.messages)]
    if page.order is Order.DESC:
        messages.reverse()
    start = 0
    if page.after is not None:
        ids = [message["id"] for message in messages]
        if page.after not in ids:
            raise NotFound(f"Message with id '{page.after}' not found.", param="after")
        start = ids.index(page.after) + 1
    return Page.cut(messages[start : start + page.limit + 1], request=page)


def _public_message(completion_id: str, index: int, message: dict[str, Any]) -> dict[str, Any]:
    # In OpenAI's list a message with several parts has them in `content_parts`, and a null `content`.
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {
        **{name: value for name, value in message.items() if value is not None},
        "id": f"{completion_id}-{index}",
        "content": None if parts is not None else content,
        "content_parts": None if parts is None else [part for part in parts if part["type"] in _SHOWN_PARTS],
    }


def replace_metadata(*, principal: Principal, completion_id: str, metadata: dict[str, str]) -> ChatCompletion:
    """Replace the metadata of a completion and return it."""
    completion = get_completion(principal=principal, completion_id=completion_id)
    completion.metadata = metadata
    completion.save(update_fields=["metadata"])
    return completion


def delete_completion(*, principal: Principal, completion_id: str) -> None:
    """Delete a completion with its messages; raises `NotFound`."""
    completion = get_completion(principal=principal, completion_id=completion_id)
    audit_call(principal, "chat_completion.deleted", completion.pk)
    completion.delete()

"""Stored chat completions: how one is kept and shown, and the doors to those of a team.

Every function but `row` expects to run inside a scope (`tenants.scope`) that lets it see the rows.
"""

from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from kernel.clock import now, unix
from kernel.errors import NotFound
from kernel.ids import new_id
from kernel.pagination import Order, Page, PageRequest, keyset
from responses.chat.requests import ChatRequest
from responses.engine.chat.converter import Chunk
from responses.models import ChatCompletion
from responses.runs.ledger import RequestInfo, RoutedCall
from tenants.audit import audit
from tenants.principal import Principal

_NOT_PARAMETERS = {"messages", "metadata", "store", "stream", "stream_options"}
_SHOWN_PARTS = {"text", "image_url"}


def completion_id() -> str:
    """A fresh id of a completion, spelled as OpenAI does."""
    return new_id("chatcmpl").replace("_", "-", 1)


def row(asked: ChatRequest, call: RoutedCall, *, completion_id: str, completion: Chunk) -> ChatCompletion:
    """The row of a completion. It gets what every completion has, should the upstream have left it out."""
    created_at = now()
    known = {name: value for name, value in completion.items() if value is not None}
    body = {"created": unix(created_at), "model": call.route.model, "choices": [], **known}
    return ChatCompletion(
        id=completion_id,
        team_id=call.principal.team_id,
        api_key_id=call.principal.key_id,
        created_at=created_at,
        model=call.route.model,
        metadata=asked.body.metadata or {},
        messages=asked.values["messages"],
        parameters={name: value for name, value in asked.values.items() if name not in _NOT_PARAMETERS},
        body={**body, "id": completion_id, "object": "chat.completion"},
        request_id=call.request_id,
    )


def public_body(completion: ChatCompletion) -> dict[str, Any]:
    """The completion as its client got it, with its metadata of today."""
    return {**completion.body, "metadata": completion.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFilter:
    """What the list of completions can be narrowed to."""

    model: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def list_completions(*, team_id: str, narrow: CompletionFilter, page: PageRequest) -> Page[ChatCompletion]:
    """A team's stored completions, by time."""
    # What they answer may be long, and is not shown.
    rows = ChatCompletion.objects.filter(team_id=team_id).defer("messages", "parameters")
    if narrow.model is not None:
        rows = rows.filter(model=narrow.model)
    if narrow.metadata:
        rows = rows.filter(metadata__contains=narrow.metadata)
    return keyset(rows, page=page, position=partial(_position, team_id))


def _position(team_id: str, completion_id: str, param: str) -> tuple[datetime, str]:
    """Where a completion stands in the list of its team."""
    cursor = ChatCompletion.objects.filter(team_id=team_id, pk=completion_id).only("created_at").first()
    if cursor is None:
        raise _unknown(completion_id, param=param)
    return cursor.created_at, cursor.pk


def get_completion(*, principal: Principal, completion_id: str) -> ChatCompletion:
    """A stored completion of the caller's team, or the 404 of an unknown id."""
    # PostgreSQL refuses NUL in a parameter; no id has one.
    known = None
    if "\x00" not in completion_id:
        known = ChatCompletion.objects.filter(pk=completion_id, team_id=principal.team_id).first()
    if known is None:
        raise _unknown(completion_id)
    return known


def _unknown(completion_id: str, *, param: str | None = None) -> NotFound:
    return NotFound(f"Chat completion with id '{completion_id}' not found.", param=param)


def list_messages(*, completion: ChatCompletion, page: PageRequest) -> Page[dict[str, Any]]:
    """The messages that the completion answers, oldest first or newest first."""
    messages = [_shown(completion.pk, index, message) for index, message in enumerate(completion.messages)]
    if page.order is Order.DESC:
        messages.reverse()
    start = 0
    if page.after is not None:
        ids = [message["id"] for message in messages]
        if page.after not in ids:
            raise NotFound(f"Message with id '{page.after}' not found.", param="after")
        start = ids.index(page.after) + 1
    return Page.cut(messages[start : start + page.limit + 1], request=page)


def _shown(completion_id: str, index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message as the list has it: parts stand beside the content, which is then null."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {
        **{name: value for name, value in message.items() if value is not None},
        "id": f"{completion_id}-{index}",
        "content": None if parts is not None else content,
        "content_parts": None if parts is None else [part for part in parts if part["type"] in _SHOWN_PARTS],
    }


def replace_metadata(*, principal: Principal, completion_id: str, metadata: dict[str, str]) -> ChatCompletion:
    """The completion with other metadata in place of its own."""
    completion = get_completion(principal=principal, completion_id=completion_id)
    completion.metadata = metadata
    completion.save(update_fields=["metadata"])
    return completion


def delete_completion(*, principal: Principal, completion_id: str, request: RequestInfo) -> None:
    """Delete a completion with its messages."""
    completion = get_completion(principal=principal, completion_id=completion_id)
    audit(
        team_id=principal.team_id,
        actor=f"key:{principal.key_id}",
        action="chat_completion.deleted",
        target=completion.pk,
        request_id=request.request_id,
    )
    completion.delete()

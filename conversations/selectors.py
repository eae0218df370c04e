"""Reads of conversations. Every function expects to run inside a scope (`tenants.scope`) that lets it see the rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import QuerySet, Value
from django.db.models.functions import Concat

from conversations.models import Conversation, Item, Placement, Section
from kernel.clock import unix
from kernel.errors import NotFound
from kernel.pagination import Page, PageRequest, Position, keyset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFilter:
    """What a list of conversations can be narrowed to."""

    created_after: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def find_conversation(*, team_id: str, conversation_id: str, lock: bool = False) -> Conversation | None:
    """A team's conversation; with `lock` nobody else changes its list until the transaction ends."""
    # PostgreSQL refuses NUL in a parameter; no id has one.
    if "\x00" in conversation_id:
        return None
    rows = Conversation.objects.select_for_update() if lock else Conversation.objects.all()
    return rows.filter(pk=conversation_id, team_id=team_id).first()


def list_conversations(*, team_id: str, narrow: ConversationFilter, page: PageRequest) -> Page[Conversation]:
    """A team's conversations, by time."""
    rows = Conversation.objects.filter(team_id=team_id)
    if narrow.created_after:
        rows = rows.filter(created_at__gt=narrow.created_after)
    if narrow.metadata:
        rows = rows.filter(metadata__contains=narrow.metadata)

    def position(conversation_id: str, param: str) -> Position:
        found = find_conversation(team_id=team_id, conversation_id=conversation_id)
        if found is None:
            raise unknown_conversation(conversation_id, param=param)
        return found.created_at, found.pk

    return keyset(rows, page=page, position=position)


def places(conversation: Conversation) -> QuerySet[Placement]:
    """Where items stand in a conversation."""
    return Placement.objects.filter(owner=conversation.pk, section=Section.ITEMS)


def find_place(*, conversation: Conversation, item_id: str) -> Placement | None:
    """Where the item of this wire id stands in a conversation."""
    if "\x00" in item_id:
        return None
    return next(iter(_named(conversation, [item_id]).select_related("item")), None)


def _named(conversation: Conversation, item_ids: Sequence[str]) -> QuerySet[Placement]:
    """Where the items of these wire ids stand in a conversation.

    An id has few items, and they have few places; a conversation may have very many, which statistics of a large table
    do not know of. So the index of owners is kept out of the search: no index has this expression.
    """
    placed = Placement.objects.annotate(within=Concat("owner", Value("")))
    team_id = conversation.team_id
    return placed.filter(item__id__in=item_ids, item__team_id=team_id, section=Section.ITEMS, within=conversation.pk)


def list_items(*, conversation: Conversation, page: PageRequest) -> Page[Placement]:
    """A page of a conversation."""

    def position(item_id: str, param: str) -> Position:
        found = find_place(conversation=conversation, item_id=item_id)
        if found is None:
            raise unknown_item(item_id, param=param)
        return (found.position,)

    rows = places(conversation).select_related("item")
    return keyset(rows, page=page, position=position, by=("position",))


def items_between(*, conversation: Conversation, after: int, limit: int) -> list[Placement]:
    """The next items behind a position, of those that stood in the conversation when it was read."""
    rows = places(conversation).filter(position__gt=after, position__lt=conversation.next_position)
    return list(rows.select_related("item").order_by("position")[:limit])


def standing(*, conversation: Conversation, item_ids: Sequence[str]) -> set[str]:
    """Those of these wire ids that stand in the conversation."""
    return set(_named(conversation, item_ids).values_list("item__id", flat=True))


def referenced(*, team_id: str, item_ids: Sequence[str], lock: bool = False) -> dict[str, Item]:
    """The team's newest item under each of these wire ids; with `lock` they stay until the transaction ends."""
    found = Item.objects.filter(team_id=team_id, id__in=item_ids).order_by("id", "-created_at").distinct("id")
    if lock:
        # What tells rows apart cannot be locked in one statement.
        found = Item.objects.select_for_update(no_key=True).filter(key__in=found.values("key")).order_by("key")
    return {item.id: item for item in found}


def unknown_conversation(conversation_id: str, *, param: str | None = None) -> NotFound:
    """The 404 for a conversation that does not exist, or not for the caller."""
    return NotFound(f"Conversation with id '{conversation_id}' not found.", param=param)


def unknown_item(item_id: str, *, param: str | None = None) -> NotFound:
    """The 404 for an item that does not stand in the conversation."""
    return NotFound(f"Item with id '{item_id}' not found.", param=param)


def public_conversation(conversation: Conversation) -> dict[str, Any]:
    """The conversation object of the wire."""
    return {
        "id": conversation.pk,
        "object": "conversation",
        "created_at": unix(conversation.created_at),
        "metadata": conversation.metadata,
    }

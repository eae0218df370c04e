"""Reads of conversations. Every function expects to run inside a scope (`tenants.scope`) that lets it see the rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet, Value
from django.db.models.functions import Concat

from conversations.items import InputItem
from conversations.models import Conversation, Item, Placement, RemovedItem, Section
from kernel.clock import unix
from kernel.errors import BadRequest, NotFound
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


def placements(conversation: Conversation) -> QuerySet[Placement]:
    """Where items stand in a conversation."""
    return Placement.objects.filter(owner=conversation.pk, section=Section.ITEMS)


def find_placement(*, conversation: Conversation, item_id: str) -> Placement | None:
    """Where the item of this wire id stands in a conversation."""
    if "\x00" in item_id:
        return None
    found = _placements_of(conversation.team_id, conversation.pk, [item_id])
    return next(iter(found.select_related("item")), None)


def _removed(conversation: Conversation, item_id: str) -> RemovedItem | None:
    """Where the item of this wire id stood last."""
    if "\x00" in item_id:
        return None
    return RemovedItem.objects.filter(conversation=conversation, item_id=item_id).order_by("position").last()


def _placements_of(team_id: str, conversation_id: str, item_ids: Sequence[str]) -> QuerySet[Placement]:
    """Where the items of these wire ids stand in a conversation.

    An id has few items, and they have few places; a conversation may have very many, which statistics of a large table
    do not know of. So the index of owners is kept out of the search: no index has this expression.
    """
    placed = Placement.objects.annotate(within=Concat("owner", Value("")))
    return placed.filter(item__id__in=item_ids, item__team_id=team_id, section=Section.ITEMS, within=conversation_id)


def list_items(*, conversation: Conversation, page: PageRequest) -> Page[Placement]:
    """A page of a conversation. An item that was deleted since it was shown is as good a cursor as any other."""

    def position(item_id: str, param: str) -> Position:
        found = find_placement(conversation=conversation, item_id=item_id) or _removed(conversation, item_id)
        if found is None:
            raise unknown_item(item_id, param=param)
        return (found.position,)

    rows = placements(conversation).select_related("item")
    return keyset(rows, page=page, position=position, by=("position",))


def items_between(*, conversation: Conversation, after: int, limit: int) -> list[Placement]:
    """The next items behind a position, of those that stood in the conversation when it was read."""
    rows = placements(conversation).filter(position__gt=after, position__lt=conversation.next_position)
    return list(rows.select_related("item").order_by("position")[:limit])


# The scan begins at the latest compaction item, which has an index of its own: what lies before it costs nothing.
# OFFSET keeps the planner from joining first and looking at positions later.
_CONTEXT = """
SELECT conversation.next_position, item.body::text
FROM conversations_conversation AS conversation
CROSS JOIN LATERAL (
    SELECT coalesce(max(place.position), 0) AS first FROM conversations_placement AS place
    WHERE place.owner = conversation.id AND place.section = 'items' AND place.opens_context AND place.in_context
      AND place.position < coalesce(%(end)s, conversation.next_position)
) AS opening
LEFT JOIN LATERAL (
    SELECT place.position, place.item_id FROM conversations_placement AS place
    WHERE place.owner = conversation.id AND place.section = 'items' AND place.position >= opening.first
      AND place.position < coalesce(%(end)s, conversation.next_position) AND place.in_context
    OFFSET 0
) AS placement ON true
LEFT JOIN conversations_item AS item ON item.key = placement.item_id
WHERE conversation.id = %(id)s AND conversation.team_id = %(team)s
ORDER BY placement.position
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextItems:
    """What a model reads of a conversation: `texts` are items as JSON, oldest first; `end` is the position behind."""

    end: int
    texts: list[str]


def context_items(*, team_id: str, conversation_id: str, end: int | None = None) -> ContextItems | None:
    """What stands in a conversation of the team before a position, from the latest compaction item on; in one query."""
    if "\x00" in conversation_id:
        return None
    with connection.cursor() as cursor:
        cursor.execute(_CONTEXT, {"id": conversation_id, "team": team_id, "end": end})
        rows = cursor.fetchall()
    if not rows:
        return None
    return ContextItems(end=rows[0][0] if end is None else end, texts=[body for _, body in rows if body is not None])


def refuse_duplicates(*, team_id: str, conversation_id: str, items: Sequence[InputItem], param: str) -> None:
    """An id names one item of a conversation: it is how items are asked for, and the cursor of pages."""
    given = [item.id for item in items if item.id]
    if not given:
        return
    taken = set(_placements_of(team_id, conversation_id, given).values_list("item__id", flat=True))
    for name in given:
        if name in taken:
            message = f"Duplicate item found with id {name}. Remove duplicate items from your input and try again."
            raise BadRequest(message, param=param)
        taken.add(name)


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

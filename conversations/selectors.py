"""Queries for conversations and their items. Callers open a scope (`tenants.scope`) in which the rows are visible."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.db.models import QuerySet, Value
from django.db.models.functions import Concat

from conversations import objects
from conversations.items import InputItem
from conversations.models import Conversation, Item, Placement, RemovedItem, Section
from core.clock import unix
from core.errors import BadRequest, NotFound
from core.http.pagination import Page, PageRequest, keyset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFilter:
    """Filters of a list of conversations."""

    created_after: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def find_conversation(*, team_id: str, conversation_id: str, lock: bool = False) -> Conversation | None:
    """Return a team's conversation, or None. With `lock` its row stays locked until the transaction ends."""
    # Locking the conversation's row serializes all changes of its items.
    rows = Conversation.objects.select_for_update() if lock else Conversation.objects.all()
    return rows.filter(pk=conversation_id, team_id=team_id).first()


def list_conversations(*, team_id: str, filters: ConversationFilter, page: PageRequest) -> Page[Conversation]:
    """Return a page of a team's conversations, ordered by creation time."""
    rows = Conversation.objects.filter(team_id=team_id)
    if filters.created_after:
        rows = rows.filter(created_at__gt=filters.created_after)
    if filters.metadata:
        rows = rows.filter(metadata__contains=filters.metadata)
    return keyset(
        rows,
        page=page,
        find=lambda cursor: find_conversation(team_id=team_id, conversation_id=cursor),
        unknown=unknown_conversation,
    )


def placements(conversation: Conversation) -> QuerySet[Placement]:
    """Return the placements of a conversation's items, unordered."""
    return Placement.objects.filter(owner=conversation.pk, section=Section.ITEMS)


def find_placement(*, conversation: Conversation, item_id: str) -> Placement | None:
    """Return the placement of an item in a conversation, or None."""
    found = _placements_of(conversation.team_id, conversation.pk, [item_id])
    return next(iter(found.select_related("item")), None)


def _placements_of(team_id: str, conversation_id: str, item_ids: Sequence[str]) -> QuerySet[Placement]:
    # An id has few items with few placements each, while a conversation may have very many placements, which the
    # statistics of a large table do not show. The planner must therefore start from the items: comparing an expression
    # that no index has keeps it from using the index on `owner`.
    rows = Placement.objects.annotate(unindexed_owner=Concat("owner", Value("")))
    return rows.filter(
        item__id__in=item_ids, item__team_id=team_id, section=Section.ITEMS, unindexed_owner=conversation_id
    )


def list_items(*, conversation: Conversation, page: PageRequest) -> Page[Placement]:
    """Return a page of a conversation's items. Ids of deleted items remain valid cursors."""

    def find(item_id: str) -> Placement | RemovedItem | None:
        found: Placement | RemovedItem | None = find_placement(conversation=conversation, item_id=item_id)
        if found is None:
            removed = RemovedItem.objects.filter(conversation=conversation, item_id=item_id)
            found = removed.order_by("position").last()
        return found

    rows = placements(conversation).select_related("item")
    return keyset(rows, page=page, find=find, unknown=unknown_item, by=("position",))


def items_between(*, conversation: Conversation, after: int, limit: int) -> list[Placement]:
    """Return the next items after a position, among those present when `conversation` was read."""
    rows = placements(conversation).filter(position__gt=after, position__lt=conversation.next_position)
    return list(rows.select_related("item").order_by("position")[:limit])


# The scan starts at the latest compaction item, which a partial index finds: items before it cost nothing.
# OFFSET 0 keeps the planner from joining the items first and filtering positions later, and from reading the whole
# table of items. Bodies are joined last, so that they are not sorted.
_CONTEXT = """
SELECT context.next_position, item.body
FROM (
    SELECT conversation.next_position, placement.position, placement.item_id
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
    WHERE conversation.id = %(id)s AND conversation.team_id = %(team)s
    ORDER BY placement.position
    OFFSET 0
) AS context
LEFT JOIN LATERAL (
    SELECT body::text FROM conversations_item WHERE key = context.item_id OFFSET 0
) AS item ON true
ORDER BY context.position
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextItems:
    """Items of a conversation that a model reads. `texts` are their JSON, oldest first; `end` is the next position."""

    end: int
    texts: list[str]


def context_items(*, team_id: str, conversation_id: str, end: int | None = None) -> ContextItems | None:
    """Return the items before position `end`, from the latest compaction item on, or None for an unknown conversation.

    Executes a single query, because it is called for every turn of every conversation.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CONTEXT, {"id": conversation_id, "team": team_id, "end": end})
        rows = cursor.fetchall()
    if not rows:
        return None
    return ContextItems(end=rows[0][0] if end is None else end, texts=[body for _, body in rows if body is not None])


def reject_duplicates(*, team_id: str, conversation_id: str, items: Sequence[InputItem], param: str) -> None:
    """Raise `BadRequest` if an item's id occurs twice or is in the conversation already.

    Within a conversation an id names one item: it selects the item in URLs and is the cursor of pages.
    """
    ids = [item.id for item in items if item.id]
    if not ids:
        return
    taken = set(_placements_of(team_id, conversation_id, ids).values_list("item__id", flat=True))
    for item_id in ids:
        if item_id in taken:
            # OpenAI's wording.
            raise BadRequest(
                f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again.",
                param=param,
            )
        taken.add(item_id)


def referenced(*, team_id: str, item_ids: Sequence[str], lock: bool = False) -> dict[str, Item]:
    """Return the team's newest item for each public id. `lock` keeps them from being deleted before the commit."""
    found = Item.objects.filter(team_id=team_id, id__in=item_ids).order_by("id", "-created_at").distinct("id")
    if lock:
        # PostgreSQL allows no row locks together with DISTINCT. Ordered by key, so that transactions cannot deadlock.
        found = Item.objects.select_for_update(no_key=True).filter(key__in=found.values("key")).order_by("key")
    return {item.id: item for item in found}


def unknown_conversation(conversation_id: str, *, param: str | None = None) -> NotFound:
    """Build the 404 for a conversation that does not exist for the caller."""
    return NotFound(f"Conversation with id '{conversation_id}' not found.", param=param)


def unknown_item(item_id: str, *, param: str | None = None) -> NotFound:
    """Build the 404 for an item that is not in the conversation."""
    return NotFound(f"Item with id '{item_id}' not found.", param=param)


def public_conversation(conversation: Conversation) -> objects.Conversation:
    """Return the public conversation object."""
    return {
        "id": conversation.pk,
        "object": "conversation",
        "created_at": unix(conversation.created_at),
        "metadata": conversation.metadata,
    }

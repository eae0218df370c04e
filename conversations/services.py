"""Changes of conversations. Each is one transaction that locks the conversation's row before it changes the items."""

from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from conversations import access, selectors
from conversations.items import CompactionTrigger, InputItem, ItemReference
from conversations.models import Conversation, Item, Placement, RemovedItem, Section, opens_context
from core.errors import UnsupportedValue
from tenants import scope
from tenants.audit import audit, audit_call
from tenants.principal import Principal

_SHARE_PLACEMENTS = """
INSERT INTO conversations_placement (team_id, owner, section, position, item_id, in_context, opens_context)
SELECT team_id, %(fork)s, section, position, item_id, in_context, opens_context FROM conversations_placement
WHERE owner = %(source)s AND section = %(section)s AND position < %(end)s
"""
# Ordered, so that two transactions that lock the same items cannot deadlock.
_LOCK_ITEMS = "SELECT key FROM conversations_item WHERE key = ANY(%(keys)s) ORDER BY key FOR UPDATE"
_DELETE_UNPLACED = """
DELETE FROM conversations_item AS item WHERE item.key = ANY(%(keys)s)
    AND NOT EXISTS (SELECT 1 FROM conversations_placement AS place WHERE place.item_id = item.key)
"""


CheckItems = Callable[[Sequence[InputItem], str], None]
"""Function that checks the items which a client wants to add, and takes the items and the id of the team.

It raises `BadRequest` for items that a response cannot read.
"""


def create_conversation(
    *, principal: Principal, items: Sequence[InputItem], metadata: dict[str, str], check_items: CheckItems | None = None
) -> Conversation:
    """Create a conversation, optionally with items."""
    # Outside the transaction: the check decrypts the items.
    if check_items is not None:
        check_items(items, principal.team_id)
    with scope.team(principal.team_id):
        conversation = Conversation.objects.create(
            team_id=principal.team_id, api_key_id=principal.key_id, metadata=metadata
        )
        _append(principal, conversation, items)
    return conversation


def append_items(
    *,
    principal: Principal,
    conversation_id: str,
    items: Sequence[InputItem],
    check_items: CheckItems | None = None,
) -> list[dict[str, Any]]:
    """Append items to a conversation; returns their stored form."""
    if check_items is not None:
        check_items(items, principal.team_id)
    with scope.team(principal.team_id):
        conversation = access.get_conversation(principal=principal, conversation_id=conversation_id, lock=True)
        return _append(principal, conversation, items)


def _append(principal: Principal, conversation: Conversation, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    # Callers have locked the conversation or just created it, so `next_position` is current.
    if not items:
        return []
    # A row for each item: new ones, and existing ones for item references, which are placed and not copied.
    referenced_ids = [item.id for item in items if isinstance(item, ItemReference)]
    # Locked: see `remove_unplaced`.
    found = (
        selectors.referenced(team_id=principal.team_id, item_ids=referenced_ids, lock=True) if referenced_ids else {}
    )
    rows = []
    for index, item in enumerate(items):
        match item:
            case CompactionTrigger():
                raise UnsupportedValue(
                    "Items of type 'compaction_trigger' cannot be added to a conversation.",
                    param=f"items[{index}].type",
                )
            case ItemReference() if item.id not in found:
                raise selectors.unknown_item(item.id, param="items")
            case ItemReference():
                rows.append(found[item.id])
            case _:
                body = item.with_id()
                rows.append(Item(team_id=principal.team_id, id=body["id"], type=body["type"], body=body))
    selectors.reject_duplicates(
        team_id=conversation.team_id, conversation_id=conversation.pk, items=items, param="items"
    )
    # Rows of item references exist already.
    Item.objects.bulk_create(row for row in rows if row._state.adding)  # noqa: SLF001 - documented by Django
    first = conversation.next_position
    Placement.objects.bulk_create(
        Placement(
            team_id=conversation.team_id,
            owner=conversation.pk,
            section=Section.ITEMS,
            position=first + offset,
            item_id=row.key,
            opens_context=opens_context(row.type),
        )
        for offset, row in enumerate(rows)
    )
    conversation.next_position = first + len(rows)
    conversation.save(update_fields=["next_position"])
    return [row.body for row in rows]


def update_conversation(*, principal: Principal, conversation_id: str, metadata: dict[str, str]) -> Conversation:
    """Replace the metadata of a conversation."""
    with scope.team(principal.team_id):
        conversation = access.get_conversation(principal=principal, conversation_id=conversation_id, lock=True)
        before, conversation.metadata = conversation.metadata, metadata
        conversation.save(update_fields=["metadata"])
        audit_call(
            principal,
            "conversation.updated",
            conversation.pk,
            before={"metadata": before},
            after={"metadata": metadata},
        )
    return conversation


def delete_conversation(*, team_id: str, actor: str, conversation_id: str, reason: str = "") -> None:
    """Delete a conversation, and its items unless a response or a fork uses them.

    The audit log records the `actor`, and the reason if there is one.
    """
    with scope.team(team_id):
        conversation = _locked(team_id, conversation_id)
        placements = selectors.placements(conversation)
        keys = list(placements.values_list("item_id", flat=True))
        # Placements first: `remove_unplaced` keeps items that are still placed somewhere.
        placements.delete()
        remove_unplaced(keys)
        conversation.delete()
        audit(
            team_id=team_id,
            actor=actor,
            action="conversation.deleted",
            target=conversation_id,
            before={"items": len(keys)},
            after={"reason": reason} if reason else None,
        )


def delete_item(*, team_id: str, actor: str, conversation_id: str, item_id: str, reason: str = "") -> Conversation:
    """Remove an item from a conversation; responses and forks that use it keep it."""
    with scope.team(team_id):
        conversation = _locked(team_id, conversation_id)
        placement = access.get_placement(conversation=conversation, item_id=item_id)
        # A client that pages through the list may hold this item as its cursor.
        RemovedItem.objects.create(
            team_id=conversation.team_id, conversation=conversation, item_id=item_id, position=placement.position
        )
        placement.delete()
        remove_unplaced([placement.item_id])
        audit(
            team_id=team_id,
            actor=actor,
            action="conversation.item_deleted",
            target=conversation.pk,
            before={"item": item_id},
            after={"reason": reason} if reason else None,
        )
    return conversation


def fork_conversation(*, team_id: str, key_id: str | None, conversation_id: str, after: str | None) -> Conversation:
    """Create a conversation with the metadata and the items of another, up to and including `after`.

    The fork shares the items of its source, so that forking costs only placements. `key_id` is None for forks made in
    the admin.
    """
    with scope.team(team_id):
        source = _locked(team_id, conversation_id)
        end = source.next_position
        if after is not None:
            placement = selectors.find_placement(conversation=source, item_id=after)
            if placement is None:
                raise selectors.unknown_item(after, param="after")
            end = placement.position + 1
        fork = Conversation.objects.create(
            team_id=source.team_id, api_key_id=key_id, metadata=source.metadata, next_position=end
        )
        # In one statement, as a conversation may have many thousands of items.
        with connection.cursor() as cursor:
            cursor.execute(
                _SHARE_PLACEMENTS, {"fork": fork.pk, "source": source.pk, "section": Section.ITEMS, "end": end}
            )
    return fork


def _locked(team_id: str, conversation_id: str) -> Conversation:
    found = selectors.find_conversation(team_id=team_id, conversation_id=conversation_id, lock=True)
    if found is None:
        raise selectors.unknown_conversation(conversation_id)
    return found


def remove_unplaced(keys: Collection[UUID]) -> None:
    """Delete the items with these keys that no placement uses any more.

    A transaction that places an existing item locks the item first. This function locks the items too. So either it
    sees the placement of the other transaction, or the other transaction does not find the item.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_ITEMS, {"keys": list(keys)})
        cursor.execute(_DELETE_UNPLACED, {"keys": list(keys)})

"""Writes of conversations: each is one transaction. Whoever changes a list holds the lock of its conversation."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from conversations import access, selectors
from conversations.items import CompactionTrigger, InputItem, ItemReference, StoredItem
from conversations.models import Conversation, Item, Placement, RemovedItem, Section, opens_context
from conversations.signals import items_offered
from kernel.errors import UnsupportedValue
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal

_SHARE = """
INSERT INTO conversations_placement (team_id, owner, section, position, item_id, in_context, opens_context)
SELECT team_id, %(fork)s, section, position, item_id, in_context, opens_context FROM conversations_placement
WHERE owner = %(source)s AND section = %(section)s AND position < %(end)s
"""
_LOCK = "SELECT key FROM conversations_item WHERE key = ANY(%(keys)s) ORDER BY key FOR UPDATE"
_REMOVE = """
DELETE FROM conversations_item AS item WHERE item.key = ANY(%(keys)s)
    AND NOT EXISTS (SELECT 1 FROM conversations_placement AS place WHERE place.item_id = item.key)
"""


def create_conversation(*, principal: Principal, items: Sequence[InputItem], metadata: dict[str, str]) -> Conversation:
    """Begin a conversation, with items where there are any."""
    items_offered.send(sender=Conversation, items=items, team_id=principal.team_id)
    with scope.team(principal.team_id):
        conversation = Conversation.objects.create(
            team_id=principal.team_id, api_key_id=principal.key_id, metadata=metadata
        )
        _append(principal, conversation, items)
    return conversation


def append_items(*, principal: Principal, conversation_id: str, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Put items behind those of a conversation; returns them as they are stored."""
    items_offered.send(sender=Conversation, items=items, team_id=principal.team_id)
    with scope.team(principal.team_id):
        conversation = access.get_conversation(principal=principal, conversation_id=conversation_id, lock=True)
        return _append(principal, conversation, items)


def _append(principal: Principal, conversation: Conversation, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The caller holds the conversation's lock, or has just made it."""
    if not items:
        return []
    rows = _rows(principal, items)
    selectors.refuse_duplicates(
        team_id=conversation.team_id, conversation_id=conversation.pk, items=items, param="items"
    )
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


def _rows(principal: Principal, items: Sequence[InputItem]) -> list[Item]:
    """The items as rows: new ones, and for references those that they point at, which are placed and not copied."""
    wanted = [item.id for item in items if isinstance(item, ItemReference)]
    found = selectors.referenced(team_id=principal.team_id, item_ids=wanted, lock=True) if wanted else {}
    rows = []
    for index, item in enumerate(items):
        match item:
            case CompactionTrigger():
                message = "Items of the type 'compaction_trigger' ask for something; a conversation cannot hold them."
                raise UnsupportedValue(message, param=f"items[{index}].type")
            case ItemReference() if item.id not in found:
                raise selectors.unknown_item(item.id, param="items")
            case ItemReference():
                rows.append(found[item.id])
            case _:
                rows.append(_row(principal, item))
    return rows


def _row(principal: Principal, item: StoredItem) -> Item:
    body = item.with_id()
    who = {"team_id": principal.team_id, "api_key_id": principal.key_id}
    return Item(**who, id=body["id"], type=body["type"], body=body)


def update_conversation(
    *, principal: Principal, conversation_id: str, metadata: dict[str, str], request_id: str
) -> Conversation:
    """Replace the metadata of a conversation."""
    with scope.team(principal.team_id):
        conversation = access.get_conversation(principal=principal, conversation_id=conversation_id, lock=True)
        before, conversation.metadata = conversation.metadata, metadata
        conversation.save(update_fields=["metadata"])
        _audit(
            principal,
            "conversation.updated",
            conversation.pk,
            request_id,
            before={"metadata": before},
            after={"metadata": metadata},
        )
    return conversation


def delete_conversation(*, team_id: str, actor: str, conversation_id: str, request_id: str, reason: str = "") -> None:
    """Delete a conversation. Its items stay where responses or forks show them; others go with it. The audit log names
    the `actor`, and the reason where there is one."""
    with scope.team(team_id):
        conversation = _locked(team_id, conversation_id)
        placements = selectors.placements(conversation)
        keys = list(placements.values_list("item_id", flat=True))
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
            request_id=request_id,
        )


def delete_item(
    *, team_id: str, actor: str, conversation_id: str, item_id: str, request_id: str, reason: str = ""
) -> Conversation:
    """Take an item out of a conversation; it stays where responses or forks show it."""
    with scope.team(team_id):
        conversation = _locked(team_id, conversation_id)
        place = access.get_placement(conversation=conversation, item_id=item_id)
        RemovedItem.objects.create(
            team_id=conversation.team_id, conversation=conversation, item_id=item_id, position=place.position
        )
        place.delete()
        remove_unplaced([place.item_id])
        audit(
            team_id=team_id,
            actor=actor,
            action="conversation.item_deleted",
            target=conversation.pk,
            before={"item": item_id},
            after={"reason": reason} if reason else None,
            request_id=request_id,
        )
    return conversation


def fork_conversation(*, team_id: str, key_id: str | None, conversation_id: str, after: str | None) -> Conversation:
    """A new conversation with the metadata and the items of another, up to and with `after`; no item is copied. It is
    the key's that asked for it, if it was one."""
    with scope.team(team_id):
        source = _locked(team_id, conversation_id)
        end = source.next_position
        if after is not None:
            place = selectors.find_placement(conversation=source, item_id=after)
            if place is None:
                raise selectors.unknown_item(after, param="after")
            end = place.position + 1
        fork = Conversation.objects.create(
            team_id=source.team_id, api_key_id=key_id, metadata=source.metadata, next_position=end
        )
        with connection.cursor() as cursor:
            cursor.execute(_SHARE, {"fork": fork.pk, "source": source.pk, "section": Section.ITEMS, "end": end})
    return fork


def _locked(team_id: str, conversation_id: str) -> Conversation:
    """A conversation of the team whose list nobody else changes meanwhile, or the 404 of an unknown id."""
    found = selectors.find_conversation(team_id=team_id, conversation_id=conversation_id, lock=True)
    if found is None:
        raise selectors.unknown_conversation(conversation_id)
    return found


def remove_unplaced(keys: Collection[UUID]) -> None:
    """Remove those of these items that stand nowhere any more.

    Whoever is about to place one of them holds it locked, so that it is either seen here, or not found there.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, {"keys": list(keys)})
        cursor.execute(_REMOVE, {"keys": list(keys)})


def _audit(principal: Principal, action: str, target: str, request_id: str, **what: dict[str, Any]) -> None:
    audit(
        team_id=principal.team_id,
        actor=principal.actor,
        action=action,
        target=target,
        request_id=request_id,
        **what,
    )

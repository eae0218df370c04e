"""One response at a time continues a conversation: it holds it from before its context is read until it has ended.

A hold is as alive as the run of its response. The statement that ends the run gives it back, and appends to the
conversation what the run leaves there: all of its input and output, or nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection, models

from conversations.models import Item, Placement, Section
from kernel.clock import now
from kernel.errors import ConversationLocked
from responses.models import RUNNING, ConversationLock, Response
from responses.runs.store import GUARDED, ExtraWrite
from tenants import scope

_TAKE = """
INSERT INTO responses_conversationhold (conversation_id, team_id, response_id, until)
VALUES (%(conversation)s, %(team)s, %(response)s, %(until)s)
ON CONFLICT (conversation_id) DO NOTHING
"""
# The conversation's row is locked after the hold and never before it, so that nobody waits in a circle. One that was
# deleted meanwhile gets nothing. Where a client has added something since the run has read it, no notes of the run's
# tell of that: there the context must not begin at its compaction item.
_END = f"""conversed AS (
    SELECT * FROM json_to_recordset(%s::json) AS new (
        response_id text, conversation_id text, read_to integer, places json, guard text
    )
    WHERE {GUARDED}
), released AS (
    DELETE FROM responses_conversationhold AS hold USING conversed
    WHERE hold.conversation_id = conversed.conversation_id AND hold.response_id = conversed.response_id
    RETURNING conversed.conversation_id, conversed.read_to, conversed.places,
        json_array_length(conversed.places) AS length
), grown AS (
    UPDATE conversations_conversation AS conversation
    SET next_position = conversation.next_position + released.length
    FROM released WHERE conversation.id = released.conversation_id AND released.length > 0
    RETURNING conversation.id, conversation.team_id, conversation.next_position - released.length AS start,
        released.read_to, released.places
), continued AS (
    INSERT INTO conversations_placement (team_id, owner, section, position, item_id, in_context, opens_context)
    SELECT grown.team_id, grown.id, '{Section.ITEMS}', grown.start + place.number - 1,
        (place.row ->> 'item_id')::uuid, (place.row ->> 'in_context')::boolean,
        (place.row ->> 'opens_context')::boolean AND grown.start IS NOT DISTINCT FROM grown.read_to
    FROM grown, json_array_elements(grown.places) WITH ORDINALITY AS place (row, number)
)"""  # noqa: S608 - parts of our own


class DeadLockOwner(Exception):
    """The conversation is held by a run whose process has died."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        super().__init__(response_id)


def acquire(*, team_id: str, conversation_id: str, response_id: str) -> None:
    """Hold a conversation of the team for a response that is about to be made, in the transaction that reads it.

    Raises `ConversationLocked` while another one holds it, and `DeadLockOwner` where that one has to be ended first.
    """
    at = now()
    until = at + timedelta(seconds=settings.LEASE_SECONDS)
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "conversation": conversation_id,
            "team": team_id,
            "response": response_id,
            "until": until,
        }
        cursor.execute(_TAKE, values)
        if cursor.rowcount:
            return
    held = ConversationLock.objects.select_for_update().filter(pk=conversation_id).first()
    if held is None:
        # Given back this moment; whoever else has heard of that may have it already.
        raise ConversationLocked
    find_owner = Response.objects.filter(pk=held.response_id).first()
    if find_owner is None and held.until > at:
        raise ConversationLocked
    if find_owner is not None and find_owner.status in RUNNING:
        if find_owner.background or find_owner.lease_until is None or find_owner.lease_until > at:
            raise ConversationLocked
        raise DeadLockOwner(find_owner.pk)
    held.response_id, held.until = response_id, until
    held.save(update_fields=["response_id", "until"])


def release(*, team_id: str, conversation_id: str, response_id: str) -> None:
    """Let go of a conversation unless the response was made after all: then its run has the hold."""
    with scope.team(team_id):
        release_if_unstored(conversation_id=conversation_id, response_id=response_id)


def release_if_unstored(*, conversation_id: str, response_id: str) -> bool:
    """Take the hold of a response away that was not made yet, so that it never will be; False where it was made."""
    held = ConversationLock.objects.select_for_update().filter(pk=conversation_id, response_id=response_id).first()
    # Asked only now: who stores the response holds the same lock.
    if Response.objects.filter(pk=response_id).exists():
        return False
    if held is not None:
        held.delete()
    return True


def release_deleted(response: Response) -> None:
    """Free the conversation of a response that is being deleted. The caller holds the response's row."""
    if response.conversation_id is not None:
        ConversationLock.objects.filter(pk=response.conversation_id, response_id=response.pk).delete()


def find_owner(*, conversation_id: str) -> str | None:
    """The response that holds a conversation, whether it was made already or not."""
    return ConversationLock.objects.filter(pk=conversation_id).values_list("response_id", flat=True).first()


def delete_stale_locks() -> int:
    """Delete the holds of responses that were never made, long after; returns how many."""
    with scope.every_team():
        made = Response.objects.filter(pk=models.OuterRef("response_id"))
        long_ago = now() - timedelta(seconds=10 * settings.LEASE_SECONDS)
        stale = ConversationLock.objects.filter(~models.Exists(made), until__lt=long_ago)
        return stale.delete()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationAppend:
    """What a run leaves in its conversation: the places of its input and output so far, in their order.

    `read_to` is the position behind what the run has read of it. `unwritten` are the items that nothing has stored,
    because the response itself is not.
    """

    conversation_id: str
    read_to: int | None
    places: list[Placement] = field(default_factory=list)
    unwritten: list[Item] = field(default_factory=list)

    @classmethod
    def of(cls, response: Response) -> "ConversationAppend | None":
        """That of a run which is taken over. Runs inside a scope that sees the response's team."""
        if response.conversation_id is None:
            return None
        places = Placement.objects.filter(owner=response.pk, section__in=[Section.INPUT, Section.OUTPUT])
        return cls(
            conversation_id=response.conversation_id,
            read_to=response.history_end,
            places=list(places.order_by("section", "position")),
        )

    def add(self, rows: Iterable[models.Model], *, written: bool) -> None:
        """Take in rows of items and of their places in the response."""
        for row in rows:
            match row:
                case Placement():
                    self.places.append(row)
                case Item() if not written:
                    self.unwritten.append(row)

    def ending(self, response_id: str, *, keeps: bool) -> tuple[Sequence[Item], ExtraWrite]:
        """What ends the run beside its own rows: items to insert, and the part that gives the conversation back."""
        places: list[dict[str, Any]] = [
            {"item_id": place.item_id, "in_context": place.in_context, "opens_context": place.opens_context}
            for place in (self.places if keeps else ())
        ]
        row = {"response_id": response_id, "conversation_id": self.conversation_id, "read_to": self.read_to}
        return self.unwritten if keeps else (), ExtraWrite(_END, {**row, "places": places})

"""Conversation locks: only one response at a time can continue a conversation.

A response holds the lock from the time when it reads the conversation until its run ends. The statement that ends the
run also releases the lock and appends the input and output of the run to the conversation: all items, or none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection, models

from conversations.items import CLIENT_CALLS, is_client_call
from conversations.models import Item, Placement, Section
from core.clock import shared_now
from core.db.statement_pipeline import Statement
from core.errors import ConversationLocked
from core.work.leases import expired_before, lease_until
from responses.models import RUNNING, ConversationLock, Response
from responses.runs.rows import Row
from responses.runs.store import GUARDED, ExtraWrite
from tenants import scope

_ACQUIRE = """
INSERT INTO responses_conversationhold (conversation_id, team_id, response_id, until)
VALUES (%(conversation)s, %(team)s, %(response)s, %(until)s)
ON CONFLICT (conversation_id) DO NOTHING
"""
# The row of the conversation lock is always locked before the row of the conversation, because a fixed order prevents
# deadlocks. If the conversation was deleted in the meantime, its row is gone and nothing is appended.
#
# A compaction item opens the context only if no items were appended since the run read the conversation
# (`start = read_to`). Its summary does not include such items, so models must still read them.
_RELEASE_AND_APPEND = Statement(f"""
    WITH ended AS (
        SELECT * FROM json_to_recordset($1::json) AS new (
            response_id text, conversation_id text, read_to integer, places json, guard text
        )
        WHERE {GUARDED}
    ), released AS (
        DELETE FROM responses_conversationhold AS hold USING ended
        WHERE hold.conversation_id = ended.conversation_id AND hold.response_id = ended.response_id
          AND hold.conversation_id = ANY (ARRAY(SELECT conversation_id FROM ended))
        RETURNING ended.conversation_id, ended.read_to, ended.places,
            json_array_length(ended.places) AS length
    ), grown AS (
        UPDATE conversations_conversation AS conversation
        SET next_position = conversation.next_position + released.length
        FROM released WHERE conversation.id = released.conversation_id AND released.length > 0
          AND conversation.id = ANY (ARRAY(SELECT conversation_id FROM ended))
        RETURNING conversation.id, conversation.team_id, conversation.next_position - released.length AS start,
            released.read_to, released.places
    )
    INSERT INTO conversations_placement (team_id, owner, section, position, item_id, in_context, opens_context)
    SELECT grown.team_id, grown.id, '{Section.ITEMS}', grown.start + place.number - 1,
        (place.row ->> 'item_id')::uuid, (place.row ->> 'in_context')::boolean,
        (place.row ->> 'opens_context')::boolean AND grown.start IS NOT DISTINCT FROM grown.read_to
    FROM grown, json_array_elements(grown.places) WITH ORDINALITY AS place (row, number)
""")  # noqa: S608 - parts of our own
_APPENDED = ("item_id", "in_context", "opens_context")


class DeadLockOwner(Exception):
    """The conversation is locked by a run whose process has died; end that run first."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        super().__init__(response_id)


def acquire(*, team_id: str, conversation_id: str, response_id: str) -> None:
    """Lock a conversation of the team for a new response. Call it in the transaction that reads the conversation.

    Raises `ConversationLocked` while another response holds the lock, and `DeadLockOwner` if the run of that response
    is dead.
    """
    until = lease_until()
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "conversation": conversation_id,
            "team": team_id,
            "response": response_id,
            "until": until,
        }
        cursor.execute(_ACQUIRE, values)
        if cursor.rowcount:
            return
    lock = ConversationLock.objects.select_for_update().filter(pk=conversation_id).first()
    if lock is None:
        # The lock was released between the two statements. Do not retry, because another request may have acquired it.
        raise ConversationLocked
    owner = Response.objects.filter(pk=lock.response_id).first()
    expired = expired_before()
    # A response that is not stored yet counts as being created until the time of its lock is over.
    if owner is None and lock.until > expired:
        raise ConversationLocked
    if owner is not None and owner.status in RUNNING:
        # A run of the workers without a valid lease is not dead: the next worker resumes it.
        if owner.background or owner.handed_over_at or owner.lease_until is None or owner.lease_until > expired:
            raise ConversationLocked
        raise DeadLockOwner(owner.pk)
    # Take over the lock, because its owner was never stored or has ended without releasing it.
    lock.response_id, lock.until = response_id, until
    lock.save(update_fields=["response_id", "until"])


def release(*, team_id: str, conversation_id: str, response_id: str) -> None:
    """Release the lock of a response whose creation failed. If the response was stored, its run keeps the lock."""
    with scope.team(team_id):
        release_if_unstored(conversation_id=conversation_id, response_id=response_id)


def release_if_unstored(*, conversation_id: str, response_id: str) -> bool:
    """Release the lock of an unstored response, which prevents storing it. Return False if the response is stored."""
    lock = ConversationLock.objects.select_for_update().filter(pk=conversation_id, response_id=response_id).first()
    # Checked after locking the row, because the change that stores the response locks the same row.
    if Response.objects.filter(pk=response_id).exists():
        return False
    if lock is not None:
        lock.delete()
    return True


def release_deleted(response: Response) -> None:
    """Release the lock of a response that is being deleted. The caller has locked the response's row."""
    if response.conversation_id is not None:
        ConversationLock.objects.filter(pk=response.conversation_id, response_id=response.pk).delete()


def find_owner(*, conversation_id: str) -> str | None:
    """Return the id of the response that holds the lock, stored or not, or None if the conversation is not locked."""
    return ConversationLock.objects.filter(pk=conversation_id).values_list("response_id", flat=True).first()


def delete_stale_locks() -> int:
    """Delete locks of responses that were never stored, long after they expired. Return the number deleted."""
    with scope.every_team():
        stored = Response.objects.filter(pk=models.OuterRef("response_id"))
        # After ten leases, no request can still be creating its response.
        long_ago = shared_now() - timedelta(seconds=10 * settings.LEASE_SECONDS)
        stale = ConversationLock.objects.filter(~models.Exists(stored), until__lt=long_ago)
        return stale.delete()[0]


# The rows that an unstored response has written because of its hosted calls are only copied to the conversation.
_REMOVE_PLACES = Statement(f"""
    WITH ended AS (
        SELECT * FROM json_to_recordset($1::json) AS new (response_id text, guard text) WHERE {GUARDED}
    )
    DELETE FROM conversations_placement WHERE owner = ANY (ARRAY(SELECT response_id FROM ended))
""")  # noqa: S608 - parts of our own


@dataclass(slots=True, kw_only=True)
class ConversationAppend:
    """The items that a run appends to its conversation when it ends: its input and output so far, in order.

    `read_to` is the position after the last item of the conversation that the run has read. `unwritten` are the rows
    that are not in the database, because the response is not stored. `places` are the values of the placements to copy.
    `client_calls` are the keys of the calls in the output that only the client can answer.

    An unstored response writes its items before its first hosted call (`has_called_tools`) and after each step that
    follows. If its process dies, another process can therefore append them to the conversation.
    """

    conversation_id: str
    read_to: int | None
    places: list[Mapping[str, Any]] = field(default_factory=list)
    unwritten: list[Row] = field(default_factory=list)
    client_calls: set[Any] = field(default_factory=set)
    has_called_tools: bool = False
    is_stored: bool = True

    @classmethod
    def of(cls, response: Response) -> "ConversationAppend | None":
        """Load the items that a resumed run will append. Call it inside a scope that sees the response's team."""
        if response.conversation_id is None:
            return None
        sections = [Section.INPUT, Section.OUTPUT]
        placed = Placement.objects.filter(owner=response.pk, section__in=sections).order_by("section", "position")
        rows = list(placed.values(*_APPENDED, "section", "item__type"))
        # Most runs have no such calls, so their bodies need not be read.
        calls = {
            row["item_id"] for row in rows if row["section"] == Section.OUTPUT and row["item__type"] in CLIENT_CALLS
        }
        bodies = dict(Item.objects.filter(pk__in=calls).values_list("pk", "body")) if calls else {}
        return cls(
            conversation_id=response.conversation_id,
            read_to=response.history_end,
            places=[{name: row[name] for name in _APPENDED} for row in rows],
            client_calls={key for key, body in bodies.items() if is_client_call(body)},
            is_stored=response.stored,
        )

    def add(self, rows: Iterable[Row], *, written: bool) -> None:
        """Add items and their placements in the response; `written` is true if these rows are stored."""
        needs_client = False
        for row in rows:
            # The placement of an item follows it.
            if row.table is not Placement:
                needs_client = is_client_call(row.values["body"])
            else:
                self.places.append({name: row.values[name] for name in _APPENDED})
                if needs_client and row.values["section"] == Section.OUTPUT:
                    self.client_calls.add(row.values["item_id"])
            if not written:
                self.is_stored = False
                self.unwritten.append(row)

    def take_unwritten(self) -> Sequence[Row]:
        """Return the rows to write now, because the run has called tools."""
        rows: Sequence[Row] = ()
        if self.has_called_tools:
            rows, self.unwritten = self.unwritten, []
        return rows

    def at_end(
        self, response_id: str, *, is_failure: bool, has_called_tools: bool
    ) -> tuple[Sequence[Row], Sequence[ExtraWrite]]:
        """Return the items to insert when the run ends, and the writes that append them and release the lock.

        A failed or cancelled run changes the conversation only if it has called tools, because the model must know what
        they did. Calls that the client was to answer are then not shown to the model, because no output will follow.
        """
        keeps = has_called_tools or not is_failure
        row = {"response_id": response_id, "conversation_id": self.conversation_id, "read_to": self.read_to}
        places = [self._ended(place) if is_failure else place for place in self.places] if keeps else []
        writes = [ExtraWrite(_RELEASE_AND_APPEND, {**row, "places": places})]
        if has_called_tools and not self.is_stored:
            writes.append(ExtraWrite(_REMOVE_PLACES, {"response_id": response_id}))
        return [row for row in self.unwritten if row.table is not Placement] if keeps else [], writes

    def _ended(self, place: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**place, "in_context": False} if place["item_id"] in self.client_calls else place

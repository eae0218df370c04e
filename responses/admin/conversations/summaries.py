"""Summaries of conversations: responses, usage, last activity, lock owner and a preview.

A single query reads the summaries of all rows of a page. Its cost is bounded for each conversation: only the latest
1,000 responses are counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.models.fields.json import KeyTextTransform

from conversations.items import plain_text
from conversations.models import Conversation, Item, Placement, Section
from core.clock import now
from responses.models import RUNNING, ConversationLock, Response
from tenants.prices import NO_PRICE

# Counting stops at this number, because one long conversation must not slow the whole list down.
MAX_RESPONSES = 1000
MAX_ITEMS = 1000
_PREVIEW_CHARACTERS = 120
# A system message or files may precede the first user message.
_FIRST_ITEMS = 6

# Lateral subqueries read a bounded number of index entries for each conversation. A join with GROUP BY would aggregate
# all responses first.
_SUMMARIES_SQL = """
SELECT one.id, latest.created_at, coalesce(latest.end_user, ''), coalesce(beginning.input_preview, ''),
       coalesce(runs.responses, 0), coalesce(runs.turns, 0), coalesce(runs.tools, 0), coalesce(runs.input, 0),
       coalesce(runs.output, 0), coalesce(runs.errors, 0), runs.cost, coalesce(runs.unpriced, 0),
       items.number
FROM unnest(%(ids)s::text[]) AS one(id)
LEFT JOIN LATERAL (
    SELECT created_at, end_user FROM responses_response AS response WHERE response.conversation_id = one.id
    ORDER BY created_at DESC LIMIT 1
) AS latest ON true
LEFT JOIN LATERAL (
    SELECT input_preview FROM responses_response AS response WHERE response.conversation_id = one.id
    ORDER BY created_at LIMIT 1
) AS beginning ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS responses, sum(turns) AS turns, sum(tool_calls) AS tools, sum(input_tokens) AS input,
           sum(output_tokens) AS output, count(error_code) AS errors, sum(cost) AS cost,
           count(*) FILTER (WHERE cost IS NULL AND turns > 0) AS unpriced
    FROM (
        SELECT turns, tool_calls, input_tokens, output_tokens, error_code, cost FROM responses_response AS response
        WHERE response.conversation_id = one.id ORDER BY created_at DESC LIMIT %(responses)s
    ) AS recent
) AS runs ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM conversations_placement AS place WHERE place.owner = one.id AND place.section = 'items'
        LIMIT %(items)s
    ) AS placed
) AS items ON true
"""

# Conversations have no column for their last activity; the index of responses by time serves instead.
_RECENTLY_ACTIVE_SQL = """
SELECT conversation_id FROM (
    SELECT conversation_id, created_at FROM responses_response
    WHERE created_at >= %(since)s AND (%(teams)s::text[] IS NULL OR team_id = ANY(%(teams)s))
    ORDER BY created_at DESC LIMIT 50000
) AS recent
WHERE conversation_id IS NOT NULL
GROUP BY conversation_id ORDER BY max(created_at) DESC LIMIT 2000
"""


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """Figures of a conversation. The field `responses` and the fields after it are in the order of the query's columns.

    Items and responses are counted up to 1,000; `more_items` and `more_responses` are true if there are more.
    `locked_by` is the id of the response that holds the conversation lock.
    """

    last_active: datetime
    end_user: str
    preview: str
    locked_by: str
    responses: int
    turns: int
    tools: int
    input_tokens: int
    output_tokens: int
    errors: int
    cost: Decimal | None
    unpriced: int
    counted_items: int

    @property
    def items(self) -> int:
        """Number of items, at most 1,000."""
        return min(self.counted_items, MAX_ITEMS)

    @property
    def more_items(self) -> bool:
        """True if there are items that were not counted."""
        return self.counted_items > MAX_ITEMS

    @property
    def tokens(self) -> str:
        """Input and output tokens."""
        return f"{self.input_tokens:,} / {self.output_tokens:,}"

    @property
    def dollars(self) -> str:
        """Cost in US dollars; "No price" if no response had a price. Responses without a price are not included."""
        if self.cost is None:
            return NO_PRICE if self.unpriced else "–"
        return f"at least ${self.cost:,.4f}" if self.unpriced else f"${self.cost:,.4f}"

    @property
    def more_responses(self) -> bool:
        """True if there may be responses that were not counted."""
        return self.responses >= MAX_RESPONSES


def summaries_of(
    conversations: Sequence[Conversation], *, with_previews: bool = True
) -> dict[str, ConversationSummary]:
    """Return the summaries by conversation id."""
    by_id = {row.pk: row for row in conversations}
    if not by_id:
        return {}
    lock_owners = _lock_owners(by_id)
    with connection.cursor() as cursor:
        values: dict[str, Any] = {"ids": list(by_id), "responses": MAX_RESPONSES, "items": MAX_ITEMS + 1}
        cursor.execute(_SUMMARIES_SQL, values)
        rows = cursor.fetchall()
    first_texts = _first_user_texts([row[0] for row in rows if not row[3]]) if with_previews else {}
    return {
        pk: ConversationSummary(
            latest or by_id[pk].created_at,
            end_user,
            (preview or first_texts.get(pk, "")) if with_previews else "",
            lock_owners.get(pk, ""),
            *figures,
        )
        for pk, latest, end_user, preview, *figures in rows
    }


def recently_active(*, length: timedelta, teams: Sequence[str] | None) -> list[str]:
    """Return the ids of conversations with a response in this period, most recent first; `teams` None is every team.

    Considers the newest 50,000 responses at most.
    """
    with connection.cursor() as cursor:
        cursor.execute(_RECENTLY_ACTIVE_SQL, {"since": now() - length, "teams": None if teams is None else list(teams)})
        return [name for (name,) in cursor.fetchall()]


def _lock_owners(ids: Iterable[str]) -> dict[str, str]:
    # By conversation id, the response that holds the lock now.
    locks = list(ConversationLock.objects.filter(pk__in=list(ids)))
    if not locks:
        return {}
    statuses = dict(Response.objects.filter(pk__in=[lock.response_id for lock in locks]).values_list("pk", "status"))
    # While the response is not stored yet, the lock is valid until it expires.
    return {
        lock.conversation_id: lock.response_id
        for lock in locks
        if (statuses[lock.response_id] in RUNNING if lock.response_id in statuses else lock.until > now())
    }


def _first_user_texts(ids: Sequence[str]) -> dict[str, str]:
    # Conversations that were created with items may have no response with a preview. The preview is then the first user
    # message.
    if not ids:
        return {}
    places = Placement.objects.filter(owner__in=list(ids), section=Section.ITEMS, position__lt=_FIRST_ITEMS)
    by_item: dict[Any, list[tuple[str, int]]] = {}
    for owner, position, item_id in places.values_list("owner", "position", "item_id"):
        by_item.setdefault(item_id, []).append((owner, position))
    first: dict[str, tuple[int, str]] = {}
    messages = Item.objects.filter(key__in=list(by_item), type="message").annotate(
        role=KeyTextTransform("role", "body")
    )
    # Items are shared by forks: one may be the first of several conversations.
    for item in messages.filter(role="user"):
        text = plain_text(item.body)[:_PREVIEW_CHARACTERS]
        for owner, position in by_item[item.key]:
            if text and position < first.get(owner, (_FIRST_ITEMS, ""))[0]:
                first[owner] = (position, text)
    return {owner: text for owner, (_, text) in first.items()}


# -- responses of items ------------------------------------------------------------------------------------------------

_MAX_PLACEMENTS = 2000


def responses_of_items(
    conversation: Conversation, places: Sequence[Placement]
) -> tuple[dict[Any, str], dict[str, Response]]:
    """Return two mappings: from item key to the id of the item's response, and from these ids to the responses."""
    elsewhere = Placement.objects.filter(
        item_id__in=[place.item_id for place in places],
        team_id=conversation.team_id,
        section__in=[Section.INPUT, Section.OUTPUT],
    )
    found = list(elsewhere.order_by("-id").values_list("item_id", "owner", "section")[:_MAX_PLACEMENTS])
    rows = Response.objects.filter(pk__in={owner for _, owner, _ in found}, team_id=conversation.team_id)
    responses = {row.pk: row for row in rows.defer("parameters", "options", "metadata", "secrets")}
    best: dict[Any, tuple[bool, bool, str]] = {}
    for item_id, owner, section in found:
        response = responses.get(owner)
        if response is None:
            continue
        # An item may appear in several responses. Prefer responses of this conversation, and prefer the response that
        # produced the item to responses that received it as input.
        rank = (response.conversation_id == conversation.pk, section == Section.OUTPUT, owner)
        if item_id not in best or rank[:2] > best[item_id][:2]:
            best[item_id] = rank
    return {item_id: rank[2] for item_id, rank in best.items()}, responses

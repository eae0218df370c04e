"""What the admin tells of conversations beyond their own rows: what was run in them, who holds them, how they begin.

One query for the rows of a page, whatever their number, and bounded for each of them: of a conversation with more
responses than that, the latest are counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection

from conversations.items import plain_text
from conversations.models import Conversation, Item, Placement, Section
from kernel.clock import now
from responses.models import RUNNING, ConversationLock, Response

MOST_RESPONSES = 1000
MOST_ITEMS = 1000
_PREVIEW = 120
_FIRST_ITEMS = 6

_FACTS = """
SELECT one.id, latest.created_at, latest.end_user, beginning.input_preview,
       coalesce(runs.responses, 0), coalesce(runs.turns, 0), coalesce(runs.tools, 0), coalesce(runs.input, 0),
       coalesce(runs.output, 0), coalesce(runs.errors, 0), runs.cost, items.number
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
           sum(output_tokens) AS output, count(error_code) AS errors, sum(cost) AS cost
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

_ACTIVE = """
SELECT conversation_id FROM (
    SELECT conversation_id, created_at FROM responses_response
    WHERE created_at >= %(since)s AND (%(teams)s::text[] IS NULL OR team_id = ANY(%(teams)s))
    ORDER BY created_at DESC LIMIT 50000
) AS recent
WHERE conversation_id IS NOT NULL
GROUP BY conversation_id ORDER BY max(created_at) DESC LIMIT 2000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a conversation. `items` are as many as were counted; `more_items` when there are others."""

    last_active: datetime
    end_user: str = ""
    preview: str = ""
    responses: int = 0
    turns: int = 0
    tools: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    errors: int = 0
    cost: Decimal | None = None
    items: int = 0
    more_items: bool = False
    held_by: str = ""

    @property
    def more_responses(self) -> bool:
        """Whether there may be others that were not counted."""
        return self.responses >= MOST_RESPONSES


def facts_of(conversations: Sequence[Conversation], *, with_previews: bool = True) -> dict[str, Facts]:
    """The facts by the ids of the conversations."""
    by_id = {row.pk: row for row in conversations}
    if not by_id:
        return {}
    holders = _holders(by_id)
    with connection.cursor() as cursor:
        values: dict[str, Any] = {"ids": list(by_id), "responses": MOST_RESPONSES, "items": MOST_ITEMS + 1}
        cursor.execute(_FACTS, values)
        rows = cursor.fetchall()
    begun = {row[0]: row[3] or "" for row in rows}
    without = [name for name, preview in begun.items() if not preview]
    previews = {**begun, **_first_words(without)} if with_previews else {}
    return {row[0]: _facts(by_id[row[0]], row, previews.get(row[0], ""), holders) for row in rows}


def _facts(conversation: Conversation, row: Sequence[Any], preview: str, holders: Mapping[str, str]) -> Facts:
    latest, end_user, _, responses, turns, tools, tokens_in, tokens_out, errors, cost, items = row[1:]
    return Facts(
        last_active=latest or conversation.created_at,
        end_user=end_user or "",
        preview=preview,
        responses=responses,
        turns=turns,
        tools=tools,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        errors=errors,
        cost=cost,
        items=min(items, MOST_ITEMS),
        more_items=items > MOST_ITEMS,
        held_by=holders.get(conversation.pk, ""),
    )


def lately_active(*, length: timedelta, teams: Sequence[str] | None) -> list[str]:
    """The ids of the conversations that were continued since then, the latest first; `teams` None: every team. Looks
    at the newest 50,000 responses at most."""
    with connection.cursor() as cursor:
        cursor.execute(_ACTIVE, {"since": now() - length, "teams": None if teams is None else list(teams)})
        return [name for (name,) in cursor.fetchall()]


def _holders(ids: Iterable[str]) -> dict[str, str]:
    """The responses that hold these conversations right now."""
    holds = list(ConversationLock.objects.filter(pk__in=list(ids)))
    if not holds:
        return {}
    made = dict(Response.objects.filter(pk__in=[hold.response_id for hold in holds]).values_list("pk", "status"))
    return {hold.conversation_id: hold.response_id for hold in holds if _is_held(hold, made.get(hold.response_id))}


def _is_held(hold: ConversationLock, status: str | None) -> bool:
    return hold.until > now() if status is None else status in RUNNING


def _first_words(ids: Sequence[str]) -> dict[str, str]:
    """How the conversations begin that no response has begun: the first words of a user among the first items."""
    if not ids:
        return {}
    places = Placement.objects.filter(owner__in=list(ids), section=Section.ITEMS, position__lt=_FIRST_ITEMS)
    by_item: dict[Any, list[tuple[str, int]]] = {}
    for owner, position, item_id in places.values_list("owner", "position", "item_id"):
        by_item.setdefault(item_id, []).append((owner, position))
    words: dict[str, tuple[int, str]] = {}
    for item in Item.objects.filter(key__in=list(by_item), type="message", body__role="user"):
        text = plain_text(item.body)[:_PREVIEW]
        for owner, position in by_item[item.key]:
            if text and position < words.get(owner, (_FIRST_ITEMS, ""))[0]:
                words[owner] = (position, text)
    return {owner: text for owner, (_, text) in words.items()}


# -- which response an item belongs to ---------------------------------------------------------------------------------

_MOST_PLACES = 2000


def owners_of(conversation: Conversation, places: Sequence[Placement]) -> tuple[dict[Any, str], dict[str, Response]]:
    """Of each item the response that made it or brought it, by its key; and these responses by their ids."""
    elsewhere = Placement.objects.filter(
        item_id__in=[place.item_id for place in places],
        team_id=conversation.team_id,
        section__in=[Section.INPUT, Section.OUTPUT],
    )
    found = list(elsewhere.order_by("-id").values_list("item_id", "owner", "section")[:_MOST_PLACES])
    rows = Response.objects.filter(pk__in={owner for _, owner, _ in found}, team_id=conversation.team_id)
    responses = {row.pk: row for row in rows.defer("parameters", "options", "metadata", "secrets")}
    best: dict[Any, tuple[bool, bool, str]] = {}
    for item_id, owner, section in found:
        response = responses.get(owner)
        if response is None:
            continue
        # Of several: one of this conversation before others, and whoever made it before those who were told it.
        rank = (response.conversation_id == conversation.pk, section == Section.OUTPUT, owner)
        if item_id not in best or rank[:2] > best[item_id][:2]:
            best[item_id] = rank
    return {item_id: rank[2] for item_id, rank in best.items()}, responses

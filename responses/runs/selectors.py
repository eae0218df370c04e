"""Read responses, chains and items. Call every function inside a scope (`tenants.scope`) that sees the rows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import orjson
from django.conf import settings
from django.db import connection
from django.db.models import IntegerField, TextField
from django.db.models.expressions import BaseExpression, RawSQL

from conversations.items import HISTORY_ONLY
from conversations.models import Placement, Section
from conversations.selectors import context_items
from core.clock import unix
from core.errors import ContextTooLong, NotFound
from core.http.pagination import Page, PageRequest, keyset
from engine.calls.call_items import opened
from engine.calls.questions import Question
from engine.events.response_body import Ending, response_body
from engine.events.types import Body
from engine.turn import Usage
from responses.models import HAS_METADATA, IS_AWAITED, Decision, Response, ToolCall, of_request
from tenants import scope

# The recursion starts with the response itself and continues with its predecessors up to the beginning of the chain.
# The recursive step has no condition on the team: a predecessor always belongs to the same team, row-level security
# enforces this, and with the condition PostgreSQL might scan the team's responses at each step.
#
# A chain may start in a conversation. The chain is read back only to the latest response with a compaction item,
# because models do not read older items.
#
# The form of the query fixes its plan: one index look-up for each response, placement and item (8 ms for 1,000 turns).
# The statistics of a table with a very long conversation make plain joins read the whole tables (1.3 s with a million
# items), hence `OFFSET 0`, and `LIMIT 1` instead of EXISTS. Bodies are joined last, so that they are not sorted.
_OPENS = """coalesce((
    SELECT true FROM conversations_placement AS place
    WHERE place.owner = response.id AND place.opens_context AND place.in_context
    LIMIT 1
), false)"""
_CHAIN = f"""
WITH RECURSIVE chain(id, previous, status, history_id, history_end, opens, depth) AS (
    SELECT id, previous_response_id, status, history_id, history_end, {_OPENS}, 0
    FROM responses_response AS response WHERE id = %(id)s AND team_id = %(team)s AND stored
    UNION ALL
    SELECT response.*, chain.depth + 1
    FROM chain CROSS JOIN LATERAL (
        SELECT id, previous_response_id, status, history_id, history_end, {_OPENS}
        FROM responses_response AS response WHERE response.id = chain.previous
        OFFSET 0
    ) AS response
    WHERE NOT chain.opens
)
SELECT context.status, context.history_id, context.history_end, context.depth = 0 AND context.is_output, item.body
FROM (
    SELECT chain.status, CASE WHEN NOT opens THEN history_id END AS history_id, history_end, chain.depth,
        placement.is_output, placement.position, placement.item_id
    FROM chain LEFT JOIN LATERAL (
        SELECT place.section = 'output' AS is_output, place.position, place.item_id
        FROM conversations_placement AS place WHERE place.owner = chain.id AND place.in_context
        OFFSET 0
    ) AS placement ON true
    ORDER BY chain.depth DESC, placement.is_output, placement.position
    OFFSET 0
) AS context
LEFT JOIN LATERAL (
    SELECT body::text FROM conversations_item WHERE key = context.item_id OFFSET 0
) AS item ON true
ORDER BY context.depth DESC, context.is_output, context.position
"""  # noqa: S608 - parts of our own


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A response and its predecessors: the status of the response, and the items of the whole chain, oldest first.

    The first `settled` items are all items except the response's own output. A successor cannot answer calls in them.
    """

    status: str
    items: list[Body]
    settled: int


def chain(*, team_id: str, response_id: str) -> Chain | None:
    """Return the chain that ends with this response, or None if there is no such stored response.

    Executes one query, whatever the length of the chain, and a second query if the chain begins in a conversation. The
    cost is proportional to the number of items returned.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHAIN, {"id": response_id, "team": team_id})
        rows = cursor.fetchall()
    if not rows:
        return None
    # Only the first response of a chain can have continued a conversation.
    _, history_id, history_end, _, _ = rows[0]
    history = context_items(team_id=team_id, conversation_id=history_id, end=history_end) if history_id else None
    texts = [*(history.texts if history else ()), *(body for *_, body in rows if body is not None)]
    reject_oversized_context(sum(map(len, texts)))
    own = sum(is_own for *_, is_own, body in rows if body is not None)
    return Chain(status=rows[-1][0], items=[orjson.loads(text) for text in texts], settled=len(texts) - own)


def upstream_of(*, team_id: str, response_id: str) -> str:
    """Return the id of the upstream that has answered a response; empty if there is no such response."""
    with scope.team(team_id):
        rows = Response.objects.filter(pk=response_id, team_id=team_id)
        return rows.values_list("upstream_id", flat=True).first() or ""


def reject_oversized_context(characters: int) -> None:
    """Raise `ContextTooLong` for a context that is larger than the largest request body."""
    # Small requests can add up to a large context, so its size is checked before the items are parsed.
    if characters > settings.MAX_BODY_BYTES:
        raise ContextTooLong


def public_bodies(responses: Sequence[Response], *, include: frozenset[str] = frozenset()) -> list[Body]:
    """Return the response objects of these responses. `include` adds optional parts of their items."""
    items, pending = outputs(responses), _pending_decisions(responses)
    return [
        {
            **public_body(response, items.get(response.pk, []), include=include),
            **({"pending_decisions": pending[response.pk]} if response.pk in pending else {}),
        }
        for response in responses
    ]


def _pending_decisions(responses: Sequence[Response]) -> dict[str, list[Body]]:
    """Return the decisions for which these responses wait, as in the API. Responses that do not wait are left out."""
    waiting = [response.pk for response in responses if response.awaits_decision]
    if not waiting:
        return {}
    calls = _awaiting_calls(waiting)
    items = {(call.response_id, call.turn, call.call_id): _open_items(call) for call in calls}
    found: dict[str, list[Body]] = defaultdict(list)
    for row in Decision.objects.filter(IS_AWAITED, response_id__in=waiting).order_by("asked_at", "pk"):
        # The item of an approval has the id of the decision.
        opened = items.get((row.response_id, row.turn or 0, row.call_id)) or [{"id": row.pk}]
        found[row.response_id].append(
            {
                "id": row.pk,
                "kind": row.kind,
                "item_id": opened[0]["id"],
                "expires_at": None if row.expires_at is None else unix(row.expires_at),
                **({} if row.question is None else {"question": Question.restored(row.question).shown()}),
            }
        )
    return found


def _awaiting_calls(response_ids: Sequence[str]) -> Iterable[ToolCall]:
    """Return the calls of these responses that were made and wait for a decision."""
    waiting = ToolCall.objects.filter(response_id__in=response_ids, status="awaiting_decision")
    return waiting.only("response_id", "turn", "call_id", "if_ended").order_by("id")


def _open_items(call: ToolCall) -> list[Body]:
    """Return the item of a call that waits for a decision, in progress."""
    return [opened(body) for body in (call.if_ended or {}).get("items", ())[:1]]


def outputs(responses: Sequence[Response]) -> dict[str, list[Body]]:
    """Return the output items of these responses, by response id. The items of calls that wait are in progress."""
    places = Placement.objects.filter(owner__in=[response.pk for response in responses], section=Section.OUTPUT)
    places = places.exclude(item__type__in=HISTORY_ONLY)
    by_owner: dict[str, list[Body]] = defaultdict(list)
    for owner, body in places.order_by("owner", "position").values_list("owner", "item__body"):
        by_owner[owner].append(body)
    if waiting := [response.pk for response in responses if response.awaits_decision]:
        for call in _awaiting_calls(waiting):
            by_owner[call.response_id] += _open_items(call)
    return by_owner


def public_body(response: Response, output: list[Body], *, include: frozenset[str] = frozenset()) -> Body:
    """Return the response object, the same as in its terminal event. `include` adds optional parts of its items."""
    usage = Usage(
        input_tokens=response.input_tokens,
        cached_tokens=response.cached_tokens,
        cache_write_tokens=response.cache_write_tokens,
        output_tokens=response.output_tokens,
        reasoning_tokens=response.reasoning_tokens,
    )
    ending = Ending(
        status=response.status,
        completed_at=unix(response.completed_at) if response.completed_at else None,
        error=response.error,
        incomplete_reason=response.incomplete_reason,
        service_tier=response.service_tier or "default",
        moderation=response.moderation,
    )
    # Same as in the events: `usage` is null until it is final, and if no model was called.
    is_final = response.ended_at is not None and not response.has_open_call
    parameters = response.parameters
    if parameters.get("model", response.model) != response.model:
        # A fallback model has answered.
        parameters = {**parameters, "model": response.model}
    body = response_body(
        parameters,
        status=response.status,
        output=output,
        usage=usage if is_final and (response.turns or usage.has_tokens) else None,
        ending=ending,
        include=include | response.included,
    )
    # The column has the metadata of the parameters, unless they were changed, but in another order.
    return body if body.get("metadata") == response.metadata else {**body, "metadata": response.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Progress of a run. `ahead` is the number of the team's responses that have waited longer, at most 1,000.

    `tool` is the name of the tool that is running, if any.
    """

    ahead: int
    tool: str | None


# Annotations that are read together with the response, so that a poll executes a single query.
PROGRESS_COLUMNS: Mapping[str, BaseExpression] = {
    "_ahead": RawSQL(
        """CASE WHEN responses_response.status = 'queued' THEN (
            SELECT count(*) FROM (
                SELECT FROM responses_response AS other
                WHERE other.team_id = responses_response.team_id
                  AND other.background AND other.status = 'queued' AND other.waits_until IS NULL
                  AND other.created_at < responses_response.created_at
                  AND (other.not_before IS NULL OR other.not_before <= now() OR other.lease_token > 1)
                LIMIT 1000
            ) AS ahead
        ) ELSE 0 END""",
        (),
        output_field=IntegerField(),
    ),
    "_tool": RawSQL(
        """CASE WHEN responses_response.status = 'in_progress' THEN (
            SELECT call.name FROM responses_toolcall AS call
            WHERE call.response_id = responses_response.id AND call.status = 'in_progress'
            ORDER BY call.id LIMIT 1
        ) END""",
        (),
        output_field=TextField(),
    ),
}


def progress_of(response: Response) -> RunProgress:
    """Return the progress of a response that was read with `PROGRESS_COLUMNS` as annotations."""
    return RunProgress(ahead=vars(response)["_ahead"], tool=vars(response)["_tool"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFilter:
    """The filters of `GET /v1/responses`."""

    model: str | None = None
    status: str | None = None
    conversation_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    end_users: tuple[str, ...] = ()
    error_code: str | None = None
    request_id: str | None = None


def list_responses(*, team_id: str, filters: ResponseFilter, page: PageRequest) -> Page[Response]:
    """Return a page of a team's stored responses, ordered by creation time."""
    # Columns that only the console shows are not read.
    rows = Response.objects.filter(team_id=team_id, stored=True).defer("spans", "claims")
    conditions = {
        "model": filters.model,
        "status": filters.status,
        "conversation_id": filters.conversation_id,
        "created_at__gt": filters.created_after,
        "created_at__lt": filters.created_before,
        "metadata__contains": filters.metadata,
        "error_code": filters.error_code,
    }
    for name, value in conditions.items():
        if value:
            rows = rows.filter(**{name: value})
    for end_user in filters.end_users:
        rows = rows.filter(end_user=end_user)
    if filters.request_id:
        rows = rows.filter(of_request(filters.request_id))
    if filters.metadata:
        rows = rows.filter(HAS_METADATA)
    known = Response.objects.filter(team_id=team_id, stored=True).only("created_at")
    return keyset(rows, page=page, find=lambda cursor: known.filter(pk=cursor).first(), unknown=_unknown)


def _unknown(response_id: str, *, param: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param=param)


# -- for the console ---------------------------------------------------------------------------------------------------

_COUNT_EARLIER = """
WITH RECURSIVE chain(id, previous, depth) AS (
    SELECT id, previous_response_id, 0 FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.id, response.previous_response_id, chain.depth + 1
    FROM responses_response AS response JOIN chain ON response.id = chain.previous
    WHERE response.team_id = %(team)s AND chain.depth < %(deepest)s
), lists(owner, below) AS (
    SELECT id, NULL FROM chain WHERE depth > 0
    UNION ALL
    SELECT response.history_id, response.history_end
    FROM chain JOIN responses_response AS response ON response.id = chain.id
    WHERE response.history_id IS NOT NULL
)
SELECT count(*) FROM lists
JOIN conversations_placement AS placement ON placement.owner = lists.owner
    AND (lists.below IS NULL OR placement.position < lists.below)
WHERE placement.in_context
"""
_MAX_DEPTH = 1000


def count_earlier_items(*, response: Response) -> int:
    """Return the number of chain and conversation items before the response. Counts at most 1,000 earlier responses."""
    if response.previous_response_id is None and response.history_id is None:
        return 0
    with connection.cursor() as cursor:
        values: dict[str, str | int] = {"id": response.pk, "team": response.team_id, "deepest": _MAX_DEPTH}
        cursor.execute(_COUNT_EARLIER, values)
        return int(cursor.fetchone()[0])


def own_items(*, response: Response, section: Section, limit: int) -> list[Placement]:
    """Return the last `limit` items of a response's own input or output, oldest first."""
    places = Placement.objects.filter(owner=response.pk, team_id=response.team_id, section=section)
    return list(places.select_related("item").order_by("-position")[:limit])[::-1]

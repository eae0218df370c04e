"""Reads. Every function expects to run inside a scope (`tenants.scope`) that lets it see the rows."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import orjson
from django.db import connection
from django.db.models import Q, QuerySet

from conversations.models import Item, Placement, Section
from kernel.clock import unix
from kernel.errors import NotFound
from kernel.pagination import Order, Page, PageRequest
from responses.engine.body import Ending, response_body
from responses.engine.events import Body
from responses.engine.turns import Usage
from responses.models import Response

# Newest first: a response's own id, its predecessor's, and so on to the beginning of the chain.
_CHAIN = """
WITH RECURSIVE chain(id, previous, depth) AS (
    SELECT id, previous_response_id, 0 FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.id, response.previous_response_id, chain.depth + 1
    FROM responses_response AS response JOIN chain ON response.id = chain.previous
    WHERE response.team_id = %(team)s
)
SELECT item.body::text
FROM chain
JOIN conversations_placement AS placement ON placement.owner = chain.id
JOIN conversations_item AS item ON item.key = placement.item_id
WHERE placement.in_context
ORDER BY chain.depth DESC, placement.section = 'output', placement.position
"""


def context_items(*, team_id: str, response_id: str) -> list[Body]:
    """What a response that follows this one has to read: the inputs and outputs of the whole chain, oldest first.

    One query for any length; its work is that of the items it returns.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHAIN, {"id": response_id, "team": team_id})
        return [orjson.loads(body) for (body,) in cursor.fetchall()]


def referenced(*, team_id: str, item_ids: Sequence[str]) -> dict[str, Item]:
    """The team's newest item under each of these wire ids."""
    found = Item.objects.filter(team_id=team_id, id__in=item_ids).order_by("id", "-created_at").distinct("id")
    return {item.id: item for item in found}


def outputs(responses: Sequence[Response]) -> dict[str, list[Body]]:
    """The output items of these responses, by response."""
    places = Placement.objects.filter(owner__in=[response.pk for response in responses], section=Section.OUTPUT)
    by_owner: dict[str, list[Body]] = defaultdict(list)
    for place in places.select_related("item").order_by("owner", "position"):
        by_owner[place.owner].append(place.item.body)
    return by_owner


def public_body(response: Response, output: list[Body]) -> Body:
    """The response object, exactly as its terminal event showed it."""
    usage = Usage(
        input_tokens=response.input_tokens,
        cached_tokens=response.cached_tokens,
        output_tokens=response.output_tokens,
        reasoning_tokens=response.reasoning_tokens,
    )
    ending = Ending(
        status=response.status,
        completed_at=unix(response.completed_at) if response.completed_at else None,
        error=response.error,
        incomplete_reason=response.incomplete_reason,
        service_tier=response.service_tier or "default",
    )
    known = response.turns if response.ended_at else 0
    body = response_body(
        response.parameters, status=response.status, output=output, usage=usage if known else None, ending=ending
    )
    return {**body, "metadata": response.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFilter:
    """What `GET /v1/responses` can be narrowed to."""

    model: str | None = None
    status: str | None = None
    conversation_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def list_responses(*, team_id: str, narrow: ResponseFilter, page: PageRequest) -> Page[Response]:
    """A team's stored responses, by time."""
    rows = Response.objects.filter(team_id=team_id, stored=True)
    if narrow.model:
        rows = rows.filter(model=narrow.model)
    if narrow.status:
        rows = rows.filter(status=narrow.status)
    if narrow.conversation_id:
        rows = rows.filter(conversation_id=narrow.conversation_id)
    if narrow.created_after:
        rows = rows.filter(created_at__gt=narrow.created_after)
    if narrow.created_before:
        rows = rows.filter(created_at__lt=narrow.created_before)
    if narrow.metadata:
        rows = rows.filter(metadata__contains=narrow.metadata)
    return _keyset(rows, team_id=team_id, page=page)


def _keyset(rows: QuerySet[Response], *, team_id: str, page: PageRequest) -> Page[Response]:
    newest_first = page.order is Order.DESC
    if page.after:
        rows = rows.filter(_beyond(_cursor(page.after, team_id, "after"), older=newest_first))
    if page.before:
        rows = rows.filter(_beyond(_cursor(page.before, team_id, "before"), older=not newest_first))
    # With `before` alone the page is the one that ends right before the cursor: scan backwards, then turn round.
    backwards = bool(page.before) and not page.after
    descending = newest_first is not backwards
    rows = rows.order_by("-created_at", "-id") if descending else rows.order_by("created_at", "id")
    return Page.cut(list(rows[: page.limit + 1]), request=page)


def _cursor(response_id: str, team_id: str, param: str) -> Response:
    cursor = Response.objects.filter(team_id=team_id, pk=response_id, stored=True).only("created_at").first()
    if cursor is None:
        raise NotFound(f"Response with id '{response_id}' not found.", param=param)
    return cursor


def _beyond(cursor: Response, *, older: bool) -> Q:
    sign = "lt" if older else "gt"
    same = Q(created_at=cursor.created_at) & Q(**{f"id__{sign}": cursor.pk})
    return Q(**{f"created_at__{sign}": cursor.created_at}) | same


def list_input_items(*, response: Response, page: PageRequest) -> Page[Body]:
    """What the response was generated from: the chain before it and its own input, oldest first or newest first."""
    before = response.previous_response_id
    history = context_items(team_id=response.team_id, response_id=before) if before else []
    own = Placement.objects.filter(owner=response.pk, section=Section.INPUT).select_related("item").order_by("position")
    items = [*history, *(place.item.body for place in own)]
    if page.order is Order.DESC:
        items.reverse()
    start, stop = _bounds(items, page)
    window = items[start:stop]
    if page.before and not page.after:
        return Page(rows=window[-page.limit :], has_more=len(window) > page.limit)
    return Page(rows=window[: page.limit], has_more=len(window) > page.limit)


def _bounds(items: list[Body], page: PageRequest) -> tuple[int, int | None]:
    places = {item["id"]: index for index, item in enumerate(items)}
    for param, cursor in (("after", page.after), ("before", page.before)):
        if cursor is not None and cursor not in places:
            raise NotFound(f"Item with id '{cursor}' not found.", param=param)
    start = places[page.after] + 1 if page.after else 0
    return start, places[page.before] if page.before else None

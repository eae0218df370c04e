"""The responses that follow one another by `previous_response_id`, as a tree: from where it began to all its ends."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from console.widgets import when
from responses.admin import cells
from responses.models import Response
from tenants.console.content_access import HIDDEN, audit_read, may_read

MOST_NODES = 200
_MOST_ABOVE = 100
_DEEPEST_LANE = 6

# Neither step names a team in its join: who follows a response is of the same team, and row-level security sees to the
# rest. The limits end the recursion, since PostgreSQL reads no more of it than is asked for.
_ABOVE = """
WITH RECURSIVE above(id, previous, depth) AS (
    SELECT id, previous_response_id, 0 FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.id, response.previous_response_id, above.depth + 1
    FROM responses_response AS response JOIN above ON response.id = above.previous
)
SELECT id, previous FROM above LIMIT %(limit)s
"""
_BELOW = """
WITH RECURSIVE below(id) AS (
    SELECT id FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.id FROM responses_response AS response JOIN below ON response.previous_response_id = below.id
)
SELECT id FROM below LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A response of the tree. `lane` counts the branches to the left of it, `forks` those that begin here; `follows` is
    the response before it where that does not stand right above."""

    response: Response
    lane: int
    forks: int
    follows: str
    is_this: bool
    asked: str
    answered: str

    @property
    def url(self) -> str:
        """Its page."""
        return cells.url(self.response.pk)

    @property
    def status(self) -> SafeString:
        """The badge of its status."""
        return cells.status(self.response)

    @property
    def created(self) -> SafeString | str:
        """When it was created."""
        return when(self.response.created_at)


def chain_view(request: HttpRequest, response: Response) -> HttpResponse:
    """The page of the tree in which a response stands."""
    is_readable = may_read(request, response.team_id)
    if is_readable:
        audit_read(request, response, team_id=response.team_id)
    top, has_earlier = _top(response)
    rows, has_more = _tree(response, top)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "opts": Response._meta,  # noqa: SLF001 - Django's documented API for models
        "original": response,
        "title": "Chain of responses",
        "is_fullwidth": "1",
        "nodes": _nodes(rows, top, response, is_readable=is_readable),
        "top_url": cells.url(top),
        "has_earlier": has_earlier,
        "has_more": has_more,
        "most": MOST_NODES,
    }
    return TemplateResponse(request, "admin/responses/response/chain.html", context)


def _top(response: Response) -> tuple[str, bool]:
    """Where the chain begins, or as far back as is looked; and whether there is more before that."""
    values: dict[str, Any] = {"id": response.pk, "team": response.team_id, "limit": _MOST_ABOVE}
    with connection.cursor() as cursor:
        cursor.execute(_ABOVE, values)
        rows: list[tuple[str, str | None]] = cursor.fetchall()
    top, previous = rows[-1]
    return top, previous is not None and len(rows) == _MOST_ABOVE


def _tree(response: Response, top: str) -> tuple[list[Response], bool]:
    """The responses from there on, breadth first; and whether there are others."""
    values: dict[str, Any] = {"id": top, "team": response.team_id, "limit": MOST_NODES + 1}
    with connection.cursor() as cursor:
        cursor.execute(_BELOW, values)
        ids = [name for (name,) in cursor.fetchall()]
    kept = ids[:MOST_NODES]
    if response.pk not in kept:
        kept = [*kept[:-1], response.pk]
    rows = Response.objects.filter(pk__in=kept, team_id=response.team_id).order_by("created_at", "id")
    return list(rows.defer("parameters", "options", "metadata", "secrets")), len(ids) > MOST_NODES


def _nodes(rows: Sequence[Response], top: str, this: Response, *, is_readable: bool) -> list[Node]:
    """Depth first, the eldest follower right below; each other one begins a branch further to the right."""
    by_id = {row.pk: row for row in rows}
    followers: dict[str, list[Response]] = defaultdict(list)
    for row in rows:
        if row.previous_response_id:
            followers[row.previous_response_id].append(row)
    loose = [row for row in rows if row.pk != top and row.previous_response_id not in by_id]
    waiting = [*((row, 0) for row in reversed(loose)), *([(by_id[top], 0)] if top in by_id else [])]
    found: list[Node] = []
    while waiting:
        row, lane = waiting.pop()
        after = followers[row.pk]
        waiting += [(one, min(lane + 1, _DEEPEST_LANE)) for one in after[1:]]
        waiting += [(one, lane) for one in after[:1]]
        found.append(
            Node(
                response=row,
                lane=lane,
                forks=max(0, len(after) - 1),
                follows=_apart(row, found),
                is_this=row.pk == this.pk,
                asked=row.input_preview if is_readable else HIDDEN,
                answered=row.output_preview if is_readable else HIDDEN,
            )
        )
    return found


def _apart(row: Response, above: Sequence[Node]) -> str:
    previous = row.previous_response_id or ""
    return previous if above and above[-1].response.pk != previous else ""

"""Page of a chain: the responses linked by `previous_response_id`, as a tree from the first one down."""

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

MAX_NODES = 200
_MAX_ANCESTORS = 100
# Deeper branches share the last lane: further indentation would leave no room for text.
_MAX_LANE = 6

# The recursive steps do not filter by team: a response can only follow one of its own team, and row-level security
# applies in any case. LIMIT ends the recursion, because PostgreSQL evaluates it only as far as rows are fetched.
_ANCESTORS_SQL = """
WITH RECURSIVE above(id, previous, depth) AS (
    SELECT id, previous_response_id, 0 FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.id, response.previous_response_id, above.depth + 1
    FROM responses_response AS response JOIN above ON response.id = above.previous
)
SELECT id, previous FROM above LIMIT %(limit)s
"""
_DESCENDANTS_SQL = """
WITH RECURSIVE below(id) AS (
    SELECT id FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.id FROM responses_response AS response JOIN below ON response.previous_response_id = below.id
)
SELECT id FROM below LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A response of the tree.

    `lane` is its indentation, `forks` the number of branches that begin here. `follows` is the id of the previous
    response, unless that is in the row directly above.
    """

    response: Response
    lane: int
    forks: int
    follows: str
    is_this: bool
    input_preview: str
    output_preview: str

    @property
    def url(self) -> str:
        """URL of its page."""
        return cells.url(self.response.pk)

    @property
    def status(self) -> SafeString:
        """Status badge."""
        return cells.status(self.response)

    @property
    def created(self) -> SafeString | str:
        """Time of creation."""
        return when(self.response.created_at)


def chain_view(request: HttpRequest, response: Response) -> HttpResponse:
    """Serve the tree that a response belongs to."""
    is_readable = may_read(request, response.team_id)
    if is_readable:
        audit_read(request, response, team_id=response.team_id)
    top, has_earlier = _top(response)
    rows, has_more = _tree(response, top)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "opts": Response._meta,  # noqa: SLF001 - Django's documented API for models
        "original": response,
        "title": "Response chain",
        "is_fullwidth": "1",
        "nodes": _nodes(rows, top, response, is_readable=is_readable),
        "top_url": cells.url(top),
        "has_earlier": has_earlier,
        "has_more": has_more,
        "limit": MAX_NODES,
    }
    return TemplateResponse(request, "admin/responses/response/chain.html", context)


def _top(response: Response) -> tuple[str, bool]:
    """Return the first response of the chain, up to 100 back, and whether there are earlier ones."""
    values: dict[str, Any] = {"id": response.pk, "team": response.team_id, "limit": _MAX_ANCESTORS}
    with connection.cursor() as cursor:
        cursor.execute(_ANCESTORS_SQL, values)
        rows: list[tuple[str, str | None]] = cursor.fetchall()
    top, previous = rows[-1]
    return top, previous is not None and len(rows) == _MAX_ANCESTORS


def _tree(response: Response, top: str) -> tuple[list[Response], bool]:
    """Return the first 200 responses from `top` down, oldest first, and whether there are more."""
    values: dict[str, Any] = {"id": top, "team": response.team_id, "limit": MAX_NODES + 1}
    with connection.cursor() as cursor:
        cursor.execute(_DESCENDANTS_SQL, values)
        ids = [name for (name,) in cursor.fetchall()]
    # The recursion visits one level after the other, so a cut removes the deepest responses.
    kept = ids[:MAX_NODES]
    # The response that the page was opened from is always included, even in a tree that is too large to show.
    if response.pk not in kept:
        kept = [*kept[:-1], response.pk]
    rows = Response.objects.filter(pk__in=kept, team_id=response.team_id).order_by("created_at", "id")
    return list(rows.defer("parameters", "options", "metadata", "secrets")), len(ids) > MAX_NODES


def _nodes(rows: Sequence[Response], top: str, this: Response, *, is_readable: bool) -> list[Node]:
    """Return the rows in depth-first order: the oldest follower directly below, the others as indented branches."""
    by_id = {row.pk: row for row in rows}
    followers: dict[str, list[Response]] = defaultdict(list)
    for row in rows:
        if row.previous_response_id:
            followers[row.previous_response_id].append(row)
    # Responses whose previous response is not shown come last.
    loose = [row for row in rows if row.pk != top and row.previous_response_id not in by_id]
    stack = [*((row, 0) for row in reversed(loose)), *([(by_id[top], 0)] if top in by_id else [])]
    found: list[Node] = []
    while stack:
        row, lane = stack.pop()
        after = followers[row.pk]
        # The stack is last in, first out: pushing the oldest follower last puts it directly below.
        stack += [(one, min(lane + 1, _MAX_LANE)) for one in after[1:]]
        stack += [(one, lane) for one in after[:1]]
        found.append(
            Node(
                response=row,
                lane=lane,
                forks=max(0, len(after) - 1),
                follows=_parent_if_elsewhere(row, found),
                is_this=row.pk == this.pk,
                input_preview=row.input_preview if is_readable else HIDDEN,
                output_preview=row.output_preview if is_readable else HIDDEN,
            )
        )
    return found


def _parent_if_elsewhere(row: Response, above: Sequence[Node]) -> str:
    previous = row.previous_response_id or ""
    return previous if above and above[-1].response.pk != previous else ""

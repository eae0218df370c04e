"""Page of a chain: the responses linked by `previous_response_id`, as a tree from the first one down."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from console.markdown import without_markup
from responses.admin import cells
from responses.models import Response
from tenants.console.content_access import HIDDEN, read_allowed
from tenants.console.viewer import Viewer

MAX_NODES = 200
_MAX_ANCESTORS = 100
# Deeper branches share the last lane: further indentation would leave no room for text.
_MAX_LANE = 6

# The recursive steps do not filter by team: a response can only follow a response of the same team, and row-level
# security applies in any case. LIMIT ends the recursion, because PostgreSQL stops when enough rows were fetched.
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


@require_safe
def chain_view(request: HttpRequest, viewer: Viewer, response: Response) -> HttpResponse:
    """Serve the tree that a response belongs to."""
    is_readable = read_allowed(viewer, response)
    values: dict[str, Any] = {"id": response.pk, "team": response.team_id, "limit": _MAX_ANCESTORS}
    with connection.cursor() as cursor:
        cursor.execute(_ANCESTORS_SQL, values)
        ancestors: list[tuple[str, str | None]] = cursor.fetchall()
        top, before_top = ancestors[-1]
        cursor.execute(_DESCENDANTS_SQL, {**values, "id": top, "limit": MAX_NODES + 1})
        ids = [name for (name,) in cursor.fetchall()]
    # The recursion visits one level after the other, so the limit removes the deepest responses.
    kept = ids[:MAX_NODES]
    # The response that the page was opened from is always included, even in a tree that is too large to show.
    if response.pk not in kept:
        kept = [*kept[:-1], response.pk]
    rows = Response.objects.filter(pk__in=kept, team_id=response.team_id).order_by("created_at", "id")
    tree = _depth_first(list(rows.defer("parameters", "options", "metadata", "secrets")), top)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "opts": Response._meta,  # noqa: SLF001 - Django's documented API for models
        "original": response,
        "title": "Response chain",
        "is_fullwidth": "1",
        "nodes": [
            {
                "response": row,
                "lane": lane,
                "forks": forks,
                # Empty if the previous response is in the row directly above.
                "follows": row.previous_response_id if above and above.pk != row.previous_response_id else "",
                "is_this": row.pk == response.pk,
                "input_preview": without_markup(row.input_preview) if is_readable else HIDDEN,
                "output_preview": without_markup(row.output_preview) if is_readable else HIDDEN,
                "url": cells.url(row.pk),
                "status": cells.status(row),
                "created": cells.created(row),
            }
            for above, (row, lane, forks) in zip([None, *(row for row, _, _ in tree)], tree, strict=False)
        ],
        "top_url": cells.url(top),
        "has_earlier": before_top is not None and len(ancestors) == _MAX_ANCESTORS,
        "has_more": len(ids) > MAX_NODES,
        "limit": MAX_NODES,
    }
    return TemplateResponse(request, "admin/responses/response/chain.html", context)


def _depth_first(rows: Sequence[Response], top: str) -> list[tuple[Response, int, int]]:
    """Return the rows with their indentation and the number of branches that begin there.

    The oldest follower of a response comes directly below it. The other followers begin indented branches.
    """
    by_id = {row.pk: row for row in rows}
    followers: dict[str, list[Response]] = defaultdict(list)
    for row in rows:
        if row.previous_response_id:
            followers[row.previous_response_id].append(row)
    # Responses whose previous response is not shown come last.
    loose = [row for row in rows if row.pk != top and row.previous_response_id not in by_id]
    stack = [*((row, 0) for row in reversed(loose)), *([(by_id[top], 0)] if top in by_id else [])]
    found = []
    while stack:
        row, lane = stack.pop()
        after = followers[row.pk]
        # The stack is last in, first out: pushing the oldest follower last puts it directly below.
        stack += [(follower, min(lane + 1, _MAX_LANE)) for follower in after[1:]]
        stack += [(follower, lane) for follower in after[:1]]
        found.append((row, lane, max(0, len(after) - 1)))
    return found

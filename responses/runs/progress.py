"""Progress of a response beyond its status, for polling clients: its place in the queue and the running tool."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import IntegerField, TextField
from django.db.models.expressions import BaseExpression, RawSQL

from responses.models import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """`ahead`: the team's responses that have waited longer, counted up to 1,000. `tool`: the tool that is running."""

    ahead: int
    tool: str | None


# Annotations are read together with the response, so that a poll costs a single query.
COLUMNS: Mapping[str, BaseExpression] = {
    "_ahead": RawSQL(
        """CASE WHEN responses_response.status = 'queued' THEN (
            SELECT count(*) FROM (
                SELECT FROM responses_response AS other
                WHERE other.team_id = responses_response.team_id
                  AND other.background AND other.status = 'queued'
                  AND other.created_at < responses_response.created_at
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
    """Return the progress of a response that was read with `COLUMNS` as annotations."""
    return RunProgress(ahead=vars(response)["_ahead"], tool=vars(response)["_tool"])

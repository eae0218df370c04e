"""What is going on with a response besides what its row says, for those who poll it."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import IntegerField, TextField
from django.db.models.expressions import BaseExpression, RawSQL

from responses.models import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """`ahead` are the team's responses that wait longer, of which at most 1,000 are counted; `tool` is being called."""

    ahead: int
    tool: str | None


# As annotations they come with the response itself: whoever polls costs one look at its row.
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


def of(response: Response) -> RunProgress:
    """What is going on with a response that was read with `COLUMNS`."""
    return RunProgress(ahead=vars(response)["_ahead"], tool=vars(response)["_tool"])

"""The targets at which a response was tried, in one line."""

from dataclasses import asdict
from itertools import chain

from engine.failed_targets import FAILED_ATTEMPT, failed_targets
from responses.models import Response, Status, Turn
from tenants.console.tried_targets import tried_targets

# Turns whose failures are named; a run may have thousands.
_MAX_TURNS = 20


def targets_line(response: Response) -> str:
    """Return which target answered and why the ones before it did not; empty if only one target was tried."""
    turns = Turn.objects.filter(
        response_id=response.pk, team_id=response.team_id, spans__contains=FAILED_ATTEMPT
    ).order_by("number")
    spans = chain.from_iterable(turns.values_list("spans", flat=True)[:_MAX_TURNS])
    return tried_targets(
        [asdict(failure) for failure in failed_targets(spans)],
        upstream_id=response.upstream_id,
        upstream_model=response.upstream_model,
        # The row of a failed response names its first target.
        has_failed=response.status == Status.FAILED,
    )

"""The targets at which a response was tried, in one line."""

from collections.abc import Iterable
from itertools import chain

from engine.failed_targets import FAILED_ATTEMPT, FailedTarget, failed_targets
from responses.models import Response, Status, Turn
from tenants.models import Upstream

# Turns whose failures are named; a run may have thousands.
_MAX_TURNS = 20


def targets_line(response: Response) -> str:
    """Return which target answered and why the ones before it did not; empty if only one target was tried."""
    turns = Turn.objects.filter(
        response_id=response.pk, team_id=response.team_id, spans__contains=FAILED_ATTEMPT
    ).order_by("number")
    spans = chain.from_iterable(turns.values_list("spans", flat=True)[:_MAX_TURNS])
    failures = failed_targets(spans)
    if not any(failure.was_replaced for failure in failures):
        return ""
    # The row of a failed response names its first target.
    if response.status == Status.FAILED:
        return f"No target answered; tried: {_listed(failures)}"
    name = Upstream.objects.filter(pk=response.upstream_id).values_list("name", flat=True).first()
    tried = _listed(failure for failure in failures if failure.was_replaced)
    return f"Answered by {name or response.upstream_id} ({response.upstream_model}); tried before: {tried}"


def _listed(failures: Iterable[FailedTarget]) -> str:
    # Without duplicates, in the order of the requests: each turn may have tried the same targets.
    return "; ".join(dict.fromkeys(f"{failure.upstream}: {failure.reason}" for failure in failures))

"""Claimed runs: load and admit them for execution, or end them if they cannot start."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django.conf import settings

from core.clock import shared_now
from core.db.db_threads import in_db_thread
from core.errors import (
    ApiError,
    Failure,
    LimitsUnavailable,
    ModelNotFound,
    PriceUnknown,
    RateLimited,
    RequestTooLargeForLimit,
    ServerError,
)
from core.work.leases import Claim
from engine.events.response_body import Ending, failed
from responses.lifecycle import blocked, queue, resume
from responses.lifecycle.resume import QueuedRun
from responses.lifecycle.run_factory import RunFactory
from responses.lifecycle.stored_run import StoredRun
from responses.models import Response
from responses.moderation.checks import restore_checks
from responses.requests import targets
from responses.runs import cost_bounds
from responses.runs.identity import RunIdentity
from responses.runs.reservations import RunReservation
from responses.runs.runner import AssembledRun
from tenants import directory, scope
from tenants.directory import Route
from tenants.principal import Principal

# The client of a handed-over run has at least this time to reconnect, whatever the grace period of its team is.
_RECONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """A claimed run that is ready to be executed.

    `grace_seconds` is the time for which the run continues without a follower. None means until it ends, as for a
    background run.
    """

    claim: Claim
    stored: StoredRun
    assembled: AssembledRun
    reservation: RunReservation | None
    grace_seconds: float | None

    async def admit(self) -> bool:
        """Reserve the limits of the run. Return False if the run was put back into the queue, or was ended."""
        if (reservation := self.reservation) is None:
            return True
        try:
            await reservation.reserve(self.assembled.run.next_request())
            await reservation.leave_queue()
        except (RequestTooLargeForLimit, PriceUnknown) as never:
            failure = Failure.of_refusal(never)
            await in_db_thread(partial(_end, self.stored, failure))
            return False
        except (RateLimited, LimitsUnavailable) as refused:
            pause = blocked.pause_after(refused, end_user_is_known=True)
            await in_db_thread(partial(queue.postpone, self.claim, seconds=pause.seconds, needs=pause.needs))
            return False
        return True


def read_queued(claims: Sequence[Claim]) -> dict[str, QueuedRun]:
    """Read the claimed runs that no process has begun, and look up their keys and models, with few queries."""
    queued = resume.read_queued(claims)
    rows = [run.response for run in queued.values()]
    directory.look_up_runs(
        {(row.api_key_id, row.team_id, row.model, row.upstream_id, row.upstream_model) for row in rows}
    )
    return queued


def load(claim: Claim, queued: QueuedRun | None = None) -> ClaimedRun | None:
    """Load a claimed run, record the usage that its previous process lost, and prepare the run for execution.

    Return None if the claim was lost, or if the run cannot be executed and was ended instead. `queued` is the run from
    `read_queued`, if no process has begun it.
    """
    stored = queued.load() if queued is not None else resume.load_claimed(claim)
    if stored is None:
        return None
    response, identity = stored.response, stored.identity
    try:
        principal = directory.principal_of_run(response.api_key_id)
        route = _route(response, identity)
    except ApiError as error:
        # The key was revoked, or the model or its upstream was deleted while the response was queued. The run is loaded
        # again with the reservation of its place in the queue, which `queued` does not contain.
        if (dead := resume.load_claimed(claim)) is not None:
            dead.end(failed(Failure.of(ServerError(error.message))))
        return None
    grace = _grace_seconds(response, principal)
    if grace is not None and grace <= 0:
        stored.end(Ending(status="cancelled"))
        return None
    settled = stored.settle_losses()
    if settled is None:
        return None
    reservation = None
    if principal.is_limited:
        capabilities = cost_bounds.widest([target.capabilities for target in route.targets])
        reservation = RunReservation(principal, identity, capabilities)
    factory = RunFactory.for_route(
        route,
        identity,
        checks=restore_checks(response, principal),
        reservation=reservation,
        # Calls of a background run are retried for longer, because no client could repeat the run and its previous tool
        # calls have taken effect.
        patience=settings.UPSTREAM_BACKGROUND_RETRY_SECONDS if response.background else None,
    )
    return ClaimedRun(
        claim=claim,
        stored=settled,
        assembled=settled.build(factory),
        reservation=reservation,
        grace_seconds=grace,
    )


def _route(response: Response, identity: RunIdentity) -> Route:
    """Return the route of a run, beginning with the target that has answered before.

    Raises `ModelNotFound` if no upstream serves the model any more.
    """
    current = (response.model, response.upstream_id, response.upstream_model)
    if not identity.targets:
        model, upstream_id, upstream_model = current
        return directory.route_of_run(
            team_id=response.team_id, model=model, upstream_id=upstream_id, upstream_model=upstream_model
        )
    ordered = sorted((target for target, _ in identity.targets), key=lambda target: target != current)
    found = [route for target in ordered if (route := directory.run_route(response.team_id, *target)) is not None]
    if not found:
        raise ModelNotFound(response.model)
    return targets.with_one_form_of_files(Route.through(found))


def _grace_seconds(response: Response, principal: Principal) -> float | None:
    """Return the seconds for which a handed-over run continues without a follower. None for a background run."""
    if response.background or response.handed_over_at is None or principal.grace_seconds is None:
        return None
    at, longest = shared_now(), max(principal.grace_seconds, _RECONNECT_SECONDS)
    if response.followed_until is not None and response.followed_until > at:
        return longest
    # The time since the handover counts as time without a client, even if all processes were stopped meanwhile.
    return longest - max(0.0, (at - response.handed_over_at).total_seconds())


def _end(stored: StoredRun, failure: Failure) -> None:
    with scope.team(stored.identity.team_id):
        stored.with_stored_grants().end(failed(failure))

"""Ending a run from outside: a state that is written, not a flag that a run may see. Who writes first, the run or the
caller, wins.

Whichever process executes the run hears of it afterwards, writes nothing any more, and closes its upstream connection.
"""

from functools import partial

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Least

from kernel.errors import BadRequest, Failure
from kernel.notifications import notify_from_thread
from responses.engine.events.response_body import Ending
from responses.engine.events.terminal import failed
from responses.engine.events.types import Body
from responses.lifecycle import resume
from responses.models import Response
from responses.runs import access, selectors, store
from responses.runs.identity import channel_of
from responses.runs.ledger import RequestInfo
from responses.runs.runner import channel_of_process
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal

_GIVEN_UP = Failure(
    code="server_error",
    message="This response was ended by hand. What had been finished is in the output.",
)


def cancel_response(*, principal: Principal, response_id: str, request: RequestInfo) -> Body:
    """End a background response as `cancelled`, unless it has ended; returns it as it is then."""
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
    if not response.background:
        raise BadRequest("Cannot cancel a synchronous response.")
    cancel_run(team_id=principal.team_id, actor=principal.actor, response_id=response_id, request=request)
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
        output = selectors.outputs([response]).get(response_id, [])
    return selectors.public_body(response, output)


def cancel_run(*, team_id: str, actor: str, response_id: str, request: RequestInfo) -> bool:
    """End a run as `cancelled` where it stands; False when it has ended already. `actor` is who the audit log names."""
    cancelled = Ending(status="cancelled")
    return _end(team_id, response_id, cancelled, actor=actor, action="response.cancelled", request=request)


def fail_run(*, team_id: str, actor: str, response_id: str, request: RequestInfo) -> bool:
    """End a run as `failed` where it stands, because somebody says that nothing comes of it any more; False when it has
    ended already."""
    return _end(team_id, response_id, failed(_GIVEN_UP), actor=actor, action="response.failed", request=request)


def requeue_run(*, team_id: str, actor: str, response_id: str, request: RequestInfo) -> bool:
    """Take a background run from whoever holds it, so that the next worker goes on with it behind its last committed
    step; False when it has ended, or belongs to a client that waits."""
    with scope.team(team_id):
        running = Response.objects.filter(pk=response_id, ended_at=None, background=True)
        row = running.select_for_update(no_key=True).values("lease_owner", "attempt").first()
        if row is None:
            return False
        # Whoever asks for one more attempt gets it, however many there were.
        allowed = Least(F("attempt"), settings.BACKGROUND_ATTEMPTS - 1)
        running.update(lease_token=F("lease_token") + 1, lease_owner=None, lease_until=None, attempt=allowed)
        audit(
            team_id=team_id,
            actor=actor,
            action="response.requeued",
            target=response_id,
            before={"worker": row["lease_owner"], "attempt": row["attempt"]},
            request_id=request.request_id,
        )
        _notify_on_commit(response_id, row["lease_owner"])
    return True


def _end(team_id: str, response_id: str, ending: Ending, *, actor: str, action: str, request: RequestInfo) -> bool:
    """End a run, waiting or executed by whatever process.

    The row is locked from the first look at it to the commit, so that nothing is added to the run meanwhile: what is
    closed here is all that there is. What is still open in the output ends as incomplete.
    """
    with scope.team(team_id):
        running = Response.objects.filter(pk=response_id, ended_at=None)
        row = running.select_for_update(no_key=True).values("lease_owner").first()
        if row is None:
            return False
        running.update(lease_token=F("lease_token") + 1)
        taken = resume.load(response_id=response_id)
        _, change = taken.recorder.plan(taken.run.end_idle(ending))
        (lost,) = store.apply([change])
        if lost is not None:
            raise lost
        audit(team_id=team_id, actor=actor, action=action, target=response_id, request_id=request.request_id)
        _notify_on_commit(response_id, row["lease_owner"])
    return True


def _notify_on_commit(response_id: str, owner: str | None) -> None:
    """Tell whoever follows the run and whoever executes it. They look at the row, and a page of the admin commits later
    than the service that it calls."""
    channels = [channel_of(response_id), *([channel_of_process(owner)] if owner else [])]
    transaction.on_commit(partial(notify_from_thread, *channels))

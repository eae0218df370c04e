"""Cancelling: a state that is written, not a flag that a run may see. Who writes first, the run or the caller, wins.

Whichever process executes the run hears of it afterwards, writes nothing any more, and closes its upstream connection.
"""

from django.db import transaction
from django.db.models import F

from kernel.errors import BadRequest
from kernel.wakeups import ring_from_thread
from responses import access, handover, selectors, store
from responses.engine.body import Ending
from responses.engine.events import Body
from responses.identity import channel_of
from responses.ledger import RequestInfo
from responses.models import Response
from responses.runner import channel_of_process
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal


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
    """End a run where it stands, waiting or executed by whatever process; False when it has ended already. `actor` is
    who the audit log names.

    The row is locked from the first look at it to the commit, so that nothing is added to the run meanwhile: what is
    closed here is all that there is. What is still open in the output ends as incomplete.
    """
    with scope.team(team_id):
        running = Response.objects.filter(pk=response_id, ended_at=None)
        row = running.select_for_update(no_key=True).values("lease_owner").first()
        if row is None:
            return False
        running.update(lease_token=F("lease_token") + 1)
        taken = handover.load(response_id=response_id)
        _, change = taken.recorder.plan(taken.run.end_dead(Ending(status="cancelled")))
        (lost,) = store.apply([change])
        if lost is not None:
            raise lost
        audit(
            team_id=team_id,
            actor=actor,
            action="response.cancelled",
            target=response_id,
            request_id=request.request_id,
        )
        channels = [channel_of(response_id), *([channel_of_process(row["lease_owner"])] if row["lease_owner"] else [])]
        # Whoever is woken looks at the row: a page of the admin commits later than this block ends.
        transaction.on_commit(lambda: ring_from_thread(*channels))
    return True

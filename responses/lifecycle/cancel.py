"""End runs from outside: cancel, fail or requeue them, and delete responses.

These functions write the terminal state of the run directly, because a run could notice a flag too late. If the run
writes its own end at the same time, the first commit wins. Afterwards the process that executes the run is notified: it
stops writing and closes its upstream connection.
"""

from functools import partial

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Least

from conversations import access as conversation_access
from conversations.models import Conversation, Placement
from conversations.services import remove_unplaced
from core.clock import shared_now
from core.errors import BadRequest, Failure, ServerError
from core.work.leases import expired_before
from core.work.notifications import notify_from_thread
from engine.events.response_body import Ending, failed
from engine.events.types import Body
from idempotency import store as idempotency
from responses.lifecycle import resume
from responses.models import IS_AWAITED, Decision, DecisionState, Response
from responses.runs import access, conversation_lock, selectors
from responses.runs.decisions import waits
from responses.runs.identity import HAS_KEY, RequestInfo, channel_of, channel_of_process
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal

_ENDED_BY_OPERATOR = Failure.of(
    ServerError("This response was ended by an operator. The output contains the steps that were finished before.")
)


def cancel_response(*, principal: Principal, response_id: str, request: RequestInfo) -> Body:
    """Cancel a background response unless it has ended, and return its body.

    Raises `BadRequest` (400) for a foreground response, and `NotFound` for an unknown id.
    """
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
    if not response.background:
        raise BadRequest("Cannot cancel a synchronous response.")
    cancel_run(team_id=principal.team_id, actor=principal.actor, response_id=response_id, request=request)
    with scope.team(principal.team_id):
        response = access.get_response(principal=principal, response_id=response_id)
        output = selectors.outputs([response]).get(response_id, [])
    return selectors.public_body(response, output)


def cancel_active_run(*, principal: Principal, conversation_id: str, request: RequestInfo) -> Conversation:
    """Cancel the run that has locked a conversation, if there is one, and return the conversation.

    If the response of the run is not stored yet, its lock is removed, so that storing it fails.
    """
    with scope.team(principal.team_id):
        conversation = conversation_access.get_conversation(principal=principal, conversation_id=conversation_id)
        response_id = conversation_lock.find_owner(conversation_id=conversation.pk)
        is_stored = response_id is not None and not conversation_lock.release_if_unstored(
            conversation_id=conversation.pk, response_id=response_id
        )
    if response_id is not None and is_stored:
        cancel_run(team_id=principal.team_id, actor=principal.actor, response_id=response_id, request=request)
    return conversation


def cancel_run(*, team_id: str, actor: str, response_id: str, request: RequestInfo) -> bool:
    """End a run as `cancelled`. Return False if it has ended already. `actor` is named in the audit log."""
    cancelled = Ending(status="cancelled")
    return end_run(team_id, response_id, cancelled, actor=actor, action="response.cancelled", request=request)


def fail_run(*, team_id: str, actor: str, response_id: str, request: RequestInfo) -> bool:
    """End a run as `failed` on the request of an operator. Return False if it has ended already."""
    return end_run(
        team_id, response_id, failed(_ENDED_BY_OPERATOR), actor=actor, action="response.failed", request=request
    )


def requeue_run(*, team_id: str, actor: str, response_id: str, request: RequestInfo) -> bool:
    """Take a background run from its worker, so that another worker resumes it after its last committed step.

    Return False if the run has ended, or is a foreground run.
    """
    with scope.team(team_id):
        running = Response.objects.filter(pk=response_id, ended_at=None, background=True)
        row = running.select_for_update(no_key=True).values("lease_owner", "lease_until", "attempt").first()
        if row is None:
            return False
        # An explicit request grants one more attempt, however many there were.
        attempt = Least(F("attempt"), settings.BACKGROUND_ATTEMPTS - 1)
        # The lease is set to expired instead of released, so that the worker that resumes the run records an estimate
        # of the open call. It does not wait until the present worker notices the loss and records the call.
        until = expired_before() if row["lease_until"] is not None else None
        running.update(lease_token=F("lease_token") + 1, lease_owner=None, lease_until=until, attempt=attempt)
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


def end_run(team_id: str, response_id: str, ending: Ending, *, actor: str, action: str, request: RequestInfo) -> bool:
    """End a run, whether it is queued, executed by any process, or waits for a decision.

    Open output items become incomplete. Return False if the run has ended already.
    """
    with scope.team(team_id):
        # The row stays locked until the commit, so that the run cannot store anything after it was loaded here.
        running = Response.objects.filter(pk=response_id, ended_at=None)
        row = running.select_for_update(no_key=True).values("lease_owner", "lease_until", "waits_until").first()
        if row is None:
            return False
        if row["waits_until"] is not None:
            at, awaited = shared_now(), Decision.objects.filter(IS_AWAITED, response_id=response_id)
            for decision in awaited:
                waits.end_wait_of_call(decision, at=at)
            awaited.update(state=DecisionState.WITHDRAWN, answered_at=at, decided_by=actor)
            waits.end_wait_of_run(response_id, at=at)
        # The new token takes the lease from the executing process.
        running.update(lease_token=F("lease_token") + 1)
        # The process records the usage of its open call when it notices, unless it has died.
        died = row["lease_until"] is not None and row["lease_until"] < expired_before()
        if (error := resume.load(response_id=response_id, died=died).end(ending)) is not None:
            raise error
        audit(team_id=team_id, actor=actor, action=action, target=response_id, request_id=request.request_id)
        _notify_on_commit(response_id, row["lease_owner"])
    return True


def _notify_on_commit(response_id: str, owner: str | None) -> None:
    """Notify the followers of a run and the process that executes it."""
    # On commit, because they read the row when they are notified. A request of the console commits after this function.
    channels = [channel_of(response_id), *([channel_of_process(owner)] if owner else [])]
    transaction.on_commit(partial(notify_from_thread, *channels))


def delete_response(*, actor: str, response: Response, request: RequestInfo, reason: str = "") -> None:
    """Delete a response with its turns, tool calls and events, and the items that have no other placement.

    Its successors are linked to its predecessor. Items that were appended to a conversation stay there. The audit log
    records the `actor`, and the `reason` if there is one.
    """
    # A background run is cancelled first, so that its followers and webhooks receive its end. A foreground run stops by
    # itself when its next commit finds no row.
    if response.background:
        cancel_run(team_id=response.team_id, actor=actor, response_id=response.pk, request=request)
    with scope.team(response.team_id):
        # Two neighbours of a chain that are deleted at the same time could link a third response to each other. The
        # lock makes deletions of a team's responses run one after the other.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"cut-out:{response.team_id}"])
        # Successors are locked before the response: the run writer locks rows in that order, and another order could
        # deadlock with it.
        successors = Response.objects.filter(previous_response_id=response.pk)
        list(successors.select_for_update(no_key=True).order_by("pk").values_list("pk"))
        # The row is locked before anything changes. A concurrent end of the run then finds no run to end. A concurrent
        # successor was either stored before the lock, or fails because its predecessor is gone.
        fresh = Response.objects.select_for_update().filter(pk=response.pk).first()
        if fresh is not None:
            successors.update(
                previous_response_id=fresh.previous_response_id,
                history_id=fresh.history_id,
                history_end=fresh.history_end,
            )
            conversation_lock.release_deleted(fresh)
        if response.options.get(HAS_KEY):
            idempotency.delete_answer(response.team_id, response.request_id)
        places = Placement.objects.filter(owner=response.pk)
        keys = list(places.values_list("item_id", flat=True))
        places.delete()
        remove_unplaced(keys)
        audit(
            team_id=response.team_id,
            actor=actor,
            action="response.deleted",
            target=response.pk,
            after={"reason": reason} if reason else None,
            request_id=request.request_id,
        )
        Response.objects.filter(pk=response.pk).delete()

"""Continuing a conversation: a response takes hold of it, reads it, and lets go of it if it is not made after all."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from django.db import models

from conversations import access
from conversations.models import Conversation
from kernel.db_threads import in_db_thread
from kernel.errors import ConversationLocked, PreviousResponseNotFound
from responses.lifecycle import cancel as cancelling
from responses.lifecycle import sweeper
from responses.requests.context import RequestContext, read_context
from responses.runs import conversation_lock
from responses.runs.conversation_lock import ConversationAppend, DeadLockOwner
from responses.runs.identity import RunIdentity
from responses.runs.ledger import RequestInfo
from responses.runs.store import LeaseLost, LockGuard
from responses.schema import CreateResponse
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal

logger = logging.getLogger(__name__)


@asynccontextmanager
async def holding(*, principal: Principal, body: CreateResponse, response_id: str) -> AsyncIterator[None]:
    """A response is made inside of the block, up to its commit; where it is not, its conversation is given back."""
    if body.conversation is None:
        try:
            yield
        except LeaseLost:
            # What it was to follow was deleted while it was made.
            raise PreviousResponseNotFound(body.previous_response_id or "") from None
        return
    give_back = partial(
        conversation_lock.release,
        team_id=principal.team_id,
        conversation_id=body.conversation.id,
        response_id=response_id,
    )
    try:
        yield
    except ConversationLocked:
        raise
    except LeaseLost:
        # It was so long in the making that somebody else has taken over.
        raise ConversationLocked from None
    except BaseException:
        try:
            await asyncio.shield(in_db_thread(give_back))
        except Exception:
            logger.exception("a conversation is held until its hold runs out", extra={"response": response_id})
        raise


async def read(*, principal: Principal, body: CreateResponse, response_id: str) -> RequestContext:
    """Take hold of the conversation of a request, and read it. A run that has died with it is ended first."""
    principal.require(Scope.CONVERSATIONS_WRITE)
    take = partial(read_context, principal=principal, body=body, lock_for=response_id)
    try:
        return await _to_its_end(take)
    except DeadLockOwner as held:
        await in_db_thread(partial(sweeper.end_dead_run, response_id=held.response_id))
    try:
        return await _to_its_end(take)
    except DeadLockOwner:
        raise ConversationLocked from None


async def _to_its_end(take: Callable[[], RequestContext]) -> RequestContext:
    """What a thread takes hold of can be given back only when it has done so, whoever has gone meanwhile."""
    taking = asyncio.ensure_future(in_db_thread(take))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        await asyncio.gather(taking, return_exceptions=True)
        raise


def hold_of(who: RunIdentity) -> LockGuard | None:
    """What the change that makes a response depends on."""
    if who.conversation_id is None:
        return None
    return LockGuard(response_id=who.response_id, conversation_id=who.conversation_id)


def appendix_of(who: RunIdentity, context: RequestContext, rows: Iterable[models.Model]) -> ConversationAppend | None:
    """What a new run leaves in its conversation, beginning with these rows of its input."""
    if who.conversation_id is None:
        return None
    appendix = ConversationAppend(conversation_id=who.conversation_id, read_to=context.history_end)
    appendix.add(rows, written=who.stored)
    return appendix


def cancel(*, principal: Principal, conversation_id: str, request: RequestInfo) -> Conversation:
    """End the run that holds a conversation, if there is one, wherever it is executed; returns the conversation.

    A response that is still in the making loses its hold, and is not made.
    """
    with scope.team(principal.team_id):
        conversation = access.get_conversation(principal=principal, conversation_id=conversation_id)
        response_id = conversation_lock.find_owner(conversation_id=conversation.pk)
        is_made = response_id is not None and not conversation_lock.release_if_unstored(
            conversation_id=conversation.pk, response_id=response_id
        )
    if response_id is not None and is_made:
        cancelling.cancel_run(
            team_id=principal.team_id, actor=principal.actor, response_id=response_id, request=request
        )
    return conversation

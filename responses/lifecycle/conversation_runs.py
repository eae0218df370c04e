"""Runs that continue a conversation: lock it, read it, and release the lock if the response is not stored."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from core.db.db_threads import in_db_thread
from core.errors import ConversationLocked, PreviousResponseNotFound
from responses.lifecycle import sweeper
from responses.requests.context import RequestContext, read_context
from responses.runs import conversation_lock
from responses.runs.conversation_lock import DeadLockOwner
from responses.runs.store import LeaseLost
from responses.schema import CreateResponse
from tenants.models import Scope
from tenants.principal import Principal

logger = logging.getLogger(__name__)


@asynccontextmanager
async def release_on_failure(*, principal: Principal, body: CreateResponse, response_id: str) -> AsyncIterator[None]:
    """Release the conversation lock of a new response if the block, which creates and stores the response, fails.

    Raises `ConversationLocked` or `PreviousResponseNotFound` if the response was not stored because its lock or its
    predecessor was gone.
    """
    if body.conversation is None:
        try:
            yield
        except LeaseLost:
            # The predecessor was deleted after it was read.
            raise PreviousResponseNotFound(body.previous_response_id or "") from None
        return
    release = partial(
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
        # Creating the response took longer than the lock is valid, and another response has taken over the lock.
        raise ConversationLocked from None
    except BaseException:
        # Shielded, because cancellation of the request is one of the failures.
        try:
            await asyncio.shield(in_db_thread(release))
        except Exception:
            logger.exception("a conversation stays locked until its lock expires", extra={"response": response_id})
        raise


async def lock_and_read(body: CreateResponse, *, principal: Principal, response_id: str) -> RequestContext:
    """Lock the conversation of a request for the new response, and return its context.

    Raises `ConversationLocked` while another run holds the lock. If a dead run holds the lock, the run is ended first.
    """
    principal.require(Scope.CONVERSATIONS_WRITE)
    lock = partial(read_context, principal=principal, body=body, lock_for=response_id)
    try:
        return await _run_to_completion(lock)
    except DeadLockOwner as dead:
        await in_db_thread(partial(sweeper.end_dead_run, response_id=dead.response_id))
    try:
        return await _run_to_completion(lock)
    except DeadLockOwner:
        raise ConversationLocked from None


async def _run_to_completion(lock: Callable[[], RequestContext]) -> RequestContext:
    # A database thread cannot be interrupted. If the request is cancelled, wait until the thread has finished, because
    # `release_on_failure` can release the lock only after it was acquired.
    locking = asyncio.ensure_future(in_db_thread(lock))
    try:
        return await asyncio.shield(locking)
    except asyncio.CancelledError:
        await asyncio.gather(locking, return_exceptions=True)
        raise

"""Answers to approval requests in requests whose response is not created."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from core.db.db_threads import in_db_thread
from responses.lifecycle.resolve import NewRequest
from responses.tools import approvals

logger = logging.getLogger(__name__)


@asynccontextmanager
async def withdraw_on_failure(request: NewRequest) -> AsyncIterator[None]:
    """Withdraw the answers in a request if the block, which stores its response, fails. They can be sent again."""
    if not approvals.has_answers(request.body):
        yield
        return
    try:
        yield
    except BaseException:
        withdraw = partial(
            approvals.withdraw_answers, team_id=request.principal.team_id, response_id=request.response_id
        )
        # Shielded, because cancellation of the request is one of the failures.
        try:
            await asyncio.shield(in_db_thread(withdraw))
        except Exception:
            logger.exception(
                "answers to approval requests stay used for a while", extra={"response": request.response_id}
            )
        raise

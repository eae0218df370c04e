"""A whole conversation as JSON Lines, however long it is: a few items are read at a time, and nothing is left out."""

from collections.abc import AsyncGenerator
from functools import partial

import orjson

from conversations import selectors
from conversations.models import Conversation, Placement
from kernel.dbthreads import in_db_thread
from tenants import scope

_AT_ONCE = 100


async def lines(conversation: Conversation) -> AsyncGenerator[bytes, None]:
    """One line for each item, oldest first; of those that stood there when the conversation was read."""
    after = -1
    while batch := await in_db_thread(partial(_next, conversation, after)):
        yield b"".join(orjson.dumps(place.item.body) + b"\n" for place in batch)
        after = batch[-1].position


def _next(conversation: Conversation, after: int) -> list[Placement]:
    with scope.team(conversation.team_id):
        return selectors.items_between(conversation=conversation, after=after, limit=_AT_ONCE)

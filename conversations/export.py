"""A whole conversation as JSON Lines or as Markdown, however long it is: a few items are read at a time, and nothing is
left out of the first form."""

import re
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import orjson

from conversations import selectors
from conversations.items import plain_text
from conversations.models import Conversation, Placement
from kernel.db_threads import in_db_thread
from tenants import scope

_AT_ONCE = 100
_FENCES = re.compile(r"`{3,}")


async def lines(conversation: Conversation) -> AsyncGenerator[bytes, None]:
    """One line for each item, oldest first; of those that stood there when the conversation was read."""
    async for batch in _batches(conversation):
        yield b"".join(orjson.dumps(place.item.body) + b"\n" for place in batch)


async def markdown(conversation: Conversation) -> AsyncGenerator[bytes, None]:
    """The same for people: messages as they were written, calls and what came back of them as code."""
    yield f"# {conversation.pk}\n".encode()
    async for batch in _batches(conversation):
        yield "".join(map(_section, (place.item.body for place in batch))).encode(errors="replace")


async def _batches(conversation: Conversation) -> AsyncGenerator[list[Placement], None]:
    after = -1
    while batch := await in_db_thread(partial(_next, conversation, after)):
        yield batch
        after = batch[-1].position


def _next(conversation: Conversation, after: int) -> list[Placement]:
    with scope.team(conversation.team_id):
        return selectors.items_between(conversation=conversation, after=after, limit=_AT_ONCE)


def _section(body: dict[str, Any]) -> str:
    kind = body["type"].replace("_", " ")
    words = plain_text(body)
    if body["type"] == "message":
        return f"\n## {body['role'].capitalize()}\n\n{words or '(nothing that is text)'}\n"
    named = ": ".join(str(body[name]) for name in ("server_label", "name") if body.get(name))
    heading = f"\n### {kind.capitalize()}{f' `{named}`' if named else ''}\n"
    return f"{heading}\n{_fenced(words)}\n" if words else heading


def _fenced(text: str) -> str:
    """The text between fences that are longer than any in it."""
    longest = max((len(found) for found in _FENCES.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"

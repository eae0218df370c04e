"""Export of a whole conversation as JSON Lines or Markdown.

Items are read in batches, so that memory stays bounded however long a conversation is. JSON Lines is lossless, Markdown
is meant for people.
"""

import re
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import orjson

from conversations import selectors
from conversations.items import plain_text
from conversations.models import Conversation, Placement
from core.db.db_threads import in_db_thread
from tenants import scope

_BATCH = 100
_FENCES = re.compile(r"`{3,}")


async def lines(conversation: Conversation) -> AsyncGenerator[bytes, None]:
    """Yield one line of JSON per item, oldest first. Items appended after `conversation` was read are left out."""
    async for batch in _batches(conversation):
        yield b"".join(orjson.dumps(placement.item.body) + b"\n" for placement in batch)


async def markdown(conversation: Conversation) -> AsyncGenerator[bytes, None]:
    """Yield the conversation as Markdown: messages as text, calls and their outputs as code blocks."""
    yield f"# {conversation.pk}\n".encode()
    async for batch in _batches(conversation):
        # Clients may store lone surrogates, which UTF-8 cannot encode.
        yield "".join(map(_section, (placement.item.body for placement in batch))).encode(errors="replace")


async def _batches(conversation: Conversation) -> AsyncGenerator[list[Placement], None]:
    def read(after: int) -> list[Placement]:
        # One transaction per batch: a slow client must not keep one open for the whole download.
        with scope.team(conversation.team_id):
            return selectors.items_between(conversation=conversation, after=after, limit=_BATCH)

    after = -1
    while batch := await in_db_thread(partial(read, after)):
        yield batch
        after = batch[-1].position


def _section(body: dict[str, Any]) -> str:
    kind = body["type"].replace("_", " ")
    text = plain_text(body)
    if body["type"] == "message":
        return f"\n## {body['role'].capitalize()}\n\n{text or '(no text)'}\n"
    tool = ": ".join(str(body[name]) for name in ("server_label", "name") if body.get(name))
    heading = f"\n### {kind.capitalize()}{f' `{tool}`' if tool else ''}\n"
    # A fence must be longer than any run of backticks in the text, or the text would end the block.
    fence = "`" * (max((len(run) for run in _FENCES.findall(text)), default=2) + 1)
    return f"{heading}\n{fence}\n{text}\n{fence}\n" if text else heading

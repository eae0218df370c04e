"""Earlier reasoning → fields of the assistant messages behind it, for models that want it back.

Chat completions have no place for reasoning of their own; `Capabilities.reasoning_field` names the one that an upstream
reads.
"""

from collections.abc import Sequence
from typing import Any

from conversations.items import InputMessage, Reasoning, StoredItem
from responses.engine.chat.reasoning import ReasoningCipher, ReasoningContent
from responses.engine.responses_api.segments import ENCRYPTED

Message = dict[str, Any]
# The fields that hold entries of the upstream's own, with signatures, instead of text.
_ENTRIES = {"reasoning_details", "thinking_blocks"}


class ThoughtWriter:
    """Adds reasoning to the messages of one turn, as they are written."""

    def __init__(
        self, field: str, *, cipher: ReasoningCipher | None, items: Sequence[StoredItem], all_turns: bool
    ) -> None:
        self._field = field
        self._cipher = cipher
        self._waiting: list[ReasoningContent] = []
        self._size = (0, 0)
        # Of earlier turns only where the client asks for it: what a model thought then seldom helps it now.
        earlier = 0 if all_turns else last_question(items)
        self._ahead = items[earlier - 1] if earlier else None

    def follow(self, item: StoredItem, written: list[Message]) -> None:
        """An item was written: keep its reasoning, or give what was kept to the assistant message that it is in."""
        if self._ahead is not None:
            if item is self._ahead:
                self._ahead = None
        elif isinstance(item, Reasoning):
            self._waiting.append(self._thought(item))
        before, self._size = self._size, _size(written)
        if not self._waiting or before == self._size:
            return
        message = _answer(written, before[0], may_join=not isinstance(item, InputMessage))
        if message is not None:
            self._add(message)
        self._waiting.clear()

    def _thought(self, item: Reasoning) -> ReasoningContent:
        opened = self._cipher.decrypt(item.encrypted_content) if self._cipher and item.encrypted_content else None
        if opened is not None:
            return opened
        return ReasoningContent(text="".join(part.text for part in item.content or ()))

    def _add(self, message: Message) -> None:
        if self._field in _ENTRIES:
            kept = (entry for thought in self._waiting for entry in thought.details)
            # What an upstream of Responses has encrypted is of no use to any other.
            entries = [entry for entry in kept if entry.get("type") != ENCRYPTED]
            if entries:
                message[self._field] = [*message.get(self._field, ()), *entries]
            return
        texts = [message.get(self._field, ""), *(thought.text for thought in self._waiting)]
        if text := "\n\n".join(text for text in texts if text):
            message[self._field] = text


def last_question(items: Sequence[StoredItem]) -> int:
    """How many items stand before the user's last message, itself included."""
    for position in range(len(items) - 1, -1, -1):
        item = items[position]
        if isinstance(item, InputMessage) and item.role == "user":
            return position + 1
    return 0


def _size(written: list[Message]) -> tuple[int, int]:
    """How many messages there are, and calls in the last one: whether an item has added anything."""
    return len(written), len(written[-1].get("tool_calls", ())) if written else 0


def _answer(written: list[Message], first: int, *, may_join: bool) -> Message | None:
    """The assistant message among the new ones; else the one before them, which a call has joined."""
    new = next((message for message in written[first:] if message["role"] == "assistant"), None)
    if new is None and may_join and first and written[first - 1]["role"] == "assistant":
        return written[first - 1]
    return new

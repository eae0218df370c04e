"""Earlier reasoning → fields of the assistant messages behind it, for models that want it back.

Chat completions have no place for reasoning of their own; `Capabilities.reasoning_field` names the one that an upstream
reads.
"""

from collections.abc import Sequence
from typing import Any

from conversations.items import InputMessage, Reasoning, StoredItem
from responses.engine.reasoning import Seal, Thought

Message = dict[str, Any]
# The fields that hold entries of the upstream's own, with signatures, instead of text.
_ENTRIES = {"reasoning_details", "thinking_blocks"}


class ThoughtWriter:
    """Adds reasoning to the messages of one turn, as they are written."""

    def __init__(self, field: str, *, seal: Seal | None, items: Sequence[StoredItem], all_turns: bool) -> None:
        self._field = field
        self._seal = seal
        self._waiting: list[Thought] = []
        # Of earlier turns only where the client asks for it: what a model thought then seldom helps it now.
        self._skip = 0 if all_turns else last_question(items)

    def follow(self, item: StoredItem, written: list[Message]) -> None:
        """An item was written: keep its reasoning, or give what was kept to the assistant message that it made."""
        self._skip -= 1
        if isinstance(item, Reasoning):
            if self._skip < 0:
                self._waiting.append(self._thought(item))
            return
        if self._waiting and written and written[-1]["role"] == "assistant":
            self._add(written[-1])
        self._waiting.clear()

    def _thought(self, item: Reasoning) -> Thought:
        opened = self._seal.open(item.encrypted_content) if self._seal and item.encrypted_content else None
        if opened is not None:
            return opened
        return Thought(text="".join(part.text for part in item.content or ()))

    def _add(self, message: Message) -> None:
        if self._field in _ENTRIES:
            entries = [entry for thought in self._waiting for entry in thought.details]
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

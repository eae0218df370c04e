"""Writes earlier reasoning into the assistant messages that follow it, for models that want it back.

Chat completions define no field for reasoning; `Capabilities.reasoning_field` names the one that an upstream reads.
"""

from collections.abc import Sequence
from typing import Any

from conversations.items import InputMessage, Reasoning, StoredItem
from responses.engine.converter.reasoning import ReasoningCipher, ReasoningContent
from responses.engine.converter.responses_api import ENCRYPTED

Message = dict[str, Any]
# Fields that contain the upstream's own entries, with signatures, instead of text.
_ENTRY_FIELDS = {"reasoning_details", "thinking_blocks"}


class ReasoningWriter:
    """Adds reasoning to the messages of one turn while they are written."""

    def __init__(
        self, field: str, *, cipher: ReasoningCipher | None, items: Sequence[StoredItem], all_turns: bool
    ) -> None:
        self._field = field
        self._cipher = cipher
        self._waiting: list[ReasoningContent] = []
        self._size = (0, 0)
        # Reasoning before the last user message is only sent if the client asks for it with `reasoning.context`: it
        # costs tokens and rarely helps to answer a new question.
        earlier = 0 if all_turns else after_last_user_message(items)
        self._skip_until = items[earlier - 1] if earlier else None

    def follow(self, item: StoredItem, written: list[Message]) -> None:
        """Process an item that was just written: hold its reasoning, or add held reasoning to its assistant message."""
        if self._skip_until is not None:
            if item is self._skip_until:
                self._skip_until = None
        elif isinstance(item, Reasoning):
            self._waiting.append(self._content(item))
        before, self._size = self._size, _size(written)
        if not self._waiting or before == self._size:
            return
        message = _assistant_message(written, before[0], may_join=not isinstance(item, InputMessage))
        if message is not None:
            self._add(message)
        self._waiting.clear()

    def _content(self, item: Reasoning) -> ReasoningContent:
        content = self._cipher.decrypt(item.encrypted_content) if self._cipher and item.encrypted_content else None
        if content is not None:
            return content
        return ReasoningContent(text="".join(part.text for part in item.content or ()))

    def _add(self, message: Message) -> None:
        if self._field in _ENTRY_FIELDS:
            details = (entry for content in self._waiting for entry in content.details)
            # Encrypted content of a Responses upstream cannot be read by any other upstream.
            entries = [entry for entry in details if entry.get("type") != ENCRYPTED]
            if entries:
                message[self._field] = [*message.get(self._field, ()), *entries]
            return
        texts = [message.get(self._field, ""), *(content.text for content in self._waiting)]
        if text := "\n\n".join(text for text in texts if text):
            message[self._field] = text


def after_last_user_message(items: Sequence[StoredItem]) -> int:
    """Return the index after the last message of the user; 0 if there is none."""
    for position in range(len(items) - 1, -1, -1):
        item = items[position]
        if isinstance(item, InputMessage) and item.role == "user":
            return position + 1
    return 0


def _size(written: list[Message]) -> tuple[int, int]:
    # The number of messages, and of calls in the last one. It changes if an item has added anything.
    return len(written), len(written[-1].get("tool_calls", ())) if written else 0


def _assistant_message(written: list[Message], first: int, *, may_join: bool) -> Message | None:
    # The new assistant message, or the one before it that a call was merged into.
    new = next((message for message in written[first:] if message["role"] == "assistant"), None)
    if new is None and may_join and first and written[first - 1]["role"] == "assistant":
        return written[first - 1]
    return new

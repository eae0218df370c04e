"""Restores call extras: data that an upstream wants back with its calls, stored in reasoning items."""

from collections.abc import Iterable
from typing import Any

from conversations.items import Reasoning, StoredItem
from responses.engine.converter.reasoning import ReasoningCipher

Message = dict[str, Any]


class CallExtras:
    """Extras of one conversation, each for one call."""

    def __init__(self, cipher: ReasoningCipher | None = None, items: Iterable[StoredItem] = ()) -> None:
        self._kept: list[Message] = []
        for item in items:
            # Extras are only stored in items without text; decrypting all others would be too expensive.
            if isinstance(item, Reasoning) and item.encrypted_content and not item.content and not item.summary:
                content = cipher.decrypt(item.encrypted_content) if cipher is not None else None
                self._kept += content.calls if content is not None else ()

    def add_to(self, call: Message) -> Message:
        """Return the call with its extras, if it has any. Each extra is used once."""
        # By id, or else by name: a hosted call is sent with the id of its item instead of the upstream's call id.
        name = (call.get("function") or call.get("custom") or {}).get("name")
        found = next((kept for kept in self._kept if kept["call_id"] == call["id"]), None)
        found = found or next((kept for kept in self._kept if kept["name"] == name), None)
        if found is None:
            return call
        self._kept.remove(found)
        return {**call, **found["extras"]}

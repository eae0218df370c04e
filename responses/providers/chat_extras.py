"""What an upstream has hung onto its calls → back onto them, out of the reasoning items that keep it."""

from collections.abc import Iterable
from typing import Any

from conversations.items import Reasoning, StoredItem
from responses.engine.chat.reasoning import ReasoningCipher

Message = dict[str, Any]


class CallExtras:
    """The extras of one conversation, each for one call."""

    def __init__(self, cipher: ReasoningCipher | None = None, items: Iterable[StoredItem] = ()) -> None:
        self._kept: list[Message] = []
        for item in items:
            # Only items without words of their own keep extras: opening every one would cost too much.
            if isinstance(item, Reasoning) and item.encrypted_content and not item.content and not item.summary:
                thought = cipher.decrypt(item.encrypted_content) if cipher is not None else None
                self._kept += thought.calls if thought is not None else ()

    def added_to(self, call: Message) -> Message:
        """The call with its extras. One that a tool of the server's made has another id now, and the same name."""
        name = (call.get("function") or call.get("custom") or {}).get("name")
        found = next((kept for kept in self._kept if kept["call_id"] == call["id"]), None)
        found = found or next((kept for kept in self._kept if kept["name"] == name), None)
        if found is None:
            return call
        self._kept.remove(found)
        return {**call, **found["extras"]}

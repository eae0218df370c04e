"""Call extras: data that an upstream attaches to a call and wants back with it, such as thought signatures.

They are stored like reasoning: encrypted, in a separate reasoning item in front of the call. In this way they also
survive in clients that keep the history themselves, and only the upstream reads them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import override

from responses.engine.converter.calls import CallSegment
from responses.engine.converter.reasoning import ReasoningCipher, ReasoningContent
from responses.engine.converter.segments import ItemStatus, Segment
from responses.engine.events.types import Body, Event

# Of Gemini's OpenAI-compatible API, and of LiteLLM.
_EXTRAS = ("extra_content", "thought_signature", "provider_specific_fields")


def extras_of(call: Mapping[str, Any]) -> Body:
    """Return the extras in a delta of a call."""
    return {name: call[name] for name in _EXTRAS if call.get(name)}


class ExtrasSegment(Segment):
    """Reasoning item that stores extras. `entries` are calls, each with its extras."""

    prefix = "rs"

    def __init__(self, cipher: ReasoningCipher, entries: Iterable[tuple[CallSegment, Body]]) -> None:
        super().__init__()
        self._cipher = cipher
        self._entries = list(entries)
        self._encrypted: str | None = None

    @override
    def close(self, status: ItemStatus) -> list[Event]:
        calls = [{"call_id": call.call_id, "name": call.name, "extras": extras} for call, extras in self._entries]
        self._encrypted = self._cipher.encrypt(ReasoningContent(calls=calls))
        return super().close(status)

    @override
    def flush(self) -> list[Event]:
        return []

    @override
    def finish(self) -> list[Event]:
        return []

    @override
    def body(self, *, empty: bool = False) -> Body:
        body: Body = {"id": self.id, "type": "reasoning", "status": self.status, "summary": []}
        return body if self._encrypted is None else {**body, "encrypted_content": self._encrypted}

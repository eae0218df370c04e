"""What an upstream wants back with a call: signatures of its thinking, and whatever else it hangs onto the call.

It is kept as reasoning is: sealed, in a reasoning item of its own in front of the call. So it comes back through
clients that keep their own history, and nobody but the upstream reads it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import override

from responses.engine.chat.call_segments import CallSegment
from responses.engine.chat.reasoning import ReasoningCipher, ReasoningContent
from responses.engine.chat.segments import ItemStatus, Segment
from responses.engine.events.types import Body, Event

_EXTRAS = ("extra_content", "thought_signature", "provider_specific_fields")


def extras_of(call: Mapping[str, Any]) -> Body:
    """What in a delta of a call is no part of the call itself."""
    return {name: call[name] for name in _EXTRAS if call.get(name)}


class ExtrasSegment(Segment):
    """The item that keeps them; `entries` are calls, each with its extras."""

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

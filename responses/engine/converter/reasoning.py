"""Reasoning of a turn: its item, and the content that the item carries encrypted.

Models get their reasoning back in later turns, even if clients may not read it or responses are not stored. Therefore
an item carries it encrypted, together with data that the upstream wants back unchanged, such as signatures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from responses.engine.converter.segments import ItemStatus, PartsSegment
from responses.engine.events.types import Body, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningContent:
    """Encrypted content of a reasoning item.

    `text` is the raw reasoning, `details` the upstream's own entries, which are sent back unchanged. `calls` is the
    data that the upstream wants back with its calls, each entry with `call_id`, `name` and `extras`.
    """

    text: str = ""
    details: Sequence[Body] = ()
    calls: Sequence[Body] = ()


class ReasoningCipher(Protocol):
    """Encrypts reasoning so that only this server can read it."""

    def encrypt(self, content: ReasoningContent) -> str:
        """Return the `encrypted_content` of a reasoning item."""
        ...

    def decrypt(self, token: str) -> ReasoningContent | None:
        """Return the content; None if it was not encrypted by this server for this team."""
        ...


class ReasoningSegment(PartsSegment):
    """Reasoning item: parts of a summary, and parts of the raw reasoning if clients may see it (`shown`)."""

    prefix = "rs"
    # True if the item has its list of raw parts even when there are none.
    lists_content = False

    def __init__(self, *, cipher: ReasoningCipher | None = None, shown: bool = True) -> None:
        super().__init__()
        self.shown = shown
        self.hidden_text: list[str] = []
        self._cipher = cipher
        self._encrypted: str | None = None

    def content(self) -> ReasoningContent:
        """Return the content to encrypt."""
        return ReasoningContent(text=self.raw_text(), details=self.details())

    def details(self) -> Sequence[Body]:
        """Return the upstream's own entries."""
        return ()

    def raw_text(self) -> str:
        """Return the raw reasoning, shown or not."""
        shown = [text for part in self.parts if part.kind == "reasoning_text" for text in part.text]
        return "".join(shown if self.shown else self.hidden_text)

    @override
    def close(self, status: ItemStatus) -> list[Event]:
        if self._cipher is not None:
            self._encrypted = self._cipher.encrypt(self.content())
        return super().close(status)

    @override
    def body(self, *, empty: bool = False) -> Body:
        parts = [] if empty else [part.body() for part in self.parts]
        summary = [part for part in parts if part["type"] == "summary_text"]
        body: Body = {"id": self.id, "type": "reasoning", "status": self.status, "summary": summary}
        content = [part for part in parts if part["type"] == "reasoning_text"]
        if content or (self.lists_content and self.shown):
            body["content"] = content
        return body if self._encrypted is None else {**body, "encrypted_content": self._encrypted}

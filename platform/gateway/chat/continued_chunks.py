"""Continuation of a streamed chat completion that was cut: another target gives the rest of its text.

As for responses (`engine.continuation`), only the text of a single choice can be continued.
"""

from typing import Any

from engine.continuation import Diverged, RestOfText
from engine.converter.chat import Chunk

_REASONING = {"reasoning", "reasoning_content", "reasoning_details"}
# Sent again, or without effect on what the client has.
_REPEATED = {"role", *_REASONING}
_IDENTITY = ("id", "created")


class SentChunks:
    """Chunks of a completion that were sent to the client. `follow` is called with each of them."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._first: Chunk | None = None
        self._pieces: list[str] = []
        self._has_more_than_text = False

    def follow(self, chunk: Chunk) -> None:
        """Read a chunk that is sent."""
        self._first = self._first or {name: chunk[name] for name in _IDENTITY if name in chunk}
        for choice in chunk.get("choices") or ():
            delta = dict(choice.get("delta") or {})
            content = delta.pop("content", None)
            if isinstance(content, str):
                self._pieces.append(content)
            others = {name for name, value in delta.items() if value not in (None, "", [])} - _REPEATED
            is_text = isinstance(content, str | None) and not others
            if not is_text or choice.get("logprobs") or choice.get("finish_reason"):
                self._has_more_than_text = True

    @property
    def is_empty(self) -> bool:
        """True if nothing was sent."""
        return self._first is None

    @property
    def can_continue(self) -> bool:
        """True if the chunks of another answer can follow."""
        return self.is_empty or not (self._several or self._has_more_than_text)

    @property
    def text(self) -> str:
        """The text of the completion."""
        return "".join(self._pieces)

    @property
    def identity(self) -> Chunk:
        """The id and the time of the completion."""
        return self._first or {}


class ChunkContinuation:
    """Conversion of the chunks of another answer into the rest of the completion that was sent.

    `repeats`: the other answer begins with the text that was sent.
    """

    def __init__(self, sent: SentChunks, *, repeats: bool) -> None:
        self._identity = sent.identity
        self._rest = RestOfText(sent.text, repeats=repeats)

    def read(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks to send. Raises `Diverged`."""
        passed: list[Chunk] = []
        for chunk in chunks:
            choices = [rest for choice in chunk.get("choices") or () if (rest := self._read(choice)) is not None]
            if choices or chunk.get("usage"):
                passed.append({**chunk, **self._identity, "choices": choices})
        return passed

    def _read(self, choice: Chunk) -> Chunk | None:
        """Return the part of a choice that belongs to the rest; None if there is none."""
        was_reached = self._rest.is_reached
        delta: dict[str, Any] = {name: value for name, value in (choice.get("delta") or {}).items() if name != "role"}
        if isinstance(content := delta.pop("content", None), str) and (rest := self._rest.feed(content)):
            delta["content"] = rest
        if not was_reached:
            delta = {name: value for name, value in delta.items() if name not in _REASONING}
        values = {name for name, value in delta.items() if value not in (None, "", [])}
        finish = choice.get("finish_reason")
        if (values - {"content"} or finish) and not self._rest.is_reached:
            raise Diverged
        return {**choice, "delta": delta} if values or finish else None

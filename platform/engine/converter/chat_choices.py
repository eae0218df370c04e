"""Selection of one choice from the chunks of a chat-completions stream.

`n` is never sent, but some upstreams return several choices anyway. Only the first of them is used. Other upstreams
increment the index with each chunk of a single choice. Chunks with another index wait until the case is known.
"""

from collections.abc import Sequence
from typing import Any

Choice = dict[str, Any]
# An index of this size was incremented with each chunk; it is not the number of a choice.
_MANY = 8


class ChoiceSelector:
    """Selector of the first choice of one turn."""

    def __init__(self) -> None:
        self._first: Any = None
        self._next: Any = None
        self._waiting: list[Choice] = []
        self._counts = False
        # True if chunks with another index belong to other choices.
        self._is_sure = False

    def select(self, choices: Sequence[Choice]) -> Sequence[Choice]:
        """Return the chunks that are known by now to belong to the first choice. `choices` are from one chunk."""
        if len(choices) > 1:
            self._is_sure = True
            if self._first is None:
                self._first = choices[0].get("index")
            return next(([choice] for choice in choices if choice.get("index") == self._first), [])
        choice = choices[0]
        index = choice.get("index")
        if index is None or self._counts:
            return choices
        if self._first is None:
            self._first = index
            self._next = index + 1 if isinstance(index, int) else None
            return choices
        if index != self._first:
            return self._other(choice)
        if self._waiting:
            return self._own(choice)
        if choice.get("finish_reason"):
            self._is_sure = True
        return choices

    def _own(self, choice: Choice) -> Sequence[Choice]:
        waiting, self._waiting = self._waiting, []
        reason = choice.get("finish_reason")
        self._is_sure = True
        # Some upstreams count the chunks, but not the last one with the finish reason.
        is_end = reason and not (choice.get("delta") or {}).get("content")
        if is_end and not any(earlier.get("finish_reason") for earlier in waiting):
            return [*waiting, choice]
        return [choice]

    def _other(self, choice: Choice) -> Sequence[Choice]:
        if self._is_sure or choice.get("index") != self._next:
            self._is_sure, self._waiting = True, []
            return ()
        self._waiting.append(choice)
        self._next += 1
        if len(self._waiting) < _MANY:
            return ()
        return self.end()

    def end(self) -> Sequence[Choice]:
        """Return the chunks that still wait: they belong to the first choice."""
        self._counts = True
        waiting, self._waiting = self._waiting, []
        return waiting

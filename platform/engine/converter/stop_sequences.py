"""Stop sequences: the text of a turn ends before the first of them.

The platform searches for them itself: upstreams do not say which sequence they stopped at, and the Responses API
has no parameter for them.
"""

from collections.abc import Sequence


class StopSequences:
    """Search for stop sequences in a text that arrives in pieces.

    `found` is the sequence at which the text ended. Text that may be the beginning of a sequence is held back.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = tuple(sequences)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that can be written now."""
        if self.found is not None:
            return ""
        text = self._held + text
        places = [
            (place, -len(sequence), sequence) for sequence in self._sequences if (place := text.find(sequence)) >= 0
        ]
        if places:
            # Of two sequences that begin at the same place, the longer one is reported.
            place, _, self.found = min(places)
            self._held = ""
            return text[:place]
        held = max((_overlap(text, sequence) for sequence in self._sequences), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return the text that was held back. Called when no text follows, so it cannot become a sequence."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """Return the length of the longest suffix of the text that is a prefix of the sequence."""
    longest = min(len(text), len(sequence) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(sequence[:size])), 0)

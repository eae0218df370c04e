"""Enforcement of a turn's output limit for upstreams that ignore it, as several servers do.

The number of tokens in a piece of text is unknown, so an answer is only cut where it certainly exceeds the limit.
"""

# Bytes of UTF-8 per token: 3 to 5 on average in all languages and in code; only long runs of one character have more.
_BYTES, _SPARE_BYTES = 6, 64
_MOST_BYTES, _MOST_SPARE_BYTES = 12, 256
# Some servers also count the end of an answer, or the tags around reasoning.
_SPARE_TOKENS = 8


class OutputBound:
    """Counter of the output of a turn. `limit` is in tokens."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = self._pieces = 0
        self.is_reached = False
        """True if the rest of the answer is beyond the limit."""

    def report(self, tokens: int) -> None:
        """Record the number of output tokens that the upstream reports."""
        self._pieces = max(self._pieces, tokens)

    def count(self, pieces: int) -> None:
        """Count pieces of the output whose texts are part of the next piece."""
        self._pieces += pieces

    def take(self, text: str) -> str:
        """Count a piece of the output, and return the part of the piece that the limit allows."""
        self._pieces += 1
        # Nearly every server sends one token per piece, but some send one letter.
        is_certain = self._pieces > self._limit + _SPARE_TOKENS
        allowed = self._limit * _BYTES + _SPARE_BYTES if is_certain else self._limit * _MOST_BYTES + _MOST_SPARE_BYTES
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self._bytes + size > allowed:
            self.is_reached = True
            text = text.encode(errors="replace")[: max(0, allowed - self._bytes)].decode(errors="ignore")
        self._bytes += size
        return text

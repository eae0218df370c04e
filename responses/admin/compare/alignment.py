"""Alignment of the items of two responses. Pure functions without database access or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

# Items of each side, from the first difference on, that are aligned: the cost grows with the square of their number.
MAX_ALIGNED = 200
_SAME, _SAME_NAME, _SAME_KIND, _UNPAIRED = 4, 2, 1, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedItem:
    """An item of a response, reduced to what is compared.

    - `number`: position in the section, from 1.
    - `kind`: type, and role of a message.
    - `name`: name of the tool, server or command; may be empty.
    - `text`: the content without ids; empty if the viewer may not read it.
    - `size`: bytes of the stored item.
    """

    number: int
    kind: str
    name: str = ""
    text: str = ""
    size: int = 0

    @property
    def label(self) -> str:
        """Kind and name."""
        return f"{self.kind} · {self.name}" if self.name else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedPair:
    """Items at the same place of both responses; one of them is None if the other has no counterpart."""

    left: ComparedItem | None
    right: ComparedItem | None

    @property
    def is_same(self) -> bool:
        """True if both items have the same kind, name and content."""
        return self.left is not None and self.right is not None and _score(self.left, self.right) == _SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Pairs in order. `skipped` items at the end of the sides were not aligned."""

    pairs: Sequence[AlignedPair]
    skipped: tuple[int, int] = (0, 0)


def align(left: Sequence[ComparedItem], right: Sequence[ComparedItem]) -> Alignment:
    """Pair the items of two sequences without changing their order.

    Items with the same content are paired first, then items with the same name, then items of the same kind.
    """
    start = 0
    while start < min(len(left), len(right)) and _score(left[start], right[start]) == _SAME:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and _score(left[-1 - end], right[-1 - end]) == _SAME:
        end += 1
    middles = [items[start : len(items) - end] for items in (left, right)]
    skipped = (max(0, len(middles[0]) - MAX_ALIGNED), max(0, len(middles[1]) - MAX_ALIGNED))
    pairs = [
        *_paired(left[:start], right[:start]),
        *_aligned(middles[0][:MAX_ALIGNED], middles[1][:MAX_ALIGNED]),
        *_paired(left[len(left) - end :], right[len(right) - end :]),
    ]
    return Alignment(pairs=pairs, skipped=skipped)


def _paired(left: Sequence[ComparedItem], right: Sequence[ComparedItem]) -> list[AlignedPair]:
    return [AlignedPair(left=first, right=second) for first, second in zip(left, right, strict=True)]


def _score(first: ComparedItem, second: ComparedItem) -> int:
    if first.kind != second.kind:
        return _UNPAIRED
    if first.name != second.name:
        return _SAME_KIND
    return _SAME if first.text == second.text else _SAME_NAME


def _aligned(left: Sequence[ComparedItem], right: Sequence[ComparedItem]) -> list[AlignedPair]:
    """Return the pairs with the highest total score (Needleman-Wunsch, without a penalty for gaps)."""
    scores = [[_score(first, second) for second in right] for first in left]
    # `best[i][j]` is the highest total of the items from i and j on, so that the pairs are read off in order.
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        row, below, row_scores = best[i], best[i + 1], scores[i]
        for j in range(len(right) - 1, -1, -1):
            row[j] = max(below[j], row[j + 1], below[j + 1] + row_scores[j])
    pairs, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if scores[i][j] != _UNPAIRED and best[i][j] == best[i + 1][j + 1] + scores[i][j]:
            pairs.append(AlignedPair(left=left[i], right=right[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            pairs.append(AlignedPair(left=left[i], right=None))
            i += 1
        else:
            pairs.append(AlignedPair(left=None, right=right[j]))
            j += 1
    pairs += [AlignedPair(left=item, right=None) for item in left[i:]]
    return pairs + [AlignedPair(left=None, right=item) for item in right[j:]]

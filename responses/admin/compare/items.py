"""Items of two responses, aligned: rows of the comparison, with excerpts around the differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Any

from django.db.models import F, IntegerField
from django.db.models.expressions import Func

from console.widgets import state_words
from conversations.models import Placement, Section
from responses.admin.compare.alignment import AlignedPair, Alignment, ComparedItem, align
from responses.admin.compare.excerpts import Excerpt, beginning, differences
from responses.admin.transcript.entries import parts_of
from responses.admin.transcript.parts import ItemPart, parse_data_url
from responses.models import Response

MAX_ITEMS, MAX_BYTES = 1000, 4_000_000
"""Items of a section that are read for each side, and their total size on disk."""
MAX_ROWS = 60
"""Rows of a section that show content."""
# Equal items that are listed before and after a difference.
_NEIGHBOURS = 1
_TITLES = {Section.INPUT: "Input", Section.OUTPUT: "Output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """A row of the comparison. `number` counts the rows with a difference; 0 for equal items.

    If `equal` is set, the row stands for this number of equal items, which are not listed.
    """

    pair: AlignedPair | None = None
    number: int = 0
    equal: int = 0
    left: Excerpt | None = None
    right: Excerpt | None = None

    @property
    def state(self) -> str:
        """The difference in words."""
        if self.pair is None or self.pair.is_same:
            return "Same"
        if self.pair.left is None:
            return "Only in B"
        if self.pair.right is None:
            return "Only in A"
        if self.pair.left.label != self.pair.right.label:
            return "Different tool" if self.pair.left.name and self.pair.right.name else "Different item"
        return "Changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSection:
    """Input or output of both responses. `notes` say what was left out."""

    title: str
    rows: Sequence[ItemRow]
    count: int
    notes: Sequence[str]


def compare_items(left: Response, right: Response, *, is_readable: bool) -> list[ItemSection]:
    """Return the sections with their rows. Without `is_readable`, only kinds and names of items are compared."""
    sections: list[ItemSection] = []
    for section, title in _TITLES.items():
        (first, first_left), (second, second_left) = (
            _read(response, section, is_readable=is_readable) for response in (left, right)
        )
        alignment = align(first, second)
        before = sum(earlier.count for earlier in sections)
        rows, unlisted = _rows(alignment.pairs, numbered_from=before + 1)
        count = sum(not pair.is_same for pair in alignment.pairs)
        notes = _notes(alignment, (first_left, second_left), unlisted)
        sections.append(ItemSection(title=title, rows=rows, count=count, notes=notes))
    return sections


def _notes(alignment: Alignment, unread: tuple[int, int], unlisted: int) -> list[str]:
    notes = []
    for name, not_read, skipped in zip("AB", unread, alignment.skipped, strict=True):
        if left_out := not_read + skipped:
            notes.append(f"{left_out:,} further items of {name} were not compared.")
    return [*notes, f"{unlisted:,} more rows are not listed."] if unlisted else notes


def _read(response: Response, section: Section, *, is_readable: bool) -> tuple[list[ComparedItem], int]:
    """Return the items of a section as far as they fit into the limits, and the number of the others."""
    places = Placement.objects.filter(owner=response.pk, team_id=response.team_id, section=section)
    # The sizes first: otherwise a single response could fill the memory of the process.
    stored = Func(F("item__body"), function="pg_column_size", output_field=IntegerField())
    sizes = list(places.order_by("position").annotate(stored=stored).values_list("stored", flat=True)[: MAX_ITEMS + 1])
    fitting = sum(total <= MAX_BYTES for total in accumulate(sizes[:MAX_ITEMS]))
    rows = list(places.select_related("item").order_by("position")[:fitting])
    last = places.order_by("-position").values_list("position", flat=True).first()
    items = [
        _compared(number, place.item.body, size, is_readable=is_readable)
        for number, (place, size) in enumerate(zip(rows, sizes, strict=False), 1)
    ]
    return items, max(0, (last + 1 if last is not None else 0) - fitting)


def _compared(number: int, body: dict[str, Any], size: int, *, is_readable: bool) -> ComparedItem:
    kind = " ".join(filter(None, (state_words(body["type"]), body.get("role"))))
    name = str(body.get("name") or body.get("server_label") or "")
    text = "\n".join(map(_text, parts_of(body))) if is_readable else ""
    return ComparedItem(number=number, kind=kind, name=name, text=text, size=size)


def _text(part: ItemPart) -> str:
    text = f"{part.label}: {part.text}" if part.label else part.text
    # The description of data is only its type and size.
    is_data = bool(part.source) and parse_data_url(part.source) is not None
    return f"{text} (SHA-256 {sha256(part.source.encode(errors='replace')).hexdigest()[:12]})" if is_data else text


def _rows(pairs: Sequence[AlignedPair], *, numbered_from: int) -> tuple[list[ItemRow], int]:
    """Return the rows to show, and the number of rows beyond the limit. Long runs of equal items become one row."""
    differing = [at for at, pair in enumerate(pairs) if not pair.is_same]
    near = {at + step for at in differing for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1)}
    rows: list[ItemRow] = []
    number, equal, shown = numbered_from, 0, 0
    for at, pair in enumerate(pairs):
        if at not in near:
            equal += 1
            continue
        if shown == MAX_ROWS:
            return rows, sum(later >= at for later in differing)
        if equal:
            rows.append(ItemRow(equal=equal))
            equal = 0
        rows.append(_row(pair, 0 if pair.is_same else number))
        number += not pair.is_same
        shown += 1
    return [*rows, ItemRow(equal=equal)] if equal else rows, 0


def _row(pair: AlignedPair, number: int) -> ItemRow:
    left, right = pair.left, pair.right
    if left is None or right is None or pair.is_same:
        sides = [beginning(item.text) if item is not None else None for item in (left, right)]
        return ItemRow(pair=pair, number=number, left=sides[0], right=sides[1])
    first, second = differences(left.text, right.text)
    return ItemRow(pair=pair, number=number, left=first, right=second)

"""The input items of a response, page by page: its chain or conversation, and its own input.

The input is a sequence of lists: the response's own input, the output and the input of its predecessor, and so on. The
last list may be the items of a conversation before the first response of the chain. To serve a page, only the links
between responses up to its position (about 3 us each) and the items of the page are read.

An item that occurs several times, because the client repeated or referenced it, is listed once, at its last position:
ids are the cursors of the pages and must be unique.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from django.db import connection

from conversations.models import Section
from core.errors import NotFound
from core.http.pagination import Order, Page, PageRequest
from engine.events.types import Body
from responses.models import Response

_FIRST_LINKS, _MORE_LINKS = 64, 4096
_START, _END = -1, 2**31 - 1

# OFFSET 0 makes PostgreSQL use an index look-up for each step, even if it expects many rows from the recursion.
_LINKS = """
WITH RECURSIVE chain(id, previous, history_id, history_end, number) AS (
    SELECT id, previous_response_id, history_id, history_end, 1
    FROM responses_response WHERE id = %(id)s AND team_id = %(team)s
    UNION ALL
    SELECT response.*, chain.number + 1
    FROM chain CROSS JOIN LATERAL (
        SELECT id, previous_response_id, history_id, history_end
        FROM responses_response WHERE id = chain.previous
        OFFSET 0
    ) AS response
    WHERE chain.number < %(most)s
)
SELECT id, previous, history_id, history_end FROM chain ORDER BY number
"""
# The sections are literals in the SQL, because only then does an index return the positions in order. Bodies are joined
# after the limit.
_ITEMS = """
SELECT place.number, place.position, item.id, item.body
FROM (
    SELECT list.number, found.position, found.item_id
    FROM unnest(%(numbers)s::int[], %(owners)s::text[], %(sections)s::text[], %(above)s::int[], %(below)s::int[])
        WITH ORDINALITY AS list(number, owner, section, above, below, nth)
    CROSS JOIN LATERAL (
        SELECT position, item_id FROM conversations_placement
        WHERE owner = list.owner AND section = list.section AND position > list.above AND position < list.below
          AND (in_context OR list.number = 0)
        ORDER BY position {direction} LIMIT %(limit)s
    ) AS found
    ORDER BY list.nth, found.position {direction} LIMIT %(limit)s
) AS place
CROSS JOIN LATERAL (
    SELECT id, body::text FROM conversations_item WHERE key = place.item_id OFFSET 0
) AS item
"""
_OLDER, _NEWER = (_ITEMS.format(direction=direction) for direction in ("DESC", "ASC"))
_OCCURRENCES = """
SELECT wanted.name, place.owner, place.section, place.position, place.in_context
FROM unnest(%(names)s::text[]) AS wanted(name)
CROSS JOIN LATERAL (
    SELECT key FROM conversations_item WHERE team_id = %(team)s AND id = wanted.name OFFSET 0
) AS item
CROSS JOIN LATERAL (
    SELECT owner, section, position, in_context FROM conversations_placement WHERE item_id = item.key OFFSET 0
) AS place
"""


class _Place(NamedTuple):
    """The place of an item: the number of its list, counted from the newest list, and its position in the list."""

    number: int
    position: int

    def is_newer(self, other: "_Place") -> bool:
        return (self.number, -self.position) < (other.number, -other.position)


class _Row(NamedTuple):
    place: _Place
    name: str
    body: str


@dataclass(frozen=True, slots=True)
class _List:
    """Placements of an owner before the position `end`."""

    owner: str
    section: Section
    end: int = _END


class _Lists:
    """The lists of a response's input, newest first. They are read from the database when they are needed."""

    def __init__(self, response: Response) -> None:
        self._team_id = response.team_id
        self._next: str | None = response.pk
        self._numbers: dict[tuple[str, str], int] = {}
        self.known: list[_List] = []

    def read(self, count: int) -> int:
        """Make sure that this many lists have been read, if there are as many. Return the number of known lists."""
        while len(self.known) < count and self._next is not None:
            self._read_links(self._next)
        return len(self.known)

    def _read_links(self, first: str) -> None:
        most = _MORE_LINKS if self.known else _FIRST_LINKS
        with connection.cursor() as cursor:
            cursor.execute(_LINKS, {"id": first, "team": self._team_id, "most": most})
            links = cursor.fetchall()
        for response_id, _, history_id, history_end in links:
            # The response's own output is not part of its input.
            if self.known:
                self._add(_List(response_id, Section.OUTPUT))
            self._add(_List(response_id, Section.INPUT))
            if history_id is not None:
                self._add(_List(history_id, Section.ITEMS, history_end))
        # A chain also ends at a response that was deleted.
        self._next = links[-1][1] if len(links) == most else None

    def _add(self, added: _List) -> None:
        self._numbers.setdefault((added.owner, added.section), len(self.known))
        self.known.append(added)

    def find(self, name: str) -> _Place | None:
        """Return the newest place of the item with this id, or None."""
        occurrences = self._occurrences([name])
        while (found := self._newest(occurrences).get(name)) is None and self._next is not None:
            self._read_links(self._next)
        return found

    def without_repetitions(self, rows: Sequence[_Row]) -> Iterator[_Row]:
        """Yield the rows whose items do not occur again at a newer place."""
        newest = self._newest(self._occurrences([row.name for row in rows]))
        return (row for row in rows if newest.get(row.name, row.place) == row.place)

    def _occurrences(self, names: Collection[str]) -> list[tuple[str, str, str, int, bool]]:
        with connection.cursor() as cursor:
            cursor.execute(_OCCURRENCES, {"names": list(names), "team": self._team_id})
            found: list[tuple[str, str, str, int, bool]] = cursor.fetchall()
        return found

    def _newest(self, occurrences: Sequence[tuple[str, str, str, int, bool]]) -> dict[str, _Place]:
        newest: dict[str, _Place] = {}
        for name, owner, section, position, in_context in occurrences:
            number = self._numbers.get((owner, section))
            if number is None or position >= self.known[number].end or not (in_context or number == 0):
                continue
            place = _Place(number, position)
            if name not in newest or place.is_newer(newest[name]):
                newest[name] = place
        return newest

    def scan(self, start: _Place, stop: _Place | None, *, older: bool, limit: int) -> list[_Row]:
        """Return up to `limit` rows between two places, in the order of the scan."""
        rows: list[_Row] = []
        while len(rows) < limit:
            if older:
                last = min(self.read(start.number + limit), start.number + limit) - 1
                numbers = range(start.number, min(last, stop.number if stop else last) + 1)
            else:
                last = max(start.number - limit + 1, 0)
                numbers = range(start.number, max(last, stop.number if stop else last) - 1, -1)
            if not numbers:
                break
            found = self._items(numbers, start, stop, older=older, limit=limit)
            rows += self.without_repetitions(found)
            # A full batch may end in the middle of a list.
            following = _Place(numbers[-1] + 1, _END) if older else _Place(numbers[-1] - 1, _START)
            start = found[-1].place if len(found) == limit else following
        return rows[:limit]

    def _items(
        self, numbers: Sequence[int], start: _Place, stop: _Place | None, *, older: bool, limit: int
    ) -> list[_Row]:
        newer_end, older_end = (start, stop) if older else (stop, start)
        below, above = [self.known[number].end for number in numbers], [_START for _ in numbers]
        for index, number in enumerate(numbers):
            if newer_end is not None and number == newer_end.number:
                below[index] = min(below[index], newer_end.position)
            if older_end is not None and number == older_end.number:
                above[index] = older_end.position
        lists = [self.known[number] for number in numbers]
        values: dict[str, Any] = {
            "numbers": list(numbers),
            "owners": [part.owner for part in lists],
            "sections": [str(part.section) for part in lists],
            "above": above,
            "below": below,
            "limit": limit,
        }
        with connection.cursor() as cursor:
            cursor.execute(_OLDER if older else _NEWER, values)
            rows = [_Row(_Place(number, position), name, body) for number, position, name, body in cursor.fetchall()]
        return sorted(rows, key=lambda row: (row.place.number, -row.place.position), reverse=not older)


def list_input_items(*, response: Response, page: PageRequest) -> Page[Body]:
    """Return a page of the input items of a response. Raises `NotFound` for an unknown cursor."""
    lists = _Lists(response)
    after, before = (_find(lists, param, name) for param, name in (("after", page.after), ("before", page.before)))
    # With only `before`, the page ends directly before the cursor, so scan backwards and reverse the result.
    backwards = before is not None and after is None
    older = (page.order is Order.DESC) is not backwards
    start, stop = (before, None) if backwards else (after, before)
    if start is None:
        start = _Place(0, _END) if older else _Place(lists.read(_END) - 1, _START)
    rows = lists.scan(start, stop, older=older, limit=page.limit + 1)
    return Page.cut([orjson.loads(row.body) for row in rows], request=page)


def _find(lists: _Lists, param: str, name: str | None) -> _Place | None:
    if name is None:
        return None
    found = lists.find(name)
    if found is None:
        raise NotFound(f"Item with id '{name}' not found.", param=param)
    return found

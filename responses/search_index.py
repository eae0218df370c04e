"""Collects the words of items for full-text search, behind the runs that write them and never in their way.

Works in small transactions, goes on where it stopped, and is safe to run twice and side by side.
"""

import logging
from collections.abc import Sequence

from django.db import IntegrityError, connection
from django.db.models import Max

from conversations.items import plain_text
from conversations.models import Item, Placement
from responses.models.search import MAX_CHARACTERS, SearchMark, SearchText
from tenants import scope
from tenants.models import Team

logger = logging.getLogger(__name__)

AT_ONCE = 500
MOST = 20_000
"""Of so many placements one call collects the words."""
# Bodies may be megabytes each.
_BODIES = 25
_FORGOTTEN = 5000
_TRIES = 3
_ONLY = 1
# Control characters mark what was found in a text, and a text column holds no NUL.
_PLAIN = {code: " " for code in range(32) if chr(code) not in "\t\n\r"}


def collect() -> int:
    """Collect the words of items that have come since the last time; returns how many placements were read."""
    read, tries = 0, 0
    _move_horizon()
    while read < MOST:
        try:
            found = _read_on()
        except IntegrityError:
            # An item was deleted meanwhile; now it is not there any more.
            tries += 1
            if tries >= _TRIES:
                raise
            continue
        read += found
        if not found:
            break
    return read


def remove_excluded_teams() -> int:
    """Remove the words of teams that do not want to be searched; returns how many texts, a bounded number at once."""
    with scope.every_team():
        removed = 0
        for team_id in Team.objects.filter(full_text_search=False).values_list("pk", flat=True):
            keys = list(SearchText.objects.filter(team_id=team_id).values_list("pk", flat=True)[:_FORGOTTEN])
            if keys:
                removed += SearchText.objects.filter(pk__in=keys).delete()[0]
        return removed


def _move_horizon() -> None:
    """Make the number safe that was noted last time if nobody may come before it any more, and note the next one.

    The number is noted in one call and the transaction to wait for in the next, seconds later: between taking a number
    and being known as a transaction, a statement passes an instant.
    """
    with scope.every_team():
        SearchMark.objects.get_or_create(pk=_ONLY)
        mark = _locked()
        if mark is None:
            return
        if mark.pending is not None and mark.pending_xid is None:
            mark.pending_xid = _number("SELECT pg_current_xact_id()::text::bigint")
            mark.save(update_fields=["pending_xid"])
    with scope.every_team():
        mark = _locked()
        if mark is None:
            return
        oldest = _number("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        if mark.pending is not None and mark.pending_xid is not None and oldest >= mark.pending_xid:
            mark.safe, mark.pending, mark.pending_xid = mark.pending, None, None
        if mark.pending is None:
            mark.pending = Placement.objects.aggregate(last=Max("id"))["last"] or 0
        mark.save()


def _read_on() -> int:
    """Collect the words behind some further placements; returns of how many."""
    with scope.every_team():
        mark = _locked()
        if mark is None or mark.through >= mark.safe:
            return 0
        places = Placement.objects.filter(id__gt=mark.through, id__lte=mark.safe).order_by("id")
        found = list(places.values_list("id", "item_id", "team_id")[:AT_ONCE])
        teams = {team_id for _, _, team_id in found}
        left_out = set(Team.objects.filter(pk__in=teams, full_text_search=False).values_list("pk", flat=True))
        keys = [item_id for _, item_id, team_id in found if team_id not in left_out]
        known = set(SearchText.objects.filter(pk__in=keys).values_list("pk", flat=True))
        fresh = [*{key: None for key in keys if key not in known}]
        for first in range(0, len(fresh), _BODIES):
            items = Item.objects.filter(pk__in=fresh[first : first + _BODIES])
            SearchText.objects.bulk_create(_texts(list(items)), ignore_conflicts=True)
        mark.through = found[-1][0] if len(found) == AT_ONCE else mark.safe
        mark.save(update_fields=["through"])
        return len(found)


def _locked() -> SearchMark | None:
    """The mark, for this transaction alone; None while somebody else has it."""
    return SearchMark.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=_ONLY).first()


def _number(sql: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])


def _texts(items: Sequence[Item]) -> list[SearchText]:
    return [
        SearchText(
            item=item,
            team_id=item.team_id,
            speaker=str(item.body.get("role") or item.type)[:40],
            created_at=item.created_at,
            text=text,
        )
        for item in items
        if (text := _words(item))
    ]


def _words(item: Item) -> str:
    """What is searched of an item: the name of what it calls, and its words."""
    try:
        whole = "\n".join(filter(None, (item.body.get("name"), plain_text(item.body))))
    except (AttributeError, KeyError, TypeError):
        logger.warning("an item has no words that could be searched", extra={"item": item.id}, exc_info=True)
        return ""
    cut = whole[:MAX_CHARACTERS].translate(_PLAIN).strip()
    return cut.encode("utf-8", "replace").decode()

"""Collect the texts of items for full-text search, separately from the runs that write the items.

The task works in small transactions and continues where it stopped. It can safely run repeatedly and concurrently.
"""

import logging

from django.db import IntegrityError, connection
from django.db.models import Max

from conversations.items import plain_text
from conversations.models import Item, Placement
from responses.models.search import MAX_CHARACTERS, SearchMark, SearchText
from tenants import scope
from tenants.models import Team

logger = logging.getLogger(__name__)

BATCH_SIZE = 500
"""Number of placements per transaction."""

MAX_PLACEMENTS = 20_000
"""Maximum number of placements that one call reads."""

# Number of items per query, because each body may have several megabytes.
_ITEMS_PER_QUERY = 25
_MAX_REMOVED = 5000
_MAX_ATTEMPTS = 3
_MARK_ID = 1
# The search highlights matches with control characters, so texts must not contain any. PostgreSQL has no NUL in text.
_PLAIN = {code: " " for code in range(32) if chr(code) not in "\t\n\r"}


def collect() -> int:
    """Collect the texts of new items since the last call. Return the number of placements that were read."""
    read, attempts = 0, 0
    _move_horizon()
    while read < MAX_PLACEMENTS:
        try:
            found = _collect_batch()
        except IntegrityError:
            # An item was deleted while its text was written. The next attempt no longer finds the item.
            attempts += 1
            if attempts >= _MAX_ATTEMPTS:
                raise
            continue
        read += found
        if not found:
            break
    return read


def remove_excluded_teams() -> int:
    """Delete a bounded number of texts of teams without full-text search. Return the number of deleted texts."""
    with scope.every_team():
        removed = 0
        for team_id in Team.objects.filter(full_text_search=False).values_list("pk", flat=True):
            keys = list(SearchText.objects.filter(team_id=team_id).values_list("pk", flat=True)[:_MAX_REMOVED])
            if keys:
                removed += SearchText.objects.filter(pk__in=keys).delete()[0]
        return removed


def _move_horizon() -> None:
    """Advance `safe`, the placement id up to which no further placement can become visible, and `pending` after it."""
    # `pending` is stored in one call, and `pending_xid` in the next call, seconds later. This is necessary because a
    # transaction may be assigned a placement id a moment before it gets its transaction id.
    with scope.every_team():
        SearchMark.objects.get_or_create(pk=_MARK_ID)
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


def _collect_batch() -> int:
    """Collect the texts of the next placements. Return the number of placements that were read."""
    with scope.every_team():
        mark = _locked()
        if mark is None or mark.through >= mark.safe:
            return 0
        places = Placement.objects.filter(id__gt=mark.through, id__lte=mark.safe).order_by("id")
        found = list(places.values_list("id", "item_id", "team_id")[:BATCH_SIZE])
        teams = {team_id for _, _, team_id in found}
        left_out = set(Team.objects.filter(pk__in=teams, full_text_search=False).values_list("pk", flat=True))
        keys = [item_id for _, item_id, team_id in found if team_id not in left_out]
        known = set(SearchText.objects.filter(pk__in=keys).values_list("pk", flat=True))
        fresh = [*{key: None for key in keys if key not in known}]
        for first in range(0, len(fresh), _ITEMS_PER_QUERY):
            items = Item.objects.filter(pk__in=fresh[first : first + _ITEMS_PER_QUERY])
            texts = [
                SearchText(
                    item=item,
                    team_id=item.team_id,
                    speaker=str(item.body.get("role") or item.type)[:40],
                    created_at=item.created_at,
                    text=text,
                )
                for item in items
                if (text := _searchable_text(item))
            ]
            SearchText.objects.bulk_create(texts, ignore_conflicts=True)
        mark.through = found[-1][0] if len(found) == BATCH_SIZE else mark.safe
        mark.save(update_fields=["through"])
        return len(found)


def _locked() -> SearchMark | None:
    """Return the mark, locked for this transaction, or None while another process has locked it."""
    return SearchMark.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=_MARK_ID).first()


def _number(sql: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0])


def _searchable_text(item: Item) -> str:
    """Return the searchable text of an item: the name of the called tool, if any, and its text."""
    try:
        whole = "\n".join(filter(None, (item.body.get("name"), plain_text(item.body))))
    except (AttributeError, KeyError, TypeError):
        logger.warning("an item has no searchable text", extra={"item": item.id}, exc_info=True)
        return ""
    return whole[:MAX_CHARACTERS].translate(_PLAIN).strip().encode("utf-8", "replace").decode()

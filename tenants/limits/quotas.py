"""Limits of what is stored: files, bytes and open batches. Checked in the transaction that creates them.

The limits' rows stay locked until it commits, so that of two requests for the last place one waits and is refused.
"""

from collections.abc import Callable

from django.db.models import Q

from core.errors import QuotaReached
from tenants.models import LimitSet
from tenants.principal import Principal

_WHOSE = {"team": "your team", "key": "your API key"}


def check(principal: Principal, name: str, *, adds: int, used: Callable[[str | None], int], unit: str) -> None:
    """Raise `QuotaReached` if the team or the key may not have so many more of something.

    `name` is a column of `LimitSet`. `used` returns how many exist of a key, or of the whole team for None. Call it in
    the transaction that creates them.
    """
    # Known from the cache; the values are then read again.
    if not any(name in subject.values for subject in principal.limits):
        return
    subjects = Q(api_key=None, end_user="") | Q(api_key=principal.key_id)
    sets = LimitSet.objects.select_for_update(no_key=True).filter(subjects, team=principal.team_id)
    # In one order, so that two requests do not wait for each other.
    for found in sets.exclude(**{name: None}).order_by("pk"):
        limit, existing = getattr(found, name), used(found.api_key_id)
        if existing + adds > limit:
            whose = _WHOSE["key" if found.api_key_id else "team"]
            raise QuotaReached(
                name,
                f"Limit reached: {whose} may have {limit:,} {unit}, of which {existing:,} are in use, and this request "
                f"needs {adds:,}. Delete some, or ask for a higher limit.",
            )

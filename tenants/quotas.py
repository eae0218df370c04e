"""Limits of stored objects (files, bytes, open batches), checked in the transaction that creates them.

The rows of the limits stay locked until the transaction commits. If two requests compete for the last place, the second
one waits for the first and is then refused.
"""

from collections.abc import Callable

from django.db.models import Q

from core.errors import QuotaReached
from tenants.models import LimitSet
from tenants.principal import Principal

_WHOSE = {"team": "your team", "key": "your API key"}


def check(principal: Principal, name: str, *, adds: int, used: Callable[[str | None], int], unit: str) -> None:
    """Raise `QuotaReached` if the team or the key may not store `adds` more objects or bytes.

    `name` is a column of `LimitSet`. `used` returns the number that is stored for a key id, or for the whole team if it
    is None. Must be called in the transaction that creates the objects.
    """
    # The cached limits may be outdated, so they only show if there is a limit. Its value is read again below.
    if not any(name in subject.values for subject in principal.limits):
        return
    subjects = Q(api_key=None, end_user="") | Q(api_key=principal.key_id)
    sets = LimitSet.objects.select_for_update(no_key=True).filter(subjects, team=principal.team_id)
    # Always in the same order, so that two requests do not wait for each other.
    for limit_set in sets.exclude(**{name: None}).order_by("pk"):
        limit, existing = getattr(limit_set, name), used(limit_set.api_key_id)
        if existing + adds > limit:
            whose = _WHOSE["key" if limit_set.api_key_id else "team"]
            raise QuotaReached(
                name,
                f"Limit reached: {whose} may have {limit:,} {unit}, of which {existing:,} are in use, and this request "
                f"needs {adds:,}. Delete some, or ask for a higher limit.",
            )

"""When a delivery that failed is attempted again."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

LIFETIME = timedelta(hours=72)
GIVE_UP_ON_ENDPOINT = timedelta(days=5)
_MAX_JITTER = 0.1
_chance = random.SystemRandom()


def jitter() -> float:
    """How much longer than planned to wait, so that receivers are not asked by everybody at once."""
    return _chance.uniform(0, _MAX_JITTER)


def next_attempt(
    *, created_at: datetime, attempts: int, at: datetime, delays: Sequence[int], jitter: float
) -> datetime | None:
    """The moment after that many failed attempts; None: it is given up. `delays` in seconds, the last one repeats."""
    delay = delays[min(attempts, len(delays)) - 1] * (1 + jitter)
    following = at + timedelta(seconds=delay)
    return following if following <= created_at + LIFETIME else None

"""The retry schedule of failed deliveries."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

LIFETIME = timedelta(hours=72)
GIVE_UP_ON_ENDPOINT = timedelta(days=5)
_MAX_JITTER = 0.1
_random = random.SystemRandom()


def jitter() -> float:
    """Return a random fraction between 0 and 0.1 by which to extend a delay."""
    # A receiver that comes back after an outage must not get all retries at the same moment.
    return _random.uniform(0, _MAX_JITTER)


def next_attempt(
    *, created_at: datetime, attempts: int, at: datetime, delays: Sequence[int], jitter: float
) -> datetime | None:
    """Return the time of the next attempt after `attempts` failed ones, or None if the delivery has expired.

    `delays` are in seconds; the last one repeats.
    """
    delay = delays[min(attempts, len(delays)) - 1] * (1 + jitter)
    retry_at = at + timedelta(seconds=delay)
    return retry_at if retry_at <= created_at + LIFETIME else None

"""Public ids: a prefix, 12 hex digits of Unix milliseconds, 24 hex digits of randomness.

The time makes ids sort by age and keeps index inserts local; 96 random bits make them unguessable.
"""

import secrets
import time
from datetime import datetime


def new_id(prefix: str, *, at: datetime | None = None) -> str:
    """Return a new id, for example `resp_019aa3c1d2f4…`: prefix, underscore, 36 hex digits. `at` defaults to now."""
    moment = time.time() if at is None else at.timestamp()
    return f"{prefix}_{int(moment * 1000):012x}{secrets.token_hex(12)}"

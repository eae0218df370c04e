"""Ids as the wire shows them: a prefix, 12 hex digits of Unix milliseconds, 24 hex digits of randomness.

The time makes them sort by age and keeps index inserts local; 96 random bits make them unguessable.
"""

import secrets
import time


def new_id(prefix: str) -> str:
    """A fresh id such as `resp_019aa3c1d2f4…`; 36 hex digits follow the prefix and its underscore."""
    return f"{prefix}_{int(time.time() * 1000):012x}{secrets.token_hex(12)}"

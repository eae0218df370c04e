"""Public ids: a prefix, 12 hex digits of Unix milliseconds, 16 random digits of base 32.

The time makes ids sort by age and keeps index inserts local; 80 random bits (as in a ULID) make them unguessable.
"""

import os
import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from core.clock import now

# PostgreSQL cannot store NUL; ids contain none of the other characters outside of this set either.
_OTHER_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")


class Prefix(StrEnum):
    """Prefixes of the ids that clients refer to objects by.

    Prefixes of items are not included: clients replay items of other servers, which have ids of those servers.
    """

    BATCH = "batch"
    CHAT_COMPLETION = "chatcmpl"
    CONTAINER = "cntr"
    CONTAINER_FILE = "cfile"
    CONVERSATION = "conv"
    FILE = "file"
    PROMPT = "pmpt"
    RESPONSE = "resp"
    SKILL = "skill"
    UPLOAD = "upload"
    UPLOAD_PART = "part"
    VECTOR_STORE = "vs"
    VECTOR_STORE_BATCH = "vsfb"
    WEBHOOK_ENDPOINT = "we"


def new_id(prefix: str, *, at: datetime | None = None) -> str:
    """Return a new id, for example `resp_019aa3c1d2f4…`: prefix, underscore, 28 characters. `at` defaults to now."""
    moment = (at or now()).timestamp()
    return f"{prefix}_{int(moment * 1000):012x}{_random_digits()}"


def new_short_id(prefix: str) -> str:
    """Return a new id of 20 characters after the prefix, for objects that are few and whose ids are no secret.

    Every row of a response repeats the ids of its team, key and upstream, so shorter ids save 160 bytes of its WAL.
    """
    return new_id(prefix)[:-8]


def lowest_id(prefix: str, *, at: datetime) -> str:
    """Return a text that sorts before all ids with this prefix that were created at this time or later."""
    return f"{prefix}_{int(at.timestamp() * 1000):012x}"


def new_key() -> UUID:
    """Return a new key of a row without a public id: a UUID of version 7, which begins with the time.

    Rows of the same time are thus neighbours in the index. With random keys, each row would change a different page of
    the index, and after a checkpoint a changed page is written to the log as a whole: 8 KB for each response.
    """
    bits = int(_random_digits(), 32)
    high = int(now().timestamp() * 1000) << 16 | 7 << 12 | bits >> 62 & 0xFFF
    return UUID(int=high << 64 | 2 << 62 | bits & (1 << 62) - 1)


def _random_digits() -> str:
    """Return 16 digits of base 32 from the system's randomness."""
    # Read in blocks, because each read is a system call: an id takes 0.7 us instead of 2.0, and a request with 20 input
    # items makes 43. `pop` is atomic, so no two threads get the same digits.
    try:
        return _unused.pop()
    except IndexError:
        block = os.urandom(_BLOCK * 16).translate(_DIGITS).decode()
        _unused.extend(block[start : start + 16] for start in range(16, len(block), 16))
        return block[:16]


# Base 32, because a stored response contains 29 ids, and 13 index entries begin with one or two: 24 hex digits took 360
# bytes more of its WAL. Each random byte becomes one digit, and all digits are equally probable. Lower case only, since
# ids are also names of files.
_DIGITS = b"0123456789abcdefghijklmnopqrstuv" * 8
_BLOCK = 256
_unused: list[str] = []
# Otherwise parent and child would make the same ids.
os.register_at_fork(after_in_child=_unused.clear)


def expectation(text: str, prefix: str) -> str | None:
    """Return what a malformed id should look like, in OpenAI's words, or None if it is well-formed."""
    if _OTHER_CHARACTER.search(text):
        return (
            "Expected an ID that contains letters, numbers, underscores, or dashes, "
            "but this value contained additional characters."
        )
    return None if text.startswith(prefix) else f"Expected an ID that begins with '{prefix}'."


def created_at_of(wire_id: str) -> datetime | None:
    """Return the creation time that an id contains; None for other strings."""
    _, _, digits = wire_id.partition("_")
    try:
        return datetime.fromtimestamp(int(digits[:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def created_near(wire_id: str) -> tuple[datetime, datetime] | None:
    """Return the time range in which objects with this id, or objects of the request with this id, were stored."""
    # A request id is created when the headers arrive, the objects after the body was read; uploads may be slow.
    moment = created_at_of(wire_id)
    return None if moment is None else (moment - timedelta(minutes=1), moment + timedelta(hours=1))

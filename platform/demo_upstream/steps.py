"""Steps of an answer on the socket. Faults modify the steps, delivery performs them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True)
class Delay:
    """Wait for a number of seconds."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Wait until the client disconnects."""


@dataclass(frozen=True)
class Cut:
    """Close the connection."""


Step = Send | Delay | Hang | Cut


@dataclass(frozen=True)
class Script:
    """A stream in three parts: one frame before the words, one per word, and the rest. Faults occur between words."""

    opening: bytes
    words: tuple[bytes, ...]
    closing: tuple[bytes, ...]

"""What an answer does to a socket, step by step. Faults change the steps, delivery performs them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True)
class Delay:
    """Be silent for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Be silent until the client goes away."""


@dataclass(frozen=True)
class Cut:
    """Close the connection as it is."""


Step = Send | Delay | Hang | Cut


@dataclass(frozen=True)
class Script:
    """A stream in three parts, so that a fault knows where the words are: one frame before, one per piece, the rest."""

    opening: bytes
    words: tuple[bytes, ...]
    closing: tuple[bytes, ...]

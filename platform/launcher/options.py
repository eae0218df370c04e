"""What `up` was asked for on its command line."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """``port`` None: not asked for. ``plain``: whole lines only, even on a terminal."""

    host: str
    port: int | None
    plain: bool

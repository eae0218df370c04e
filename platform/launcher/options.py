"""Command line options of `manage.py up`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """``port`` is None if not given. ``plain`` disables progress lines and colors, even on a terminal."""

    host: str
    port: int | None
    plain: bool

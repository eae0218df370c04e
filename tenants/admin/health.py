"""How models and upstreams fare: what their lists show beside each row. The app that counts calls says how to look."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils.safestring import SafeString

from console.widgets import compact, duration, two_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The calls of a span of time."""

    calls: int
    failed: int
    slow_ms: int | None

    @property
    def share(self) -> str:
        """How many succeeded; never rounded up to all of them."""
        percent = 100 * (self.calls - self.failed) / self.calls if self.calls else 0
        return f"{int(percent * 10) / 10:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fares:
    """This hour with the one before it, and 24 hours."""

    hour: Health | None = None
    day: Health | None = None


Look = Callable[[], Mapping[tuple[str, str], Fares]]
_looks: list[Look] = []


def looks(look: Look) -> Look:
    """Register who knows: by upstream and model; an empty model is the whole upstream."""
    _looks[:] = [look]
    return look


def fares() -> Mapping[tuple[str, str], Fares]:
    """How all fare that were called within a day."""
    return _looks[0]() if _looks else {}


def cell(found: Fares | None) -> SafeString | str:
    """Two lines: this hour, and the day."""
    if found is None or found.day is None:
        return "–"
    return two_lines(_words(found.hour, "1 h"), _words(found.day, "24 h"))


def _words(health: Health | None, span: str) -> str:
    if health is None or not health.calls:
        return f"{span}: no call"
    slow = f", p95 {duration(health.slow_ms)}" if health.slow_ms is not None else ""
    return f"{span}: {health.share} of {compact(health.calls)}{slow}"

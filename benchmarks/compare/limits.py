"""The limits of a comparison, which `--check` enforces."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.compare.measurements import PER_CORE, PLATFORM, figure
from benchmarks.report import Floor

PROXY, AGENTIC = "proxy", "agentic-api"
# Medians of windows of two seconds differ by this much between two runs of the same code.
NOISE = 0.05


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure of a server under a load."""

    server: str
    kind: str
    connections: int
    name: str

    def of(self, content: Mapping[str, Any]) -> float | None:
        """Return the figure, or None if it was not measured."""
        return figure(content, self.kind, self.connections, self.server, self.name)


def _rate(server: str, kind: str, connections: int = 64) -> Cell:
    return Cell(server=server, kind=kind, connections=connections, name="per_second")


def _cpu(server: str, kind: str, connections: int = 64) -> Cell:
    return Cell(server=server, kind=kind, connections=connections, name="cpu_ms_per_request")


# The first figure divided by the second may be at most the number. The platform's rates are divisors: lower is worse.
RATIOS: tuple[tuple[str, Cell, Cell, float], ...] = (
    ("stream at 64: pass-through ÷ platform", _rate(PROXY, "stream"), _rate(PLATFORM, "stream"), 5.0),
    ("json at 64: pass-through ÷ platform", _rate(PROXY, "json"), _rate(PLATFORM, "json"), 6.0),
    ("stream: rate at 64 ÷ rate at 256", _rate(PLATFORM, "stream"), _rate(PLATFORM, "stream", 256), 1 + NOISE),
    ("json: rate at 64 ÷ rate at 256", _rate(PLATFORM, "json"), _rate(PLATFORM, "json", 256), 1 + NOISE),
    ("CPU per stream at 1: platform ÷ agentic-api", _cpu(PLATFORM, "stream", 1), _cpu(AGENTIC, "stream", 1), 1.0),
    ("CPU per stream at 64: platform ÷ agentic-api", _cpu(PLATFORM, "stream"), _cpu(AGENTIC, "stream"), 0.75),
    ("CPU per JSON at 64: platform ÷ agentic-api", _cpu(PLATFORM, "json"), _cpu(AGENTIC, "json"), 1.1),
    ("stream at 64: agentic-api ÷ a process per core", _rate(AGENTIC, "stream"), _rate(PER_CORE, "stream"), 1.0),
    ("json at 64: agentic-api ÷ a process per core", _rate(AGENTIC, "json"), _rate(PER_CORE, "json"), 1.0),
)
FIRST_EVENT_MS = 1.5


def floors(content: Mapping[str, Any], *, speed: bool) -> Iterator[Floor]:
    """Yield the limits: of failures and, if wanted, of speed relative to other servers and between cells.

    Ratios of connections that the options left out are omitted. A ratio to a server that is missing was not measured.
    """
    results = content["results"]
    requests = [*results, *content["ladder"]]
    failed = sum(result["failed"] for result in requests if result["server"] in {PLATFORM, PER_CORE})
    yield Floor(name="failed requests of the platform", figure=failed, limit=0)
    yield Floor(name="completed requests that were not stored", figure=content["not_stored"], limit=0)
    if not speed:
        return
    measured = {(result["kind"], result["connections"]) for result in results}
    for name, above, below, limit in RATIOS:
        if {(cell.kind, cell.connections) for cell in (above, below)} <= measured:
            dividend, divisor = above.of(content), below.of(content)
            yield Floor(name=name, figure=dividend / divisor if dividend and divisor else None, limit=limit)
    first = figure(content, "stream", 1, PLATFORM, "first_event_ms", "p50")
    yield Floor(name="first event at concurrency 1, p50 ms", figure=first, limit=FIRST_EVENT_MS)

"""The limits of a comparison, which `--check` enforces."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.compare.measurements import figure
from benchmarks.report import Floor

# Medians of windows of two seconds differ by this much between two runs of the same code.
NOISE = 0.05


def floors(content: Mapping[str, Any], *, speed: bool) -> Iterator[Floor]:
    """Yield the limits: of failures and, if wanted, of speed relative to the pass-through and between cells."""
    failed = sum(result["failed"] for result in content["results"] if result["server"] == "platform")
    yield Floor(name="failed requests of the platform", figure=failed, limit=0)
    yield Floor(name="completed requests that were not stored", figure=content["not_stored"], limit=0)
    if not speed:
        return

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    def rate(kind: str, connections: int, server: str) -> float | None:
        return figure(content, kind, connections, server, "per_second")

    found = {result["connections"] for result in content["results"]}
    for kind, limit in (("stream", 5.0), ("json", 8.0)):
        if 64 in found:
            slower = ratio(rate(kind, 64, "proxy"), rate(kind, 64, "platform"))
            yield Floor(name=f"{kind} at 64: pass-through ÷ platform", figure=slower, limit=limit)
        if {64, 256} <= found:
            falls = ratio(rate(kind, 64, "platform"), rate(kind, 256, "platform"))
            yield Floor(name=f"{kind}: rate at 64 ÷ rate at 256", figure=falls, limit=1 + NOISE)
    first = figure(content, "stream", 1, "platform", "first_event_ms", "p50")
    yield Floor(name="first event at concurrency 1, p50 ms", figure=first, limit=4.0)

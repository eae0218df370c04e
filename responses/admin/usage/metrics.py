"""What the page of usage can show, and by what it can be told apart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from console import charts
from responses.rollups import histograms
from responses.rollups.sources import CALLS, RESPONSES, TOOLS, RollupSource
from tenants.prices import amount

SOURCES: Mapping[str, RollupSource] = {source.name: source for source in (RESPONSES, CALLS, TOOLS)}


STATUS_TONES: Mapping[str, str] = {
    "completed": "good",
    "failed": "bad",
    "incomplete": "warn",
    "cancelled": "other",
    "in_progress": "s5",
    "queued": "s7",
}


class Kind(Enum):
    """How a value comes from sums: it is one, a share of one in another, or a percentile of a histogram."""

    SUM = "sum"
    SHARE = "share"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that can be asked for. `columns` are the columns it comes from, by source; the first source that tells
    the wanted groups apart is asked."""

    name: str
    title: str
    columns: Mapping[str, tuple[str, ...]]
    kind: Kind = Kind.SUM
    share: float = 0
    spoken: Callable[[float], str] = charts.number

    def value(self, source: str, sums: Mapping[str, Any]) -> float | None:
        """The number, of sums; None where there is nothing to speak of."""
        first, *others = self.columns[source]
        match self.kind:
            case Kind.PERCENTILE:
                return histograms.quantile(sums[first], self.share)
            case Kind.SHARE:
                whole = sums[others[0]]
                return 100 * sums[first] / whole if whole else None
            case Kind.SUM:
                return float(sums[first])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What a number can be told apart by: the dimensions of each source that knows it."""

    name: str
    title: str
    dimensions: Mapping[str, tuple[str, ...]]


def dollars(value: float) -> str:
    """A cost on a chart: to the cent, and small ones to four places."""
    return amount(Decimal(f"{value:.{2 if value >= 1 else 4}f}"))


def _tokens(name: str, title: str, column: str) -> Metric:
    return Metric(name=name, title=title, columns={"responses": (column,), "calls": (column,)})


def _percentile(name: str, title: str, share: float, **columns: tuple[str, ...]) -> Metric:
    return Metric(
        name=name, title=title, columns=columns, kind=Kind.PERCENTILE, share=share, spoken=charts.milliseconds
    )


_DURATION: dict[str, tuple[str, ...]] = {"responses": ("duration",), "tools": ("duration",), "calls": ("duration",)}
_FIRST: dict[str, tuple[str, ...]] = {"responses": ("first_token",)}
_ERRORS = {"responses": ("failed", "responses"), "tools": ("failed", "calls"), "calls": ("failed", "calls")}

METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="requests", title="Responses", columns={"responses": ("responses",)}),
        Metric(name="errors", title="Error %", columns=_ERRORS, kind=Kind.SHARE, spoken=charts.percent),
        _tokens("tokens_in", "Tokens in", "input_tokens"),
        _tokens("tokens_cached", "Tokens cached", "cached_tokens"),
        _tokens("tokens_out", "Tokens out", "output_tokens"),
        Metric(name="tools", title="Tool calls", columns={"responses": ("tool_calls",), "tools": ("calls",)}),
        _percentile("p50", "Latency p50", 0.5, **_DURATION),
        _percentile("p95", "Latency p95", 0.95, **_DURATION),
        _percentile("ttft50", "Time to first token p50", 0.5, **_FIRST),
        _percentile("ttft95", "Time to first token p95", 0.95, **_FIRST),
        Metric(name="calls", title="Model calls, all endpoints", columns={"calls": ("calls",)}),
        Metric(name="cost", title="Cost", columns={"calls": ("cost",)}, spoken=dollars),
    )
}
GROUPS = {
    group.name: group
    for group in (
        Group(name="none", title="Nothing", dimensions={"responses": (), "calls": (), "tools": ()}),
        Group(name="team", title="Team", dimensions=dict.fromkeys(SOURCES, ("team_id",))),
        Group(name="key", title="API key", dimensions=dict.fromkeys(("responses", "calls"), ("api_key_id",))),
        Group(name="model", title="Model", dimensions=dict.fromkeys(("responses", "calls"), ("model",))),
        Group(name="upstream", title="Upstream", dimensions=dict.fromkeys(("responses", "calls"), ("upstream_id",))),
        Group(name="status", title="Status", dimensions={"responses": ("status",), "tools": ("status",)}),
        Group(name="mode", title="Mode", dimensions={"responses": ("mode",)}),
        Group(name="endpoint", title="Endpoint", dimensions={"calls": ("endpoint",)}),
        Group(name="tool", title="Tool", dimensions={"tools": ("kind", "name")}),
    )
}


def source_of(metric: Metric, group: Group, filters: Mapping[str, str]) -> RollupSource | None:
    """Where a metric is read from when it is told apart so and narrowed by these dimensions; None: from nowhere."""
    for name in metric.columns:
        source = SOURCES[name]
        if name in group.dimensions and set(filters) <= set(source.names):
            return source
    return None

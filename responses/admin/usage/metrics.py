"""Metrics and groupings of the usage page."""

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


# Tones are class names of charts.css.
STATUS_TONES: Mapping[str, str] = {
    "completed": "good",
    "failed": "bad",
    "incomplete": "warn",
    "cancelled": "other",
    "in_progress": "s5",
    "queued": "s7",
}


class MetricKind(Enum):
    """Computation of a metric: a sum, the ratio of two sums in percent, or a percentile of a histogram."""

    SUM = "sum"
    SHARE = "share"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Metric of the usage page.

    `columns` are the columns it is computed from, by source, in order of preference: the first source that has the
    grouping and the filters is used. `share` is the percentile between 0 and 1.
    """

    name: str
    title: str
    columns: Mapping[str, tuple[str, ...]]
    kind: MetricKind = MetricKind.SUM
    share: float = 0
    format_value: Callable[[float], str] = charts.number

    def value(self, source: str, sums: Mapping[str, Any]) -> float | None:
        """Return the value computed from sums, or None without data."""
        first, *others = self.columns[source]
        match self.kind:
            case MetricKind.PERCENTILE:
                return histograms.quantile(sums[first], self.share)
            case MetricKind.SHARE:
                whole = sums[others[0]]
                return 100 * sums[first] / whole if whole else None
            case MetricKind.SUM:
                return float(sums[first])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Grouping of a metric: its dimensions in each source that has them."""

    name: str
    title: str
    dimensions: Mapping[str, tuple[str, ...]]


def dollars(value: float) -> str:
    """Format a cost in US dollars: two decimals, four below one dollar."""
    return amount(Decimal(f"{value:.{2 if value >= 1 else 4}f}"))


def _tokens(name: str, title: str, column: str) -> Metric:
    return Metric(name=name, title=title, columns={"responses": (column,), "calls": (column,)})


def _percentile(name: str, title: str, share: float, **columns: tuple[str, ...]) -> Metric:
    return Metric(
        name=name,
        title=title,
        columns=columns,
        kind=MetricKind.PERCENTILE,
        share=share,
        format_value=charts.milliseconds,
    )


_DURATION: dict[str, tuple[str, ...]] = {"responses": ("duration",), "tools": ("duration",), "calls": ("duration",)}
_FIRST: dict[str, tuple[str, ...]] = {"responses": ("first_token",)}
_ERRORS = {"responses": ("failed", "responses"), "tools": ("failed", "calls"), "calls": ("failed", "calls")}

METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="requests", title="Responses", columns={"responses": ("responses",)}),
        Metric(name="errors", title="Error rate", columns=_ERRORS, kind=MetricKind.SHARE, format_value=charts.percent),
        _tokens("tokens_in", "Input tokens", "input_tokens"),
        _tokens("tokens_cached", "Cached tokens", "cached_tokens"),
        _tokens("tokens_out", "Output tokens", "output_tokens"),
        Metric(name="tools", title="Tool calls", columns={"responses": ("tool_calls",), "tools": ("calls",)}),
        _percentile("p50", "Latency p50", 0.5, **_DURATION),
        _percentile("p95", "Latency p95", 0.95, **_DURATION),
        _percentile("ttft50", "Time to first token p50", 0.5, **_FIRST),
        _percentile("ttft95", "Time to first token p95", 0.95, **_FIRST),
        Metric(name="calls", title="Model calls (all endpoints)", columns={"calls": ("calls",)}),
        Metric(name="cost", title="Cost", columns={"calls": ("cost",)}, format_value=dollars),
    )
}
GROUPS = {
    group.name: group
    for group in (
        Grouping(name="none", title="None", dimensions={"responses": (), "calls": (), "tools": ()}),
        Grouping(name="team", title="Team", dimensions=dict.fromkeys(SOURCES, ("team_id",))),
        Grouping(name="key", title="API key", dimensions=dict.fromkeys(("responses", "calls"), ("api_key_id",))),
        Grouping(name="model", title="Model", dimensions=dict.fromkeys(("responses", "calls"), ("model",))),
        Grouping(name="upstream", title="Upstream", dimensions=dict.fromkeys(("responses", "calls"), ("upstream_id",))),
        Grouping(name="status", title="Status", dimensions={"responses": ("status",), "tools": ("status",)}),
        Grouping(name="mode", title="Mode", dimensions={"responses": ("mode",)}),
        Grouping(name="endpoint", title="Endpoint", dimensions={"calls": ("endpoint",)}),
        Grouping(name="tool", title="Tool", dimensions={"tools": ("kind", "name")}),
    )
}


def source_for(metric: Metric, group: Grouping, filters: Mapping[str, str]) -> RollupSource | None:
    """Return the first source that has the metric, the grouping and the filtered dimensions, or None."""
    for name in metric.columns:
        source = SOURCES[name]
        if name in group.dimensions and set(filters) <= set(source.names):
            return source
    return None

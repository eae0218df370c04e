"""Report of the measurements: table, limits, and their results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load import Measurement, Spread

JUDGED_CONCURRENCY = 64
NOISY_CORES = 0.3

Results = Mapping[tuple[str, str], Measurement]
"""Medians by names of cell and target."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A figure with its upper limit. The figure is None if it could not be measured, which counts as exceeded."""

    name: str
    figure: float | None
    limit: float

    @property
    def holds(self) -> bool:
        return self.figure is not None and self.figure <= self.limit

    def text(self) -> str:
        outcome = "holds" if self.holds else "MISSED"
        return f"{outcome:7} {self.name}: {_figure(self.figure)} (at most {_figure(self.limit)})"


@dataclass(frozen=True, kw_only=True)
class Count:
    """Expected and actual number of rows of a kind."""

    kind: str
    expected: int
    found: int


def floors(*, results: Results, counts: Sequence[Count], turns: int, speed: bool) -> list[Floor]:
    """Return all limits that this run can evaluate; groups that were not selected are omitted."""
    failed = sum(result.failed for result in results.values())
    found = [Floor(name="requests that failed, at any target", figure=failed, limit=0)]
    found += [
        Floor(name=f"{count.kind} missing or too many", figure=abs(count.found - count.expected), limit=0)
        for count in counts
    ]
    first, last = (results.get((f"turn {turn}", "platform")) for turn in (1, turns))
    if first and last:
        before, after = first.statements_per_request, last.statements_per_request
        more = None if before is None or after is None else after - before
        # Statements of the sweeper, or of a batch shared by two requests, shift the mean slightly.
        found.append(Floor(name=f"SQL statements of turn {turns} over turn 1", figure=more, limit=2.1))
    return [*found, *_speed(results)] if speed else found


def _speed(results: Results) -> Iterator[Floor]:
    together = f"c={JUDGED_CONCURRENCY}"
    for (cell, target), platform in results.items():
        if target != "platform":
            continue
        # Every cell that is judged by its speed is measured on the proxy as well.
        proxy = results.get((cell, "proxy"), platform)
        slower = proxy.per_second / platform.per_second if platform.per_second else None
        if cell == f"stream {together}":
            dearer = platform.cpu_ms_per_request / proxy.cpu_ms_per_request if proxy.cpu_ms_per_request else None
            yield Floor(name=f"streams/s {together}: proxy ÷ platform", figure=slower, limit=12)
            yield Floor(name=f"CPU per stream {together}: platform ÷ proxy", figure=dearer, limit=14)
        elif cell == f"json {together}":
            yield Floor(name=f"JSON/s {together}: proxy ÷ platform", figure=slower, limit=16)
        elif cell == "stream c=1":
            yield _time("first event c=1, p50 ms", platform.first_event_ms, "p50", limit=6)
        elif cell.startswith("paced"):
            yield _time("a delta's time in the platform, p95 ms", platform.delta_age_ms, "p95", limit=40)
        elif cell.endswith("at once"):
            yield _time(f"{cell}: all connected, ms", platform.connect_ms, "max", limit=1000)
            yield _time(f"{cell}: first event p99 ms", platform.first_event_ms, "p99", limit=4000)


def _time(name: str, spread: Spread | None, quantile: str, *, limit: float) -> Floor:
    return Floor(name=name, figure=getattr(spread, quantile) if spread else None, limit=limit)


# -- as text -----------------------------------------------------------------------------------------------------------


def _quantile(kind: str, quantile: str) -> Callable[[Measurement], float | None]:
    return lambda measured: getattr(getattr(measured, kind), quantile, None)


COLUMNS: Sequence[tuple[str, int, Callable[[Measurement], float | None]]] = (
    ("req/s", 10, lambda measured: measured.per_second),
    ("p50 ms", 9, _quantile("total_ms", "p50")),
    ("p95 ms", 9, _quantile("total_ms", "p95")),
    ("p99 ms", 9, _quantile("total_ms", "p99")),
    ("event p50", 10, _quantile("first_event_ms", "p50")),
    ("p99", 9, _quantile("first_event_ms", "p99")),
    ("delta p50", 10, _quantile("first_delta_ms", "p50")),
    ("p95", 9, _quantile("first_delta_ms", "p95")),
    ("CPU ms", 8, lambda measured: measured.cpu_ms_per_request),
    ("DB ms", 7, lambda measured: measured.database_ms_per_request),
    ("SQL", 6, lambda measured: measured.statements_per_request),
    ("rows", 7, lambda measured: measured.rows_per_request),
    ("MiB", 6, lambda measured: measured.resident_mb),
    ("failed", 7, lambda measured: measured.failed),
)


def text(*, results: Results, counts: Sequence[Count], floors: Sequence[Floor], proxy_parts: str) -> str:
    """Return the report for a terminal of 160 columns."""
    return "\n".join(_lines(results, counts, floors, proxy_parts))


def _lines(results: Results, counts: Sequence[Count], floors: Sequence[Floor], proxy_parts: str) -> Iterator[str]:
    yield f"{'cell':18}{'target':9}" + "".join(title.rjust(width) for title, width, _ in COLUMNS)
    previous = None
    for (cell, target), measured in results.items():
        if previous not in (None, cell):
            yield ""
        previous = cell
        figures = "".join(_figure(value(measured)).rjust(width) for _, width, value in COLUMNS)
        noisy = " *" if measured.foreign_cores > NOISY_CORES else ""
        error = f"  {measured.first_error[:100]}" if measured.failed else ""
        yield f"{cell:18}{target:9}{figures}{noisy}{error}"
    yield "event, delta: time to the first event and the first text delta; CPU: of the server's processes per request;"
    yield "DB, SQL, rows: PostgreSQL's CPU, statements and rows per request; * = other work used the machine meanwhile."
    yield f"The proxy is {proxy_parts}."
    # Only some cells have these times.
    for (cell, target), measured in results.items():
        if (age := measured.delta_age_ms) and age.count:
            yield f"{cell}, {target}: a delta's way from the mock: {_spread(age)}"
        if (connect := measured.connect_ms) and cell.endswith("at once"):
            yield f"{cell}, {target}: connecting: {_spread(connect)}"
    for count in counts:
        outcome = "all there" if count.found == count.expected else "MISMATCH"
        yield f"{count.kind}: {count.found:,} found, {count.expected:,} expected: {outcome}"
    yield from (floor.text() for floor in floors)


def _figure(number: float | None) -> str:
    if number is None:
        return "-"
    if isinstance(number, int) or number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _spread(spread: Spread) -> str:
    return f"p50 {spread.p50:.2f}, p95 {spread.p95:.2f}, p99 {spread.p99:.2f}, max {spread.max:.2f} ms"

"""Report of the measurements: table, limits, and whether they are met."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.cells import Scale, connections_name, matrix_name, paced_name, turn_name
from benchmarks.load import Measurement, Spread
from benchmarks.rounds import Results
from benchmarks.rows import Count

JUDGED_CONCURRENCY = 64
NOISY_CORES = 0.3


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A figure with its upper limit. None means that it could not be measured, which counts as exceeded."""

    name: str
    figure: float | None
    limit: float

    @property
    def holds(self) -> bool:
        return self.figure is not None and self.figure <= self.limit


def floors(*, results: Results, counts: Sequence[Count], scale: Scale) -> list[Floor]:
    """Return all limits that this run can evaluate; groups that were not selected are omitted."""
    judged = [*_correctness(results, counts), *_chain(results, scale)]
    return [*judged, *_speed(results, scale)] if scale.judges_speed else judged


def _correctness(results: Results, counts: Sequence[Count]) -> Iterator[Floor]:
    failed = sum(result.median.failed for result in results.values())
    yield Floor(name="requests that failed, at any target", figure=failed, limit=0)
    for count in counts:
        yield Floor(name=f"{count.kind} missing or too many", figure=abs(count.found - count.expected), limit=0)


def _speed(results: Results, scale: Scale) -> Iterator[Floor]:
    stream, together = matrix_name(stream=True, connections=JUDGED_CONCURRENCY), f"c={JUDGED_CONCURRENCY}"
    plain = matrix_name(stream=False, connections=JUDGED_CONCURRENCY)
    single = matrix_name(stream=True, connections=1)
    many, paced = connections_name(scale), paced_name(scale)
    if (stream, "platform") in results:
        yield Floor(name=f"streams/s {together}: proxy ÷ platform", figure=_slower(results, stream), limit=16)
        yield Floor(name=f"CPU per stream {together}: platform ÷ proxy", figure=_dearer(results, stream), limit=24)
    if (plain, "platform") in results:
        yield Floor(name=f"JSON/s {together}: proxy ÷ platform", figure=_slower(results, plain), limit=40)
    if (single, "platform") in results:
        first = _time(results, single, lambda each: each.first_event_ms, "p50")
        yield Floor(name="first event c=1, p50 ms", figure=first, limit=6)
    if (paced, "platform") in results:
        age = _time(results, paced, lambda each: each.delta_age_ms, "p95")
        yield Floor(name="a delta's time in the platform, p95 ms", figure=age, limit=40)
    if (many, "platform") in results:
        connected = _time(results, many, lambda each: each.connect_ms, "max")
        first = _time(results, many, lambda each: each.first_event_ms, "p99")
        yield Floor(name=f"{many}: all connected, ms", figure=connected, limit=1000)
        yield Floor(name=f"{many}: first event p99 ms", figure=first, limit=4000)


def _chain(results: Results, scale: Scale) -> Iterator[Floor]:
    first, last = (results.get((turn_name(turn), "platform")) for turn in (1, scale.turns))
    if first and last:
        before, after = first.median.statements_per_request, last.median.statements_per_request
        more = None if before is None or after is None else after - before
        # Statements of the sweeper, or of a batch shared by two requests, shift the mean slightly.
        yield Floor(name=f"SQL statements of {turn_name(scale.turns)} over turn 1", figure=more, limit=2.1)


def _slower(results: Results, cell: str) -> float | None:
    platform, proxy = results[cell, "platform"].median, results[cell, "proxy"].median
    return proxy.per_second / platform.per_second if platform.per_second else None


def _dearer(results: Results, cell: str) -> float | None:
    platform, proxy = results[cell, "platform"].median, results[cell, "proxy"].median
    return platform.cpu_ms_per_request / proxy.cpu_ms_per_request if proxy.cpu_ms_per_request else None


def _time(results: Results, cell: str, which: Callable[[Measurement], Spread | None], quantile: str) -> float | None:
    spread = which(results[cell, "platform"].median)
    figure: float | None = getattr(spread, quantile) if spread else None
    return figure


# ---- as text ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    ("cell", 18),
    ("target", 9),
    ("req/s", 10),
    ("p50 ms", 9),
    ("p95 ms", 9),
    ("p99 ms", 9),
    ("event p50", 10),
    ("p99", 9),
    ("delta p50", 10),
    ("p95", 9),
    ("CPU ms", 8),
    ("DB ms", 7),
    ("SQL", 6),
    ("rows", 7),
    ("MiB", 6),
    ("failed", 7),
)


def text(*, results: Results, counts: Sequence[Count], judged: Sequence[Floor], proxy_parts: str) -> str:
    """Return the report for a terminal of 160 columns."""
    sections = (_table(results), [f"The proxy is {proxy_parts}."], _delays(results), _counted(counts), _judged(judged))
    return "\n".join(line for section in sections for line in section)


def _table(results: Results) -> Iterator[str]:
    yield "".join(
        title.ljust(width) if width >= 18 or title == "target" else title.rjust(width) for title, width in COLUMNS
    )
    previous = None
    for (cell, target), result in results.items():
        if previous not in (None, cell):
            yield ""
        previous = cell
        yield _row(cell, target, result.median)
    yield "event, delta: time to the first event and the first text delta; CPU: of the server's processes per request;"
    yield "DB, SQL, rows: PostgreSQL's CPU, statements and rows per request; * = other work used the machine meanwhile."


def _row(cell: str, target: str, measured: Measurement) -> str:
    total, event, delta = measured.total_ms, measured.first_event_ms, measured.first_delta_ms
    figures = (
        measured.per_second,
        *((total.p50, total.p95, total.p99) if total else (None, None, None)),
        *((event.p50, event.p99) if event else (None, None)),
        *((delta.p50, delta.p95) if delta else (None, None)),
        measured.cpu_ms_per_request,
        measured.database_ms_per_request,
        measured.statements_per_request,
        measured.rows_per_request,
        measured.resident_mb,
        measured.failed,
    )
    noisy = " *" if measured.foreign_cores > NOISY_CORES else ""
    words = [cell.ljust(COLUMNS[0][1]), target.ljust(COLUMNS[1][1])]
    words += [_figure(figure).rjust(width) for figure, (_, width) in zip(figures, COLUMNS[2:], strict=True)]
    error = f"  {measured.first_error[:100]}" if measured.failed else ""
    return "".join(words) + noisy + error


def _figure(number: float | None) -> str:
    if number is None:
        return "-"
    if isinstance(number, int) or number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _delays(results: Results) -> Iterator[str]:
    """Return the times that only some cells have: age of a delta on arrival, and connection time."""
    for (cell, target), result in results.items():
        age, connect = result.median.delta_age_ms, result.median.connect_ms
        if age and age.count:
            yield _spread_line(f"{cell}, {target}: a delta's way from the mock", age)
        if connect and connect.count >= 50 * len(result.rounds) and "at once" in cell:
            yield _spread_line(f"{cell}, {target}: connecting", connect)


def _spread_line(name: str, spread: Spread) -> str:
    return f"{name}: p50 {spread.p50:.2f}, p95 {spread.p95:.2f}, p99 {spread.p99:.2f}, max {spread.max:.2f} ms"


def _counted(counts: Sequence[Count]) -> Iterator[str]:
    for count in counts:
        outcome = "all there" if count.matches else "MISMATCH"
        yield f"{count.kind}: {count.found:,} found, {count.expected:,} expected: {outcome}"


def _judged(judged: Sequence[Floor]) -> Iterator[str]:
    for floor in judged:
        outcome = "holds" if floor.holds else "MISSED"
        yield f"{outcome:7} {floor.name}: {_figure(floor.figure)} (at most {_figure(floor.limit)})"

"""Waterfall: positions of bars, lanes, critical path, gaps, and waits that outlast a run."""

from datetime import datetime, timedelta
from typing import Any

from core.clock import now
from responses.admin.response.waterfall import (
    Interval,
    SpanKind,
    TraceSpan,
    Waterfall,
    assign_lanes,
    critical_path,
    gaps,
    ticks,
    waterfall,
)

AT = now()


def at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def span(name: str, kind: SpanKind, start: float, end: float | None, **more: Any) -> TraceSpan:
    ended = None if end is None else at(end)
    return TraceSpan(key=name, kind=kind, name=name, began=at(start), ended=ended, **more)


def chart(*spans: TraceSpan, end: float | None = 10, present: float = 100) -> Waterfall:
    return waterfall(spans, began=AT, ended=None if end is None else at(end), present=at(present))


def critical(found: Waterfall) -> list[str]:
    return [bar.span.name for bar in found.bars if bar.is_critical]


def test_bars_are_ordered_by_their_start() -> None:
    found = chart(
        span("b", SpanKind.TOOL, 4, 9), span("a", SpanKind.MODEL, 1, 4, mark=at(2)), span("q", SpanKind.QUEUE, 0, 1)
    )
    assert [(bar.span.name, bar.start, bar.end, bar.mark) for bar in found.bars] == [
        ("q", 0, 1000, None), ("a", 1000, 4000, 2000), ("b", 4000, 9000, None),
    ]  # fmt: skip


def test_the_critical_path_contains_the_longest_of_parallel_calls() -> None:
    calls = [span("short", SpanKind.TOOL, 2, 3), span("long", SpanKind.TOOL, 2, 7), span("late", SpanKind.TOOL, 4, 6)]
    found = chart(span("ask", SpanKind.MODEL, 0, 2), *calls, span("answer", SpanKind.MODEL, 7, 10))
    assert critical(found) == ["ask", "long", "answer"]


def test_concurrent_spans_have_separate_lanes() -> None:
    assert assign_lanes([Interval(0, 4), Interval(1, 3), Interval(2, 5), Interval(3, 6), Interval(4, 8)]) == [
        0,
        1,
        2,
        1,
        0,
    ]


def test_a_hundred_turns_share_one_lane() -> None:
    turns = [span(f"t{n:03}", SpanKind.MODEL, n / 10, (n + 1) / 10) for n in range(100)]
    found = chart(*turns)
    assert (found.lanes, len(critical(found))) == (1, 100)


def test_idle_time_is_overhead() -> None:
    found = chart(span("a", SpanKind.MODEL, 1, 4), span("b", SpanKind.TOOL, 3, 5), span("c", SpanKind.MODEL, 8, 9))
    assert [(gap.start, gap.end) for gap in found.gaps] == [(0, 1000), (5000, 8000), (9000, 10000)]
    assert found.overhead == 5000


def test_a_gap_does_not_break_the_critical_path() -> None:
    spans = [Interval(0, 2), Interval(1, 2.5), Interval(6, 9)]
    assert critical_path(spans, end=10) == [2, 1, 0]


def test_a_span_without_duration_is_not_on_the_critical_path() -> None:
    assert critical_path([Interval(0, 5), Interval(5, 5), Interval(5, 9)], end=9) == [2, 0]
    assert critical_path([], end=9) == []


def test_a_pause_below_a_millisecond_is_not_a_gap() -> None:
    assert gaps([Interval(0.4, 5), Interval(5.5, 10)], end=10) == []


def test_an_attempt_does_not_count_as_busy_time() -> None:
    found = chart(span("Attempt 1", SpanKind.RUN, 0, 10), span("a", SpanKind.MODEL, 2, 10))
    assert (critical(found), found.overhead) == (["a"], 2000)


def test_an_active_run_extends_to_now() -> None:
    found = chart(span("a", SpanKind.MODEL, 0, 2), span("b", SpanKind.TOOL, 2, None), end=None, present=30)
    last = found.bars[-1]
    assert (found.run, last.end, last.is_open, last.is_critical) == (30_000, 30_000, True, True)


def test_an_unfinished_span_ends_with_its_run() -> None:
    (bar,) = chart(span("a", SpanKind.TOOL, 2, None)).bars
    assert (bar.end, bar.is_open) == (10_000, False)


def test_a_wait_after_the_run_extends_the_scale_by_at_most_half() -> None:
    short = chart(span("client", SpanKind.CLIENT, 10, 12))
    long = chart(span("client", SpanKind.CLIENT, 10, 3600))
    assert [(found.scale, found.bars[0].is_clipped) for found in (short, long)] == [(12_000, False), (15_000, True)]
    assert (long.run, long.overhead) == (10_000, 10_000)


def test_clock_skew_puts_nothing_before_the_start() -> None:
    (bar,) = chart(span("a", SpanKind.MODEL, -1, 2)).bars
    assert (bar.start, bar.end) == (0, 2000)


def test_ticks_are_few_round_numbers() -> None:
    for scale in (1, 7, 99, 1234, 60_000, 86_400_000):
        found = ticks(scale)
        assert found[0] == 0
        assert 3 <= len(found) <= 9
        assert found[-1] <= scale


def test_minute_ticks_are_round_multiples() -> None:
    assert [tick / 60_000 for tick in ticks(472_000)] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_lost_time_is_not_overhead_and_is_on_the_critical_path() -> None:
    found = chart(span("lost", SpanKind.LOST, 0, 6), span("a", SpanKind.MODEL, 6, 10))
    assert (critical(found), found.overhead) == (["lost", "a"], 0)


def test_a_run_without_duration_has_a_scale() -> None:
    found = chart(end=0)
    assert (found.scale, found.bars, found.gaps) == (1, [], [])

"""Charts: geometry, labels and accessibility."""

import re

import pytest

from console import charts
from console.charts import Chart, ChartPoint, Series
from responses.rollups.histograms import BOUNDS, BUCKETS, quantile

GOOD, BAD = Series(name="good", tone="good"), Series(name="<bad>", tone="bad", url="/bad?a=1&b=2")


def point(name: str, *values: float | None, url: str = "") -> ChartPoint:
    """Return a point with these values."""
    return ChartPoint(name=name, label=name, values=values, url=url)


def test_parts_of_a_bar_are_stacked() -> None:
    chart = charts.stacked([point("a", 6, 4), point("b", 5, 0)], [GOOD, BAD], title="Things")
    first, second = chart.bars
    assert [(part.tone, part.y, part.height) for part in first.parts] == [("good", 40, 60), ("bad", 0, 40)]
    assert [(part.tone, part.y, part.height) for part in second.parts] == [("good", 50, 50)]


def test_bars_share_the_width() -> None:
    bars = charts.stacked([point(str(number), 1) for number in range(4)], [GOOD], title="Things").bars
    assert [bar.middle for bar in bars] == [12.5, 37.5, 62.5, 87.5]
    assert all(bar.x + bar.width / 2 == pytest.approx(bar.middle, abs=0.01) for bar in bars)


def test_every_bar_has_a_label_with_its_values() -> None:
    chart = charts.stacked([point("Mon", 12_345, None), point("Tue", 0, 0)], [GOOD, BAD], title="Things")
    assert [bar.hint for bar in chart.bars] == ["Mon: 12.3k good", "Tue: none"]


def test_the_scale_ends_at_a_round_number() -> None:
    assert [charts.ceiling(value) for value in (0, 1, 7, 9.5, 11, 149, 2001)] == [0, 1, 8, 10, 15, 150, 3000]


def test_a_gap_in_the_values_is_a_gap_in_the_line() -> None:
    values = [1, 2, None, 4]
    chart = charts.lines([point(str(n), value) for n, value in enumerate(values)], [GOOD], title="Times")
    assert chart.lines[0].paths == ["12.50,75.00 37.50,50.00", "87.50,0.00 93.75,0.00"]


def test_an_empty_chart_is_rendered() -> None:
    for chart in (charts.stacked([], [], title="x"), charts.lines([point("a", None)], [GOOD], title="x")):
        assert chart.is_empty
        assert "<svg" in chart.html


def test_the_axis_has_few_labels() -> None:
    bars = charts.stacked([point(str(number), 1) for number in range(100)], [GOOD], title="x").bars
    assert 1 < sum(bool(bar.label) for bar in bars) <= 7


@pytest.mark.parametrize("draw", [charts.stacked, charts.lines])
def test_a_chart_is_accessible_to_screen_readers_and_keyboards(draw: object) -> None:
    assert callable(draw)
    chart: Chart = draw([point("Mon", 3, 1, url="/list?x=1&y=2"), point("Tue", 1, 1)], [GOOD, BAD], title="Things")
    page = chart.html
    assert 'role="group" aria-label="Things. Mon to Tue, UTC; maximum' in page
    assert '<a href="/list?x=1&amp;y=2" aria-label="Mon: 3 good, 1 &lt;bad&gt;" tabindex="0">' in page
    assert '<g tabindex="-1" role="img" aria-label="Tue: 1 good, 1 &lt;bad&gt;">' in page
    assert re.search(r'<th scope="row">Mon</th><td class="c-num">3</td><td class="c-num">1</td>', page)
    assert "<bad>" not in page


def test_a_sparkline_is_hidden_from_screen_readers() -> None:
    assert 'aria-hidden="true"' in charts.sparkline([1, 2, 3])
    assert "polyline" not in charts.sparkline([0, 0])


def test_percentiles_are_within_their_bucket() -> None:
    counts = [0] * BUCKETS
    counts[BOUNDS.index(1000) + 1] = 100
    above = next(bound for bound in BOUNDS if bound > 1000)
    low, middle, high = (quantile(counts, share) for share in (0.01, 0.5, 0.99))
    assert low is not None
    assert middle is not None
    assert high is not None
    assert 1000 <= low < middle < high <= above
    assert quantile([0] * BUCKETS, 0.5) is None

"""Numbers and times as the admin writes them."""

from datetime import UTC, datetime, timedelta

import pytest

from console import widgets
from kernel.clock import now
from kernel.ids import new_id


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [(None, "–"), (0, "0 ms"), (999, "999 ms"), (1240, "1.24 s"), (59_999, "60.00 s"), (200_000, "3 min 20 s")],
)
def test_durations(milliseconds: int | None, told: str) -> None:
    assert widgets.duration(milliseconds) == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0"), (9_999, "9,999"), (12_345, "12.3k"), (3_100_000, "3.1M"), (2_000_000_000, "2.0B")]
)
def test_counts(count: int, told: str) -> None:
    assert widgets.compact(count) == told


@pytest.mark.parametrize(("count", "told"), [(812, "812 B"), (4_100, "4.1 KB"), (2_000_000, "2.0 MB")])
def test_sizes(count: int, told: str) -> None:
    assert widgets.size(count) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (5, "just now"),
        (-5, "in a moment"),
        (300, "5\xa0minutes ago"),
        (-7230, "in 2\xa0hours"),
        (90_000, "1\xa0day ago"),
    ],
)
def test_distances_in_time(seconds: int, told: str) -> None:
    assert widgets.ago(now() - timedelta(seconds=seconds)) == told


def test_ids_tell_when_they_were_made() -> None:
    created = widgets.created_at_of(new_id("req"))
    assert created is not None
    assert abs(now() - created) < timedelta(seconds=5)
    assert [widgets.created_at_of(text) for text in ("", "req_", "req_zz", "nonsense", "req_" + "f" * 36)] == [None] * 5


def test_json_is_indented_and_other_text_left_alone() -> None:
    assert widgets.pretty('{"ä":1}').text == '{\n  "ä": 1\n}'
    assert widgets.pretty("not json").text == "not json"
    assert widgets.pretty({"a": [1]}).text == '{\n  "a": [\n    1\n  ]\n}'


def test_long_texts_are_cut() -> None:
    cut = widgets.shown("x" * (widgets.SHOWN_CHARACTERS + 1234))
    assert (len(cut.text), cut.note) == (widgets.SHOWN_CHARACTERS, "Truncated: 1,234 more characters not shown.")
    assert widgets.shown("short").note == ""


def test_a_moment_of_another_day_has_its_date() -> None:
    assert "05 Mar 2021 06:07:08" in widgets.when(datetime(2021, 3, 5, 6, 7, 8, tzinfo=UTC))
    assert widgets.when(None) == "–"


def test_what_was_copied_into_a_cell_is_escaped() -> None:
    assert "<b>" not in widgets.copyable("<b>")
    assert "<b>" not in widgets.badge("<b>", "danger", "<b>")
    assert "<b>" not in widgets.json_block({"x": "<b>"})

"""Formatting of numbers, times, texts and cells in the admin."""

from datetime import UTC, datetime, timedelta

import pytest

from console import widgets
from core.clock import now
from core.ids import created_at_of, new_id


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [(None, "–"), (0, "0 ms"), (999, "999 ms"), (1240, "1.24 s"), (59_999, "60.00 s"), (200_000, "3 min 20 s")],
)
def test_durations_are_formatted(milliseconds: int | None, expected: str) -> None:
    assert widgets.duration(milliseconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0"), (9_999, "9,999"), (12_345, "12.3k"), (3_100_000, "3.1M"), (2_000_000_000, "2.0B")]
)
def test_counts_are_abbreviated(count: int, expected: str) -> None:
    assert widgets.compact(count) == expected


@pytest.mark.parametrize(("count", "expected"), [(812, "812 B"), (4_100, "4.1 KB"), (2_000_000, "2.0 MB")])
def test_sizes_are_formatted(count: int, expected: str) -> None:
    assert widgets.size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (5, "just now"),
        (-5, "in a moment"),
        (300, "5\xa0minutes ago"),
        (-7230, "in 2\xa0hours"),
        (90_000, "1\xa0day ago"),
    ],
)
def test_relative_times_are_formatted(seconds: int, expected: str) -> None:
    assert widgets.ago(now() - timedelta(seconds=seconds)) == expected


def test_ids_contain_their_creation_time() -> None:
    created = created_at_of(new_id("req"))
    assert created is not None
    assert abs(now() - created) < timedelta(seconds=5)
    assert [created_at_of(text) for text in ("", "req_", "req_zz", "nonsense", "req_" + "f" * 36)] == [None] * 5


def test_json_is_indented_and_other_text_is_unchanged() -> None:
    assert widgets.pretty('{"ä":1}').text == '{\n  "ä": 1\n}'
    assert widgets.pretty("not json").text == "not json"
    assert widgets.pretty({"a": [1]}).text == '{\n  "a": [\n    1\n  ]\n}'


def test_long_texts_are_truncated() -> None:
    cut = widgets.shown("x" * (widgets.SHOWN_CHARACTERS + 1234))
    assert (len(cut.text), cut.note) == (widgets.SHOWN_CHARACTERS, "Truncated: 1,234 more characters not shown.")
    assert widgets.shown("short").note == ""


def test_another_day_is_shown_with_its_date() -> None:
    assert "05 Mar 2021 06:07:08" in widgets.when(datetime(2021, 3, 5, 6, 7, 8, tzinfo=UTC))
    assert widgets.when(None) == "–"


def test_cells_escape_their_text() -> None:
    assert "<b>" not in widgets.copyable("<b>")
    assert "<b>" not in widgets.badge("<b>", "danger", "<b>")
    assert "<b>" not in widgets.json_block({"x": "<b>"})

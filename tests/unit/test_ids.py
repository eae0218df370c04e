"""Public ids and keys."""

import re
from datetime import UTC, datetime, timedelta

from core.ids import lowest_id, new_id, new_key, new_short_id

MORE_THAN_A_BLOCK = 1_000
AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def test_ids_are_a_prefix_the_time_and_sixteen_random_digits() -> None:
    made = {new_id("resp", at=AT) for _ in range(MORE_THAN_A_BLOCK)}
    assert len(made) == MORE_THAN_A_BLOCK
    time = f"{int(AT.timestamp() * 1000):012x}"
    assert all(re.fullmatch(f"resp_{time}[0-9a-v]{{16}}", each) for each in made)


def test_short_ids_have_eight_random_digits() -> None:
    made = {new_short_id("team") for _ in range(MORE_THAN_A_BLOCK)}
    assert len(made) == MORE_THAN_A_BLOCK
    assert all(re.fullmatch("team_[0-9a-f]{12}[0-9a-v]{8}", each) for each in made)


def test_every_random_digit_is_used_equally_often() -> None:
    digits = "".join(new_id("x", at=AT)[14:] for _ in range(MORE_THAN_A_BLOCK))
    counts = [digits.count(digit) for digit in set(digits)]
    # 500 of each are expected, with a standard deviation of 22.
    assert len(counts) == 32
    assert 350 < min(counts) <= max(counts) < 650


def test_ids_of_a_later_time_sort_after_the_lowest_id_of_that_time() -> None:
    later = AT + timedelta(milliseconds=1)
    assert new_id("resp", at=AT) < lowest_id("resp", at=later) <= new_id("resp", at=later)


def test_keys_are_different_uuids_of_version_7() -> None:
    made = {new_key() for _ in range(MORE_THAN_A_BLOCK)}
    assert len(made) == MORE_THAN_A_BLOCK
    assert {key.version for key in made} == {7}

"""How many streams a stopping process cuts at a time."""

import pytest

from core.load.draining import surplus


@pytest.mark.parametrize(
    ("number", "part_left", "cut"),
    [(10, 1.0, 0), (10, 0.5, 5), (5, 0.5, 0), (3, 0.5, 0), (10, 0.0, 10)],
    ids=["at first", "none has ended", "enough have ended", "more have ended", "at the end"],
)
def test_as_many_are_cut_as_should_have_ended(number: int, part_left: float, cut: int) -> None:
    assert surplus(number, first=10, part_left=part_left) == cut


def test_a_single_one_has_the_whole_time() -> None:
    assert surplus(1, first=1, part_left=0.01) == 0

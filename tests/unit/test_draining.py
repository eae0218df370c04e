"""The number of streams that a stopping process closes at a time."""

import pytest

from core.load.draining import surplus


@pytest.mark.parametrize(
    ("number", "part_left", "cut"),
    [(10, 1.0, 0), (10, 0.5, 5), (5, 0.5, 0), (3, 0.5, 0), (10, 0.0, 10)],
    ids=["at first", "none has ended", "enough have ended", "more have ended", "at the end"],
)
def test_connections_are_closed_evenly_over_the_drain_time(number: int, part_left: float, cut: int) -> None:
    assert surplus(number, first=10, part_left=part_left) == cut


def test_a_single_connection_has_the_whole_drain_time() -> None:
    assert surplus(1, first=1, part_left=0.01) == 0

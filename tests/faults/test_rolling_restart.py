"""A rolling restart under streams; `python -m benchmarks rolling-restart` does it with 500 of them."""

from pathlib import Path

import pytest

from benchmarks.rolling_restart import Plan, measured

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_clients_that_resume_streams_lose_nothing_in_a_restart(tmp_path: Path) -> None:
    """One process of each kind is replaced. The length of the pauses depends on the machine."""
    plan = Plan(streams=6, rate=5, seconds=8, drain=2, restarts=("web-1", "worker-1", "beat-1"))
    result = measured(plan, directory=tmp_path / "servers")
    assert not result.failed
    assert result.different == 0
    assert result.streams > 6
    # Otherwise nothing was tested.
    assert result.cut

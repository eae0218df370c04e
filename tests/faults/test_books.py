"""Usage records agree with an upstream's own accounts.

`python -m benchmarks books` does the same with 10,000 runs and batches of any size, while processes are killed.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.books.command import compared
from benchmarks.books.driver import Plan

pytestmark = pytest.mark.slow


@pytest.mark.nightly
@pytest.mark.usefixtures("servers")
def test_usage_records_agree_with_the_upstreams_own_accounts(tmp_path: Path) -> None:
    plan = Plan(runs=40, batch_lines=16, clients=6, seed=3)
    result = asyncio.run(compared(plan, directory=tmp_path / "books"))
    assert result.faults == []
    assert result.figures["requests recorded exactly"] > 40

"""`python -m benchmarks tables`: rewrites the tables of docs/ from the published results."""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import (
    fairness,
    idle_connections,
    mixed,
    published,
    rolling_restart,
    sizing,
    slow_streams,
)
from benchmarks.chaos import availability, evaluation
from benchmarks.compare import report as comparison
from benchmarks.published import View

VIEWS: Mapping[str, Mapping[str, View]] = {
    "chaos": availability.VIEWS,
    "chaos-runs": evaluation.VIEWS,
    "compare": comparison.VIEWS,
    "fairness": fairness.VIEWS,
    "idle-connections": idle_connections.VIEWS,
    "mixed": mixed.VIEWS,
    "rolling-restart": rolling_restart.VIEWS,
    "sizing": sizing.VIEWS,
    "slow-streams": slow_streams.VIEWS,
}
"""The views by command and by their own name."""


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Rewrite the tables."""
    ArgumentParser(prog="python -m benchmarks tables", description=__doc__).parse_args(arguments)
    update()
    return 0


def update() -> None:
    """Rewrite the tables of all pages."""
    published.update_pages(VIEWS)

"""`python -m benchmarks waiting-runs`: runs that wait for approvals for a day while all processes are replaced."""

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stack import tell
from benchmarks.waiting.driver import Plan, measured


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. Return 1 with --check if a run ended wrongly or a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks waiting-runs")
    parser.add_argument("--runs", type=int, default=1000, help="runs that wait (default: 1,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="length of the idle intervals (default: 30)")
    parser.add_argument("--check", action="store_true", help="exit 1 if there are faults")
    options = parser.parse_args(arguments)
    plan = Plan(runs=options.runs, seed=options.seed, idle_seconds=options.seconds)
    outcome = asyncio.run(measured(plan, directory=directory, log=tell))
    print(outcome.text())
    return 1 if options.check and not outcome.holds else 0

"""The command line: `python -m benchmarks chaos`."""

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.evaluation import evaluated
from benchmarks.chaos.scenario import Plan
from benchmarks.stack import tell


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the scenario and print the figures. Return 1 if there are faults."""
    parser = ArgumentParser(prog="python -m benchmarks chaos")
    parser.add_argument("--runs", type=int, default=1000, help="background responses of three turns with tools")
    parser.add_argument("--kill-every", type=float, default=4.0, help="seconds between killed workers")
    options = parser.parse_args(arguments)
    plan = Plan(
        runs=options.runs,
        kill_every=options.kill_every,
        valkey_restarts=(0.3, 0.7),
        postgres_restarts=(0.5,),
    )
    figures = asyncio.run(evaluated(plan, directory=directory, log=tell))
    print("\n".join(figure.text() for figure in figures))
    return 1 if any(figure.faults for figure in figures) else 0

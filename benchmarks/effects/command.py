"""`python -m benchmarks effects`: kills between the effect of a tool and the storage of its result."""

import asyncio
import os
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.effects.driver import measured
from benchmarks.stack import tell
from tests.support.management import ForkedPrograms


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Kill and compare. Return 1 with --check if there are faults."""
    parser = ArgumentParser(prog="python -m benchmarks effects")
    parser.add_argument("--kills", type=int, default=1000, help="killed processes (default: 1,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 if there are faults")
    options = parser.parse_args(arguments)
    # Forked processes start in a fraction of the time, which most of a round is spent on. Their templates load the code
    # before they are given the environment of a process.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
    running = measured(kills=options.kills, seed=options.seed, directory=directory, log=tell, programs=ForkedPrograms())
    outcome = asyncio.run(running)
    print(outcome.text())
    return 1 if options.check and outcome.faults else 0

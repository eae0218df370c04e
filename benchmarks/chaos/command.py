"""The command line: `python -m benchmarks chaos`."""

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.play import Plan, played
from benchmarks.chaos.verdict import Figure, Verdict


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Play, and print what it came to; 1 when anything is not as it must be."""
    parser = ArgumentParser(prog="python -m benchmarks chaos")
    parser.add_argument("--runs", type=int, default=1000, help="background responses of three turns with tools")
    parser.add_argument("--kill-every", type=float, default=4.0, help="seconds from one killed worker to the next")
    options = parser.parse_args(arguments)
    plan = Plan(
        runs=options.runs,
        kill_every=options.kill_every,
        valkey_restarts=(0.3, 0.7),
        postgres_restarts=(0.5,),
    )
    figures = asyncio.run(_judged(plan, directory))
    print("\n".join(figure.text() for figure in figures))
    return 1 if any(figure.faults for figure in figures) else 0


async def _judged(plan: Plan, directory: Path) -> list[Figure]:
    async with played(plan, directory=directory, tell=_tell) as play:
        return await asyncio.to_thread(lambda: Verdict(play).figures())


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

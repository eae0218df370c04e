"""`python -m benchmarks routing-simulation`: response times, prompt-cache hits and moved keys of the choice of targets.

Nothing is sent and the time is simulated. The exit code is 1 with --check if a limit is exceeded.
"""

import os
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import django

from benchmarks.report import Floor

_SLOTS = (4, 8, 16)
# Of the lengths of answers: similar ones, and those of a usual mixture.
_SPREADS = (0.5, 1.0)
_MOST_RATIO, _MOST_MISSED, _MOST_MOVED = 1.1, 5.0, 15.0


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Simulate and print the figures. Return 1 with --check if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks routing-simulation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=30_000, help="of each simulation (default: 30,000)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    options = parser.parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings_for_types")
    django.setup()
    has_missed = False
    for floor in figures(seed=options.seed, requests=options.requests):
        print(floor.text(), flush=True)
        has_missed |= not floor.holds
    return 1 if options.check and has_missed else 0


def figures(*, seed: int, requests: int) -> Iterator[Floor]:
    """Run the simulations and yield their figures with limits."""
    # The product's modules can be imported only after Django's setup.
    from benchmarks.routing.simulation import moved_keys, prompt_caches, two_speeds

    for spread in _SPREADS:
        for slots in _SLOTS:
            split = two_speeds(seed=seed, slots=slots, requests=requests, spread=spread)
            name = f"p99 with {slots} slots and spread {spread}: {split.chosen:.2f} s"
            name += f" ÷ {split.best:.2f} s of the best split, {split.share:.0%} to the faster target"
            yield Floor(name=name, figure=split.chosen / split.best, limit=_MOST_RATIO)
    hits = prompt_caches(seed=seed, requests=requests)
    name = f"prompt tokens from the cache: {hits.chosen:.1%}, ideal {hits.ideal:.1%}, at random {hits.random:.1%}"
    yield Floor(name=f"{name}; missed, % of the ideal", figure=(1 - hits.chosen / hits.ideal) * 100, limit=_MOST_MISSED)
    left, joined = moved_keys(seed=seed)
    yield Floor(name="keys that move when one of 8 targets leaves, %", figure=left * 100, limit=_MOST_MOVED)
    yield Floor(name="keys that move when a target joins 8 others, %", figure=joined * 100, limit=_MOST_MOVED)

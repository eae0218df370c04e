"""Sizes of checks with many repetitions: CI runs a sample, `python -m benchmarks` runs all repetitions.

Both use the same code and differ only in the counts. `benchmarks/full_size.py` sets the variables.
"""

import os
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")
IS_FULL = os.environ.get("TEST_SIZE") == "full"
SEED = int(os.environ.get("TEST_SEED", "20261121"))


def sized(sample: int, *, full: int) -> int:
    """Return the count for this run."""
    return full if IS_FULL else sample


def sampled(cases: Iterable[Case], count: int, *, key: str) -> list[Case]:
    """Return all cases, or in a sample `count` of them. Different keys select different cases."""
    every = list(cases)
    if IS_FULL or len(every) <= count:
        return every
    return random.Random(f"{SEED} {key}").sample(every, count)


def rest_at_night(values: Iterable[object], *, first: int) -> list[object]:
    """Return the values of a parameter, of which CI tries the first ones only."""
    return [
        value if place < first else pytest.param(value, marks=pytest.mark.nightly) for place, value in enumerate(values)
    ]


def covering(cases: Sequence[Mapping[str, Hashable]], *, key: str) -> set[int]:
    """Return the indexes of a few cases in which each value of each parameter occurs at least once.

    A case has an identifier of the value of each parameter. `key` selects one of several possible sets of cases.
    """
    missing = {value for case in cases for value in case.items()}
    order = random.Random(f"{SEED} {key}").sample(range(len(cases)), len(cases))
    chosen = set[int]()
    while missing:
        best = max(order, key=lambda place: len(missing & cases[place].items()))
        missing -= cases[best].items()
        chosen.add(best)
    return chosen

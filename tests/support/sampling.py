"""Sizes of checks that repeat something many times: CI runs a sample, `python -m benchmarks` runs all of it.

Both use the same code and differ only in the counts. `benchmarks/full_size.py` sets the variables.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

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

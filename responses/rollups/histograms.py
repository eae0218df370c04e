"""Histograms of milliseconds that can be added up, so that percentiles of any span come from sums.

Eight buckets for each factor of ten, from a millisecond to almost three hours: a percentile is right to a few percent.
The bounds are part of what is stored: who changes them has to rebuild all sums.
"""

from collections.abc import Sequence
from itertools import accumulate

BOUNDS: tuple[int, ...] = tuple(sorted({round(10 ** (step / 8)) for step in range(57)}))
"""Bucket `b` holds what is at least `BOUNDS[b - 1]` and below `BOUNDS[b]`; the first begins at 0, the last is open."""

BUCKETS = len(BOUNDS) + 1


def quantile(counts: Sequence[int], share: float) -> int | None:
    """The value below which this share of all lies, taken as evenly spread within its bucket; None without any."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    for bucket, reached in enumerate(accumulate(counts)):
        if counts[bucket] and reached >= wanted:
            low = BOUNDS[bucket - 1] if bucket else 0
            high = BOUNDS[bucket] if bucket < len(BOUNDS) else low
            return round(low + (high - low) * (1 - (reached - wanted) / counts[bucket]))
    return BOUNDS[-1]


def bucket_sql(milliseconds: str) -> str:
    """The SQL that finds the bucket of an SQL expression."""
    return f"width_bucket({milliseconds}, ARRAY[{', '.join(map(str, BOUNDS))}])"


def count_sql(bucket: str) -> str:
    """The SQL aggregate of an SQL expression of buckets: an array from the first to the last that has a count."""
    counts = ", ".join(f"count(*) FILTER (WHERE {bucket} = {number})" for number in range(BUCKETS))
    first, last = f"min({bucket})", f"max({bucket})"
    return (
        f"CASE WHEN {first} IS NULL THEN '{{}}'::int[] ELSE ('[' || {first} || ':' || {last} || ']=' || "
        f"((ARRAY[{counts}])[{first} + 1:{last} + 1])::int[]::text)::int[] END"
    )


def add_sql(column: str) -> str:
    """The SQL aggregate that adds such arrays up: an array of all buckets."""
    return f"ARRAY[{', '.join(f'coalesce(sum({column}[{number}]), 0)' for number in range(BUCKETS))}]::bigint[]"

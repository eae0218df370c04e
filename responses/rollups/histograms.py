"""Histograms of milliseconds. They can be added up, so that percentiles of any time span are computed from sums.

There are eight buckets for each factor of ten, from one millisecond to almost three hours, so a percentile is accurate
to a few percent. The bounds are part of the stored data: changing them requires rebuilding all sums.
"""

from collections.abc import Sequence
from itertools import accumulate

BOUNDS: tuple[int, ...] = tuple(sorted({round(10 ** (step / 8)) for step in range(57)}))
"""Bucket `b` holds values from `BOUNDS[b - 1]` to below `BOUNDS[b]`. The first starts at 0, the last is open."""

BUCKETS = len(BOUNDS) + 1


def quantile(counts: Sequence[int], share: float) -> int | None:
    """Return the value below which a share (0 to 1) of all values lies, or None without values.

    Values are assumed to be spread evenly within their bucket.
    """
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
    """Return the SQL expression for the bucket number of an SQL expression."""
    return f"width_bucket({milliseconds}, ARRAY[{', '.join(map(str, BOUNDS))}])"


def count_sql(bucket: str) -> str:
    """Return the SQL aggregate that counts buckets: an array from the first to the last bucket with a count."""
    counts = [f"count(*) FILTER (WHERE {bucket} = {number})" for number in range(BUCKETS)]
    return _array_sql(counts, first=f"min({bucket})", last=f"max({bucket})")


def merge_sql(column: str) -> str:
    """Return the SQL aggregate that adds up such arrays. Its result has the buckets that occur in any of them."""
    return _array_sql(_added(column), first=f"min(array_lower({column}, 1))", last=f"max(array_upper({column}, 1))")


def add_sql(column: str) -> str:
    """Return the SQL aggregate that adds up such arrays. Its result has all buckets."""
    return f"ARRAY[{', '.join(_added(column))}]::bigint[]"


def _added(column: str) -> list[str]:
    return [f"coalesce(sum({column}[{number}]), 0)" for number in range(BUCKETS)]


def _array_sql(counts: Sequence[str], *, first: str, last: str) -> str:
    # PostgreSQL arrays may start at any index, so empty buckets at both ends need no space.
    return (
        f"CASE WHEN {first} IS NULL THEN '{{}}'::int[] ELSE ('[' || {first} || ':' || {last} || ']=' || "
        f"((ARRAY[{', '.join(counts)}])[{first} + 1:{last} + 1])::int[]::text)::int[] END"
    )

"""Comparison of the platform's usage records with the attempts that the targets have received."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from benchmarks.books.audit import faults_of
from benchmarks.failover.upstream import Attempt

_RECORDS = """
SELECT record.id, record.end_user, record.endpoint, record.outcome, record.estimated, record.upstream_request_id,
    record.service_tier, record.cost, record.prices, upstream.name AS target,
    record.input_tokens, record.cached_tokens, record.cache_write_tokens, record.output_tokens, record.reasoning_tokens
FROM tenants_usagerecord record LEFT JOIN tenants_upstream upstream ON upstream.id = record.upstream_id
ORDER BY record.id
"""
_TOKENS = slice(-5, None)


def stored_records(admin: str) -> list[Any]:
    """Return the usage records, with the name of the upstream as `target`."""
    with psycopg.connect(admin, row_factory=namedtuple_row) as connection:
        return connection.execute(_RECORDS).fetchall()


def usage_faults(attempts: Sequence[Attempt], records: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of a request and a fault of its usage records.

    Each attempt has one record. Its id is known if the answer has begun; otherwise the record is an estimate, or says
    that nothing was used if the target has never received the request.
    """
    by_id: dict[str, Any] = {}
    unnamed = Counter[tuple[str, str]]()
    for record in records:
        if record.upstream_request_id:
            if record.upstream_request_id in by_id:
                yield record.end_user, f"several records of {record.upstream_request_id}"
            by_id[record.upstream_request_id] = record
        elif any(record[_TOKENS]):
            unnamed[record.end_user, record.target] += 1
            if not record.estimated:
                yield record.end_user, f"record {record.id} has tokens that no target has reported"
    lost = Counter[tuple[str, str]]()
    states = defaultdict[tuple[str, str], list[str]](list)
    for attempt in attempts:
        record, upstream = by_id.pop(attempt.id, None), f"{attempt.cell}.{attempt.target}"
        if record is None:
            lost[attempt.run, upstream] += 1
            states[attempt.run, upstream].append(attempt.state)
            continue
        if record.target != upstream or record.end_user != attempt.run:
            yield attempt.run, f"its record is of {record.end_user} at {record.target}, not at {upstream}"
        for fault in faults_of(attempt, record, Counter()):
            yield attempt.run, f"{attempt.target}, {attempt.state}: {fault}"
    for record in by_id.values():
        yield record.end_user, f"record {record.id} names the unknown attempt {record.upstream_request_id}"
    for name, upstream in sorted(lost.keys() | unnamed.keys()):
        key = name, upstream
        if lost[key] != unnamed[key]:
            yield name, f"{upstream}: {unnamed[key]} estimated records of {lost[key]} attempts ({states[key]})"

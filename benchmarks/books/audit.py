"""Compare the platform's usage records with the upstream's books, the hourly sums and the responses."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from benchmarks.books.runs import Run
from benchmarks.books.upstream import SEARCH_PRICE, BookkeepingUpstream, Line

_RECORDS = """
SELECT id, end_user, endpoint, object_id, turn, outcome, estimated, upstream_request_id, service_tier, cost, prices,
    input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens
FROM tenants_usagerecord ORDER BY id
"""
_RESPONSES = """
SELECT id, end_user, status, endpoint, cost, lease_token,
    input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens
FROM responses_response
"""
_OPEN = "SELECT count(*) FROM responses_response WHERE ended_at IS NULL"
_HOURS = """
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour, model, endpoint, outcome, count(*) AS calls,
    sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens, sum(cache_write_tokens) AS written,
    sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning_tokens, sum(cost) AS cost
FROM tenants_usagerecord GROUP BY 1, 2, 3, 4
"""
# The level with the lowest number is the most detailed one.
_SUMS = """
SELECT date_trunc('hour', hour, 'UTC') AS hour, model, endpoint, outcome, sum(calls) AS calls,
    sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens, sum(cache_write_tokens) AS written,
    sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning_tokens, sum(cost) AS cost
FROM responses_callhour WHERE level = (SELECT min(level) FROM responses_callhour) GROUP BY 1, 2, 3, 4
"""


_SEARCH = "web_search"
# Their requests have no end user, and some of their records have seconds or characters instead of tokens.
_AUDIO = ("audio.speech", "audio.transcriptions")
_ROUNDING = Decimal("5e-11")


@dataclass(kw_only=True)
class Comparison:
    """Result of a comparison: figures, permitted differences by kind, and faults."""

    figures: dict[str, Any] = field(default_factory=dict)
    permitted: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the result as lines."""
        lines = [f"{name:<62}{value:>16}" for name, value in self.figures.items()]
        lines += ["permitted differences, each marked as an estimate in its record:"]
        lines += [f"    {kind:<58}{count:>16}" for kind, count in sorted(self.permitted.items())]
        lines += [f"{'faults':<62}{len(self.faults):>16}", *(f"    {fault}" for fault in self.faults[:20])]
        return "\n".join(lines)


def is_settled(admin: str) -> bool:
    """Return whether nothing is in progress, so that the books can be compared."""
    with psycopg.connect(admin) as connection:
        responses = connection.execute(_OPEN).fetchone()
        calls = connection.execute("SELECT count(*) FROM tenants_reservation").fetchone()
    return responses == (0,) and calls == (0,)


def compare(
    *, admin: str, upstream: BookkeepingUpstream, observed: Sequence[Run], killed: Mapping[str, int]
) -> Comparison:
    """Compare everything. Nothing may be in progress, and the rows must be rolled up.

    `observed` are the runs as observed by their clients, `killed` is the number of killed processes by kind.
    """
    with psycopg.connect(admin, row_factory=namedtuple_row) as connection:
        records: list[Any] = connection.execute(_RECORDS).fetchall()
        responses: list[Any] = connection.execute(_RESPONSES).fetchall()
        hours = {row[:4]: row[4:] for row in connection.execute(_HOURS)}
        sums = {row[:4]: row[4:] for row in connection.execute(_SUMS)}
    result = Comparison()
    lines = upstream.lines
    result.figures |= {
        "runs": len(observed),
        "requests that the upstream received": len(lines),
        "... of which it refused": sum(not line.is_charged for line in lines),
        "... connections closed before the answer": sum(line.state == "dropped" for line in lines),
        "... answers cut": sum(line.state == "cut" for line in lines),
        "... answers without usage": sum(line.state == "sent" and not line.has_usage for line in lines),
        "... left by the platform": sum(line.state in {"left", "open"} for line in lines),
        "tool calls": sum(upstream.calls.values()),
        "searches that the search engine charges for": sum(upstream.searches.values()),
        "runs left or cancelled by their client": sum(run.was_left for run in observed),
        "runs whose connection broke": sum(run.broke for run in observed),
        "workers killed": killed.get("worker", 0),
        "web processes killed": killed.get("web", 0),
        "usage records": len(records),
        "charged by the upstream": f"${sum((line.cost for line in lines if line.is_charged), Decimal(0)):.10f}",
        "recorded": f"${sum((row.cost or Decimal(0) for row in records), Decimal(0)):.10f}",
    }
    runs = {run.name: run for run in observed}
    _compare_lines(result, lines, records, runs)
    _compare_searches(result, upstream.searches, records, runs)
    _compare_responses(result, records, responses, runs)
    if hours != sums:
        different = {key for key in hours.keys() | sums.keys() if hours.get(key) != sums.get(key)}
        result.faults += [f"the sums of {key} are {sums.get(key)}, not {hours.get(key)}" for key in different]
    result.figures["hourly sums compared"] = len(hours)
    return result


def _compare_lines(result: Comparison, lines: Sequence[Line], records: Sequence[Any], runs: dict[str, Run]) -> None:
    by_id = {row.upstream_request_id: row for row in records if row.upstream_request_id}
    if len(by_id) != sum(bool(row.upstream_request_id) for row in records):
        result.faults.append("several records have the same request id of the upstream")
    unnamed = defaultdict[str, list[Any]](list)
    for row in records:
        if not row.upstream_request_id and row.endpoint != _SEARCH:
            unnamed[row.end_user].append(row)
    unmatched = defaultdict[str, list[Line]](list)
    exact = 0
    for line in lines:
        row = by_id.pop(line.id, None)
        if row is None:
            unmatched["" if line.path.startswith("/audio/") else line.run].append(line)
            continue
        faults = list(faults_of(line, row, result.permitted))
        exact += not faults and not row.estimated
        result.faults += [f"{line.run}, request {line.number} ({line.state}): {fault}" for fault in faults]
    result.figures["requests recorded exactly"] = exact
    result.faults += [f"record {row.id} names the unknown request {name}" for name, row in by_id.items()]
    for name in unmatched.keys() | unnamed.keys():
        _compare_unnamed(result, unmatched[name], unnamed[name], runs.get(name))


def faults_of(line: Line, row: Any, permitted: Counter[str]) -> Iterator[str]:
    """Yield the faults of the record of a request whose answer had begun.

    The last columns of the row are the tokens, in the order of `Line.tokens`.
    """
    tokens = tuple(row[-5:])
    if not line.is_charged:
        if any(tokens) or row.cost:
            yield f"refused, but recorded with {tokens} tokens and {row.cost}"
    elif row.estimated:
        if line.state == "sent" and line.has_usage and row.outcome != "interrupted":
            yield f"sent with its usage, but estimated ({row.outcome})"
        elif line.state == "sent":
            permitted["answered without usage" if not line.has_usage else "interrupted at its end"] += 1
        else:
            permitted[f"answer {line.state}"] += 1
    elif tokens != line.tokens():
        yield f"{tokens} tokens instead of {line.tokens()}"
    elif row.cost != line.cost:
        yield f"{row.cost} dollars instead of {line.cost}: {row.prices}"
    elif abs(sum((Decimal(entry["cost"]) for entry in row.prices or ()), Decimal(0)) - line.cost) > _ROUNDING:
        yield f"price entries {row.prices} do not add up to {line.cost}"
    elif row.endpoint in {"responses", "chat.completions"} and row.service_tier != line.tier:
        yield f"tier {row.service_tier!r} instead of {line.tier!r}"


def _compare_unnamed(result: Comparison, lines: Sequence[Line], rows: Sequence[Any], run: Run | None) -> None:
    """Compare requests whose answer never reached a live process with the records of such requests."""
    charged = [line for line in lines if line.is_charged]
    estimates = [
        row for row in rows if row.estimated and (row.input_tokens or row.output_tokens or row.endpoint in _AUDIO)
    ]
    name = run.name if run is not None else "?"
    exact = [row for row in rows if not row.estimated and any(row[-5:])]
    result.faults += [f"{name}: record {row.id} has tokens, but no request ({row.outcome})" for row in exact]
    # If a process was killed before it could read a refusal, its record contains an estimate, too.
    for line in charged[: len(estimates)]:
        result.permitted[f"no answer received ({line.state})"] += 1
    if len(charged) > len(estimates):
        missing = len(charged) - len(estimates)
        # The process died while it repeated a request: its estimate covers both requests.
        if estimates and any(row.outcome == "interrupted" for row in estimates):
            result.permitted["an earlier request of a call that was lost"] += missing
        else:
            states = [(line.number, line.state, line.path) for line in charged]
            result.faults.append(f"{name} ({run.kind if run else ''}): {missing} requests without a record: {states}")
    elif len(estimates) > len(charged):
        surplus = len(estimates) - len(charged)
        if sum(row.outcome == "interrupted" for row in estimates) >= surplus:
            result.permitted["estimate of a call that was refused or perhaps never sent"] += surplus
        else:
            found = [(row.id, row.outcome, row.endpoint) for row in estimates]
            result.faults.append(f"{name} ({run.kind if run else ''}): {surplus} records without a request: {found}")


def _compare_searches(result: Comparison, searches: Counter[str], records: Sequence[Any], runs: dict[str, Run]) -> None:
    by_run = defaultdict[str, list[Any]](list)
    for row in records:
        if row.endpoint == _SEARCH:
            by_run[row.end_user].append(row)
    exact = 0
    for name in searches.keys() | by_run.keys():
        rows, charged = by_run[name], searches[name]
        guessed = sum(row.estimated for row in rows)
        exact += min(charged, len(rows) - guessed)
        if any(row.cost != Decimal(SEARCH_PRICE) or any(row[-5:]) for row in rows):
            result.faults.append(f"{name}: searches cost {[row.cost for row in rows]}")
        if charged > len(rows):
            # Without a log, the searches of a killed process are unknown.
            if (run := runs.get(name)) is not None and not run.is_stored:
                result.permitted["search of a run without a log"] += charged - len(rows)
            else:
                result.faults.append(f"{name}: {charged} searches, but {len(rows)} records")
        elif len(rows) - guessed > charged:
            result.faults.append(f"{name}: {charged} searches, but {len(rows) - guessed} exact records")
        else:
            result.permitted["search that was cut"] += guessed - (len(rows) - charged)
            result.permitted["estimate of a search that was refused or perhaps never sent"] += len(rows) - charged
    result.figures["searches recorded exactly"] = exact


def _compare_responses(
    result: Comparison, records: Sequence[Any], responses: Sequence[Any], runs: dict[str, Run]
) -> None:
    by_object = defaultdict[str, list[Any]](list)
    for row in records:
        by_object[row.object_id].append(row)
    resumed = 0
    for response in responses:
        rows = [row for row in by_object[response.id] if row.endpoint == response.endpoint]
        tokens = tuple(sum(kind) for kind in zip(*(row[-5:] for row in rows), strict=True)) or (0,) * 5
        cost = sum((row.cost or Decimal(0) for row in rows), Decimal(0))
        resumed += response.lease_token > 2
        if tokens != tuple(response[-5:]) or cost != (response.cost or 0):
            found = [(row.turn, row.outcome, row.estimated, row.input_tokens, row.output_tokens) for row in rows]
            result.faults.append(
                f"{response.end_user}: the records of {response.id} ({response.status}) add up to {tokens} and {cost}, "
                f"the response has {tuple(response[-5:])} and {response.cost}: {found}"
            )
        run = runs.get(response.end_user)
        if run is None or run.response_id != response.id or run.usage is None or run.status != response.status:
            continue
        shown = run.usage
        seen = (
            shown["input_tokens"],
            shown["input_tokens_details"]["cached_tokens"],
            shown["input_tokens_details"].get("cache_write_tokens", response.cache_write_tokens),
            shown["output_tokens"],
            shown["output_tokens_details"]["reasoning_tokens"],
        )
        if seen != tuple(response[-5:]):
            found = [(row.turn, row.outcome, row.estimated, row.input_tokens, row.output_tokens) for row in rows]
            result.faults.append(
                f"{run.name} ({run.kind}, {response.status}): its client has read {json.dumps(shown)}, "
                f"not {tuple(response[-5:])}: {found}"
            )
    result.figures["responses"] = len(responses)
    result.figures["... of which resumed"] = resumed

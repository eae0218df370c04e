"""Compare usage records with everything that should agree with them, and explain each difference.

Usage records are compared with the hourly sums, the responses, the price entries from which each cost was computed, and
an invoice. An invoice is an export of OpenAI's usage API as JSON, or a CSV file with one row per day and model or per
request. A difference is explained by facts in the records, such as estimated calls or calls without a price; without
such a fact it is unexplained.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from django.db import connection

from responses.models.rollups import RollupMark
from responses.rollups.sources import CALLS
from tenants import scope

FIELDS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost")
_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_MOST_SHOWN = 1000
# Hours that are checked for rows that were committed after they were summed.
_CHECKED = timedelta(hours=4)
_ROUNDING = Decimal("5e-11")
# Upstreams report the dated snapshot behind an alias.
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{4})$")


class InvalidInvoice(Exception):
    """The file cannot be read as an invoice; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure that differs from the records. `explanation` is empty if no fact explains it."""

    part: str
    subject: str
    name: str
    records: str
    other: str
    explanation: str = ""


@dataclass(slots=True, kw_only=True)
class Reconciliation:
    """Result of a comparison: the counts of each part, and the differences."""

    compared: dict[str, int] = field(default_factory=dict)
    facts: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    @property
    def unexplained(self) -> list[Difference]:
        """The differences without an explanation."""
        return [difference for difference in self.differences if not difference.explanation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The records to compare: from `since` to before `until`, of one team or of all."""

    since: datetime
    until: datetime
    team_id: str | None = None

    def where(self, column: str = "occurred_at") -> tuple[str, dict[str, Any]]:
        """Return the SQL condition with its values."""
        condition = f"{column} >= %(since)s AND {column} < %(until)s"
        if self.team_id is not None:
            condition += " AND team_id = %(team)s"
        return condition, {"since": self.since, "until": self.until, "team": self.team_id}


def reconcile(span: Span, *, invoice: "Iterable[InvoiceLine] | None" = None, upstream: str = "") -> Reconciliation:
    """Compare everything in a span. `upstream` is the name of the upstream that sent the invoice; empty means all."""
    result = Reconciliation()
    with scope.every_team():
        _facts(span, result)
        _compare_sums(span, result)
        _compare_responses(span, result)
        _compare_prices(span, result)
        if invoice is not None:
            _compare_invoice(span, list(invoice), upstream, result)
    return result


def _query(sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _facts(span: Span, result: Reconciliation) -> None:
    where, values = span.where()
    (found,) = _query(
        f"""SELECT count(*) AS records, count(*) FILTER (WHERE estimated) AS estimated,
            count(*) FILTER (WHERE cost IS NULL AND (input_tokens > 0 OR output_tokens > 0)) AS without_price
        FROM tenants_usagerecord WHERE {where}""",  # noqa: S608 - constants only
        values,
    )
    result.facts |= found


def _compare_sums(span: Span, result: Reconciliation) -> None:
    mark = RollupMark.objects.values_list("until", flat=True).first()
    until = min(span.until, mark) if mark is not None else span.since
    closed = until.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if closed <= span.since:
        result.compared["sums"] = 0
        return
    measures = ("calls", *_TOKENS, "cost")
    where, values = Span(since=span.since, until=closed, team_id=span.team_id).where()
    hours, _ = Span(since=span.since, until=closed, team_id=span.team_id).where("hour")
    values["level"] = CALLS.level(frozenset({"team_id", "model"}))
    rows = _query(
        f"""WITH own AS (
            SELECT date_trunc('hour', occurred_at, 'UTC') AS hour, team_id, model, count(*) AS calls,
                {", ".join(f"sum({name}) AS {name}" for name in _TOKENS)}, sum(cost) AS cost
            FROM tenants_usagerecord WHERE {where} GROUP BY 1, 2, 3
        ), summed AS (
            SELECT date_trunc('hour', hour, 'UTC') AS hour, team_id, model,
                {", ".join(f"sum({name}) AS {name}" for name in measures)}
            FROM {CALLS.table} WHERE level = %(level)s AND team_id IS NOT NULL AND {hours} GROUP BY 1, 2, 3
        )
        SELECT hour, team_id, model, {", ".join(f"own.{name} AS own_{name}" for name in measures)},
            {", ".join(f"summed.{name} AS sum_{name}" for name in measures)}
        FROM own FULL JOIN summed USING (hour, team_id, model) ORDER BY 1, 2, 3""",  # noqa: S608 - constants only
        values,
    )
    oldest = _query("SELECT min(occurred_at) AS at FROM tenants_usagerecord", {})[0]["at"]
    result.compared["sums"] = len(rows)
    for row in rows:
        for name in measures:
            own, summed = row[f"own_{name}"] or 0, row[f"sum_{name}"] or 0
            if own == summed:
                continue
            explanation = ""
            if mark is not None and row["hour"] > mark - _CHECKED and (row["own_calls"] or 0) > (row["sum_calls"] or 0):
                explanation = "late rows: committed after their hour was summed, added within three hours"
            elif oldest is None or row["hour"] < oldest - timedelta(hours=1):
                explanation = "records that were deleted after their retention remain in the sums"
            result.differences.append(
                Difference(
                    part="sums",
                    subject=f"{row['hour']:%Y-%m-%d %H}:00 UTC, {row['team_id']}, {row['model']}",
                    name=name,
                    records=str(own),
                    other=str(summed),
                    explanation=explanation,
                )
            )


def _compare_responses(span: Span, result: Reconciliation) -> None:
    # Records of a response may be written after the span, but not before its response.
    where, values = span.where("created_at")
    rows = _query(
        f"""SELECT response.id, response.ended_at, counted.calls,
            {", ".join(f"response.{name} AS shown_{name}" for name in _TOKENS)}, response.cost AS shown_cost,
            {", ".join(f"counted.{name} AS own_{name}" for name in _TOKENS)}, counted.cost AS own_cost,
            counted.all_cost
        FROM (SELECT * FROM responses_response WHERE {where}) AS response
        CROSS JOIN LATERAL (
            SELECT count(*) AS calls, sum(cost) AS all_cost,
                {", ".join(f"coalesce(sum({name}) FILTER (WHERE own), 0) AS {name}" for name in _TOKENS)},
                sum(cost) FILTER (WHERE own) AS cost
            FROM (
                SELECT *, endpoint = response.endpoint AS own FROM tenants_usagerecord WHERE object_id = response.id
            ) AS record
        ) AS counted
        ORDER BY response.id""",  # noqa: S608 - constants only
        values,
    )
    result.compared["responses"] = len(rows)
    oldest = _query("SELECT min(occurred_at) AS at FROM tenants_usagerecord", {})[0]["at"]
    for row in rows:
        explanation = ""
        if row["ended_at"] is None:
            explanation = "the response is still in progress"
        elif not row["calls"] and (oldest is None or row["ended_at"] < oldest):
            explanation = "the records were deleted after their retention"
        for name in (*_TOKENS, "cost"):
            own, shown = row[f"own_{name}"] or 0, row[f"shown_{name}"] or 0
            # The cost of a response may contain that of its hosted tool calls.
            if own == shown or (name == "cost" and shown == (row["all_cost"] or 0)):
                continue
            result.differences.append(
                Difference(
                    part="responses",
                    subject=row["id"],
                    name=name,
                    records=str(own),
                    other=str(shown),
                    explanation=explanation,
                )
            )


def _compare_prices(span: Span, result: Reconciliation) -> None:
    where, values = span.where()
    rows = _query(
        f"""SELECT id, object_id, cost, parts FROM (
            SELECT id, object_id, cost, prices,
                (SELECT sum((entry->>'cost')::numeric) FROM jsonb_array_elements(prices) AS entry) AS parts
            FROM tenants_usagerecord WHERE {where} AND cost IS NOT NULL AND jsonb_typeof(prices) = 'array'
        ) AS priced
        WHERE cost <> coalesce(parts, 0) ORDER BY id LIMIT {_MOST_SHOWN}""",  # noqa: S608 - constants only
        values,
    )
    result.compared["prices"] = result.facts["records"] - result.facts["without_price"]
    for row in rows:
        parts = row["parts"] or Decimal(0)
        is_rounded = abs(row["cost"] - parts) <= _ROUNDING
        explanation = "rounded to ten decimal places" if is_rounded else ""
        # An estimate that the team's policy does not bill.
        if not is_rounded and row["cost"] == 0:
            explanation = "estimated, and not billed by the policy of the team"
        result.differences.append(
            Difference(
                part="prices",
                subject=f"record {row['id']} of {row['object_id']}",
                name="cost",
                records=f"{row['cost']:f}",
                other=f"{parts:f}",
                explanation=explanation,
            )
        )


# -- invoices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceLine:
    """Line of an invoice for a day and model, or for one request. Values that the invoice lacks are None.

    `is_other` is true if the line belongs to another client of the same account at the upstream.
    """

    day: date
    model: str
    request_id: str = ""
    requests: Decimal | None = None
    input_tokens: Decimal | None = None
    cached_tokens: Decimal | None = None
    output_tokens: Decimal | None = None
    cost: Decimal | None = None
    cost_step: Decimal = Decimal(0)
    is_other: bool = False


_NAMES: Mapping[str, Sequence[str]] = {
    "day": ("day", "date", "start_time", "start_time_iso", "timestamp", "usage_date"),
    "model": ("model", "snapshot_id", "line_item", "model_name"),
    "request_id": ("request_id", "x_request_id"),
    "requests": ("num_model_requests", "requests", "n_requests", "num_requests"),
    "input_tokens": ("input_tokens", "prompt_tokens", "n_context_tokens_total"),
    "cached_tokens": ("input_cached_tokens", "cached_tokens", "cached_input_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "n_generated_tokens_total"),
    "cost": ("cost", "amount", "amount_value", "cost_usd"),
    "key": ("api_key_id", "project_id", "client"),
}


def read_csv(path: Path, *, client: str = "") -> list[InvoiceLine]:
    """Read an invoice as CSV. `client` is our key or project at the upstream; lines of other clients are marked."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [_line(row, client, number) for number, row in enumerate(csv.DictReader(file), 2)]


def read_openai(path: Path, *, client: str = "") -> list[InvoiceLine]:
    """Read pages of OpenAI's usage or costs API: one document, or a list of them."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        pages = document if isinstance(document, list) else [document]
        buckets = [bucket for page in pages for bucket in page["data"]]
        return [
            _line({**result, "start_time": bucket["start_time"], **_amount(result)}, client, number)
            for number, bucket in enumerate(buckets, 1)
            for result in bucket["results"]
        ]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidInvoice(f"{path.name} is not an answer of OpenAI's usage API: {error!r}.") from error


def _amount(result: Mapping[str, Any]) -> dict[str, Any]:
    amount = result.get("amount")
    return {"amount": str(amount["value"])} if isinstance(amount, Mapping) and "value" in amount else {}


def _line(row: Mapping[str, Any], client: str, number: int) -> InvoiceLine:
    def value(name: str) -> str:
        cells = (row.get(column) for column in _NAMES[name])
        return next((str(cell).strip() for cell in cells if cell not in {None, ""}), "")

    def figure(name: str) -> Decimal | None:
        text = value(name).replace(",", "").removeprefix("$")
        return Decimal(text) if text else None

    try:
        day, cost = value("day"), figure("cost")
        moment = datetime.fromtimestamp(float(day), UTC) if re.fullmatch(r"\d+(\.\d+)?", day) else None
        if moment is None:
            moment = datetime.fromisoformat(day)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        keys = {str(row[name]) for name in _NAMES["key"] if row.get(name)}
        exponent = cost.as_tuple().exponent if cost is not None else 0
        return InvoiceLine(
            day=moment.date(),
            model=value("model"),
            request_id=value("request_id"),
            **{name: figure(name) for name in FIELDS if name != "cost"},
            cost=cost,
            # Half of the last digit that the invoice shows.
            cost_step=Decimal(5).scaleb(exponent - 1) if isinstance(exponent, int) else Decimal(0),
            is_other=bool(client and keys and client not in keys),
        )
    except (ValueError, InvalidOperation) as error:
        raise InvalidInvoice(f"Line {number} cannot be read: {error}. It needs a day and a model.") from error


@dataclass(slots=True)
class _Own:
    """The records of one day and model at the upstream."""

    totals: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(FIELDS, Decimal(0)))
    by_start: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(FIELDS, Decimal(0)))
    estimates: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(FIELDS, Decimal(0)))
    refused: int = 0
    without_price: int = 0


def _compare_invoice(span: Span, lines: Sequence[InvoiceLine], upstream: str, result: Reconciliation) -> None:
    where, values = span.where()
    if upstream:
        where += " AND upstream_id = (SELECT id FROM tenants_upstream WHERE name = %(upstream)s)"
    rows = _query(
        f"""SELECT id, occurred_at, duration_ms, upstream_model AS model, upstream_request_id, estimated, outcome,
            1 AS requests, input_tokens, cached_tokens, output_tokens, cost
        FROM tenants_usagerecord WHERE {where} AND upstream_id <> ''""",  # noqa: S608 - constants only
        {**values, "upstream": upstream},
    )
    others = sum(line.is_other for line in lines)
    lines = [line for line in lines if not line.is_other and span.since.date() <= line.day < _end(span)]
    result.compared["invoice lines"] = len(lines)
    if others:
        result.facts["invoice lines of other clients"] = others
    if any(line.request_id for line in lines):
        result.differences += _by_request(lines, rows)
    else:
        result.differences += _by_day(lines, rows)


def _end(span: Span) -> date:
    return (span.until - timedelta(microseconds=1)).date() + timedelta(days=1)


def _by_request(lines: Sequence[InvoiceLine], rows: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    named = {row["upstream_request_id"]: row for row in rows if row["upstream_request_id"]}
    unnamed = sum(not row["upstream_request_id"] and row["estimated"] for row in rows)
    for line in lines:
        subject, row = f"{line.request_id} ({line.model})", named.pop(line.request_id, None)
        if row is None:
            explanation = ""
            if unnamed > 0:
                unnamed -= 1
                explanation = "estimated: the process ended before it received an answer"
            yield Difference(
                part="invoice", subject=subject, name="requests", records="0", other="1", explanation=explanation
            )
            continue
        for name in FIELDS[1:]:
            own, theirs = row[name], getattr(line, name)
            if theirs is None or own == theirs:
                continue
            explanation = "estimated: the upstream did not report its usage" if row["estimated"] else ""
            if name == "cost" and own is None:
                explanation = "no price"
            elif name == "cost" and abs(own - theirs) <= max(line.cost_step, _ROUNDING):
                explanation = "rounded in the invoice"
            yield Difference(
                part="invoice",
                subject=subject,
                name=name,
                records="No price" if own is None else str(own),
                other=str(theirs),
                explanation=explanation,
            )
    for name, row in named.items():
        explanation = ""
        if not (row["input_tokens"] or row["output_tokens"]):
            explanation = "refused: the upstream did not charge for it"
        yield Difference(
            part="invoice",
            subject=f"{name} ({row['model']})",
            name="requests",
            records="1",
            other="0",
            explanation=explanation,
        )


def _by_day(lines: Sequence[InvoiceLine], rows: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    owned = defaultdict[tuple[date, str], _Own](_Own)
    for row in rows:
        ended = row["occurred_at"].astimezone(UTC)
        began, model = ended - timedelta(milliseconds=row["duration_ms"]), _SNAPSHOT.sub("", row["model"])
        own = owned[ended.date(), model]
        for name in FIELDS:
            amount = Decimal(row[name] or 0)
            own.totals[name] += amount
            owned[began.date(), model].by_start[name] += amount
            own.estimates[name] += amount * row["estimated"]
        own.refused += not (row["input_tokens"] or row["output_tokens"])
        own.without_price += row["cost"] is None and bool(row["input_tokens"] or row["output_tokens"])
    invoiced = defaultdict[tuple[date, str], list[InvoiceLine]](list)
    for line in lines:
        invoiced[line.day, _SNAPSHOT.sub("", line.model)].append(line)
    for key in sorted(owned.keys() | invoiced.keys()):
        yield from _of_day(key, owned[key], invoiced[key])


def _of_day(key: tuple[date, str], own: _Own, lines: Sequence[InvoiceLine]) -> Iterator[Difference]:
    day, model = key
    wrong = False
    for name in FIELDS:
        given = [value for line in lines if (value := getattr(line, name)) is not None]
        if lines and not given:
            continue
        theirs = sum(given, Decimal(0))
        ours = own.totals[name]
        if theirs == ours:
            continue
        step = sum((line.cost_step for line in lines), Decimal(0))
        explanation = _explanation(name, theirs, own, step=step, tokens_differ=wrong)
        wrong = wrong or (name != "requests" and not explanation)
        yield Difference(
            part="invoice",
            subject=f"{day}, {model}",
            name=name,
            records=f"{ours:f}",
            other=f"{theirs:f}",
            explanation=explanation,
        )


def _explanation(name: str, theirs: Decimal, own: _Own, *, step: Decimal, tokens_differ: bool) -> str:
    """Return the fact of the records that explains a figure of the invoice; "" if there is none."""
    ours, count = own.totals[name], int(own.estimates["requests"])
    if theirs == own.by_start[name]:
        return "calls that began and ended on different days"
    if name == "requests":
        # It is unknown whether an estimated call was sent.
        if ours - own.refused - count <= theirs < ours:
            return f"{own.refused} refused and {count} estimated requests, which upstreams may not count"
        return ""
    if name == "cost":
        if own.without_price:
            return f"{own.without_price} calls without a price"
        if abs(theirs - ours) <= max(step, _ROUNDING * int(own.totals["requests"])):
            return "rounded in the invoice"
    # Calls that were not estimated must be in the invoice.
    if count and not tokens_differ and theirs >= ours - own.estimates[name]:
        return f"{count} calls with estimated usage"
    return ""

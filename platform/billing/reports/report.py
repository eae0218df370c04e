"""Pages of usage and costs, from the hourly sums of usage records. Usage by the minute is counted in the records."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
from django.db import connection
from django.db.models import Q

from billing.reports.kinds import CODE_INTERPRETER_SESSIONS, COSTS, DIMENSIONS, FILE_SEARCH, VECTOR_STORES, WEB_SEARCH
from billing.reports.query import UsageQuery
from core.clock import now, unix
from responses.rollups import queries
from responses.rollups.queries import RollupQuery
from responses.rollups.sources import CALLS
from tenants import scope
from tenants.models import AdminScope, ApiKey
from tenants.principal import Principal

Key = tuple[str | None, ...]
Sums = dict[str, Any]
_TOOLS = {WEB_SEARCH, FILE_SEARCH}
_UNLABELED = "unlabeled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Sums of one bucket (its start), with the values of the dimensions."""

    bucket: datetime
    values: Mapping[str, str]
    sums: Sums


def usage_page(query: UsageQuery, *, principal: Principal) -> dict[str, Any]:
    """Return one page of buckets, empty ones included. A key sees the usage of its team, an admin key all usage."""
    if principal.has(AdminScope.USAGE_READ):
        projects = query.only.get("project_ids")
        with scope.every_team():
            buckets = _buckets(query, teams=projects)
    else:
        own = [principal.team_id]
        teams = [team for team in own if team in query.only.get("project_ids", own)]
        with scope.team(principal.team_id):
            buckets = _buckets(query, teams=teams)
    data = [
        {
            "object": "bucket",
            "start_time": unix(start),
            "end_time": unix(end),
            "results": [_result(query, key, sums) for key, sums in sorted(buckets[start].items(), key=_order)],
        }
        for start, end in zip(query.edges, query.edges[1:], strict=False)
    ]
    return {"object": "page", "data": data, "has_more": query.next_page is not None, "next_page": query.next_page}


def _order(group: tuple[Key, Sums]) -> list[str]:
    return [value or "" for value in group[0]]


def _buckets(query: UsageQuery, *, teams: Sequence[str] | None) -> Mapping[datetime, dict[Key, Sums]]:
    """Return the sums by the start of their bucket and by group."""
    buckets: dict[datetime, dict[Key, Sums]] = defaultdict(dict)
    if len(query.edges) == 1 or teams == []:
        return buckets
    match query.kind:
        case _ if query.kind is VECTOR_STORES:
            rows = _stored_bytes(query, teams)
        case _ if query.kind is CODE_INTERPRETER_SESSIONS:
            rows = _sessions(query, teams)
        case _:
            rows = _calls(query, teams)
    rows = list(rows)
    owners = _owners({row.values["api_key_id"] for row in rows}) if "user_id" in query.group_by else {}
    items = query.only.get("line_items")
    for row in rows:
        item = _line_item(row) if query.kind is COSTS else None
        if items is not None and item not in items:
            continue
        key = tuple(_group(name, row, owners, item) for name in query.group_by)
        groups = buckets[row.bucket]
        groups[key] = _add(groups[key], row.sums) if key in groups else row.sums
    return buckets


def _calls(query: UsageQuery, teams: Sequence[str] | None) -> Iterable[_Row]:
    """Return the sums of usage records."""
    kind, only = query.kind, dict[str, Sequence[str]]()
    if kind.endpoints:
        only["endpoint"] = kind.endpoints
    if "models" in query.only:
        only["model"] = query.only["models"]
    if "batch" in query.only:
        only["batch"] = query.only["batch"]
    if "api_key_ids" in query.only or "user_ids" in query.only:
        only["api_key_id"] = _keys(query.only.get("api_key_ids"), query.only.get("user_ids"))
    by = {DIMENSIONS[name] for name in query.group_by if name in DIMENSIONS}
    if "line_item" in query.group_by or "line_items" in query.only:
        by |= {"model", "endpoint"}
    names = sorted(by)
    asked = RollupQuery(
        source=CALLS,
        since=query.edges[0],
        until=query.edges[-1],
        measures=kind.measures,
        by=names,
        bucket="" if query.period == "minute" else query.period,
        zone=query.zone.key,
        teams=teams,
        only=only,
    )
    fetch = queries.count_minutes if query.period == "minute" else queries.fetch_rows
    for row in fetch(asked):
        # A query without groups has a row without calls if there were none.
        if row.bucket is not None and row.values["calls"]:
            yield _Row(bucket=row.bucket, values=dict(zip(names, row.key, strict=True)), sums=row.values)


def _keys(key_ids: Sequence[str] | None, user_ids: Sequence[str] | None) -> list[str]:
    """Return the ids among `key_ids` (None: all) whose keys belong to one of these users or service accounts."""
    if user_ids is None:
        return list(key_ids or ())
    people = [
        int(user_id[5:])
        for user_id in user_ids
        if user_id.startswith("user-") and user_id[5:].isdecimal() and len(user_id) < 15
    ]
    owned = Q(service_account__in=user_ids) | Q(service_account=None, created_by__in=people)
    keys = ApiKey.objects.filter(owned)
    if key_ids is not None:
        keys = keys.filter(pk__in=key_ids)
    return list(keys.values_list("pk", flat=True))


def _owners(key_ids: Iterable[str]) -> dict[str, str | None]:
    """Return the ids of the users or service accounts that the keys belong to."""
    keys = ApiKey.objects.filter(pk__in=list(key_ids)).values_list("pk", "service_account", "created_by")
    return {key: account or (f"user-{person}" if person else None) for key, account, person in keys}


def _sessions(query: UsageQuery, teams: Sequence[str] | None) -> Iterable[_Row]:
    """Return how many containers were created; those that were deleted are no longer counted."""
    return [
        _Row(bucket=query.edges[place - 1], values={"team_id": team}, sums={"sessions": count})
        for place, team, count in _placed(
            "containers_container",
            "count(*)",
            query,
            teams,
            condition=" AND created_at >= %(since)s",
            of_teams=" AND team_id = ANY(%(teams)s)",
        )
    ]


def _stored_bytes(query: UsageQuery, teams: Sequence[str] | None) -> Iterable[_Row]:
    """Return the size of the files in vector stores at the end of each bucket, for files that still exist."""
    added = sorted(
        _placed(
            "responses_vectorstorefile",
            "sum(usage_bytes)",
            query,
            teams,
            condition="",
            # The index of the files begins with their store.
            of_teams=" AND store_id IN (SELECT id FROM responses_vectorstore WHERE team_id = ANY(%(teams)s))",
        )
    )
    rows: list[_Row] = []
    stored: dict[str, int] = defaultdict(int)
    for place, start in enumerate(query.edges[:-1], start=1):
        if start > now():
            break
        while added and added[0][0] <= place:
            _, team, size = added.pop(0)
            stored[team] += size
        values = [(team, size) for team, size in stored.items() if size]
        rows += [_Row(bucket=start, values={"team_id": team}, sums={"usage_bytes": size}) for team, size in values]
    return rows


def _placed(
    table: str, value: str, query: UsageQuery, teams: Sequence[str] | None, *, condition: str, of_teams: str
) -> list[tuple[int, str, int]]:
    """Return the sums of `value` as (number of the bucket, team, sum). Number 0 is the time before the first bucket."""
    if teams is not None:
        condition += of_teams
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT width_bucket(created_at, %(edges)s::timestamptz[]), team_id, {value}::bigint FROM {table}
            WHERE created_at < %(until)s{condition} GROUP BY 1, 2""",  # noqa: S608 - names of our own
            {
                "edges": list(query.edges),
                "since": query.edges[0],
                "until": query.edges[-1],
                "teams": None if teams is None else list(teams),
            },
        )
        return [(place, team, int(total)) for place, team, total in cursor.fetchall()]


def _group(name: str, row: _Row, owners: Mapping[str, str | None], item: str | None) -> str | None:
    match name:
        case "line_item":
            return item
        case "api_source":
            return _UNLABELED
        case "user_id":
            return owners.get(row.values["api_key_id"])
    return row.values[DIMENSIONS[name]] or None


def _line_item(row: _Row) -> str | None:
    """Return the name of the paid item: a model, or calls of a tool."""
    endpoint = row.values.get("endpoint")
    return f"{endpoint} calls" if endpoint in _TOOLS else row.values.get("model")


def _add(one: Sums, other: Sums) -> Sums:
    return {name: _sum(value, other[name]) for name, value in one.items()}


def _sum(one: Any, other: Any) -> Any:
    # The cost of calls without a price is unknown.
    return other if one is None else one if other is None else one + other


def _result(query: UsageQuery, key: Key, sums: Sums) -> dict[str, Any]:
    kind = query.kind
    names: dict[str, Any] = dict.fromkeys(kind.groups)
    names |= dict(zip(query.group_by, key, strict=True))
    if names.get("batch") is not None:
        names["batch"] = names["batch"] == "true"
    figures = _cost(sums, names) if kind is COSTS else kind.figures(sums)
    return {"object": kind.result, **figures, **names}


def _cost(sums: Sums, names: Mapping[str, Any]) -> dict[str, Any]:
    cost: Decimal | None = sums["cost"]
    return {
        # Written digit by digit: a float of Python may have other last digits.
        "amount": None if cost is None else {"value": orjson.Fragment(f"{cost.normalize():f}"), "currency": "usd"},
        "quantity": sums["calls"] if names["line_item"] is not None else None,
        "quantity_unit": "requests" if names["line_item"] is not None else None,
        "unpriced_requests": sums["unpriced"],
    }

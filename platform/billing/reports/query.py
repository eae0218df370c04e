"""Queries of usage and costs: parameters as in OpenAI's organization API, and the cursor of pages."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import orjson
from django.http import QueryDict

from billing.reports.kinds import COSTS, UsageKind
from core import periods
from core.clock import now
from core.errors import ArrayTooLong, InvalidType, InvalidValue, MissingParameter
from core.http.endpoints import BOOLEAN, STRING, Schema
from core.http.query import QueryArgument, choice, integer, parameter

Limits = Mapping[str, tuple[int, int]]
_USAGE_LIMITS: Limits = {"1d": (7, 31), "1h": (24, 168), "1m": (60, 1440)}
_COST_LIMITS: Limits = {"1d": (7, 180)}
_PERIODS = {"1d": "day", "1h": "hour", "1m": "minute"}
# Python's calendar does not reach much further.
_MAX_TIME = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
_MAX_VALUES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Query of one page of usage.

    `edges` are the starts of its buckets and the end of the last one. `only` are the values of the filters. `end` is
    the end of the last bucket of all pages, and `fingerprint` distinguishes the queries of cursors.
    """

    kind: UsageKind
    period: str
    zone: ZoneInfo
    edges: Sequence[datetime]
    end: datetime
    group_by: Sequence[str]
    only: Mapping[str, Sequence[str]]
    fingerprint: str

    @property
    def next_page(self) -> str | None:
        """The cursor of the next page, or None if there is none."""
        if self.edges[-1] >= self.end:
            return None
        values = [round(self.edges[-1].timestamp()), round(self.end.timestamp()), self.fingerprint]
        return "page_" + base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def usage_argument(kind: UsageKind) -> QueryArgument:
    """Return the declaration of the argument `usage`, a `UsageQuery`. Reading an invalid query raises `BadRequest`."""
    limits = _COST_LIMITS if kind is COSTS else _USAGE_LIMITS
    most = max(most for _, most in limits.values())
    values: Schema = {"type": "array", "items": STRING}
    lists = {name: values for name in kind.filters if name != "batch"}
    flags = {"batch": BOOLEAN} if "batch" in kind.filters else {}
    schemas: dict[str, Schema] = {
        "end_time": {"type": "integer", "minimum": 0},
        "bucket_width": {"enum": list(limits), "default": "1d"},
        "group_by": {"type": "array", "items": {"enum": list(kind.groups)}},
        **lists,
        **flags,
        "limit": {"type": "integer", "minimum": 1, "maximum": most},
        "page": STRING,
        "time_zone": {**STRING, "default": "UTC"},
    }
    start = {**parameter("start_time", {"type": "integer", "minimum": 0}), "required": True}
    described = [start, *(parameter(name, schema) for name, schema in schemas.items())]
    return QueryArgument("usage", described, _reader(kind, limits))


def _reader(kind: UsageKind, limits: Limits) -> Callable[[QueryDict], UsageQuery]:
    def read(query: QueryDict) -> UsageQuery:
        start, end = _time(query, "start_time"), _time(query, "end_time")
        if start is None:
            raise MissingParameter("start_time")
        if end is not None and end <= start:
            raise InvalidValue("Invalid 'end_time': it must be after 'start_time'.", param="end_time")
        width = choice(query, "bucket_width", list(limits)) or "1d"
        default, most = limits[width]
        limit = integer(query, "limit", least=1, most=most)
        name = query.get("time_zone", "UTC")
        if name not in _zones():
            raise InvalidValue(f"Invalid 'time_zone': there is no time zone '{name}'.", param="time_zone")
        group_by = _values(query, "group_by")
        for value in group_by:
            if value not in kind.groups:
                raise InvalidValue.unsupported(value, kind.groups, param="group_by")
        only = {filtered: _values(query, filtered) for filtered in kind.filters}
        only = {filtered: values for filtered, values in only.items() if values}
        if not {"true", "false"}.issuperset(only.get("batch", ())):
            raise InvalidType("batch", expected="a boolean", got="a string")
        # The same query on the next page, which may have another limit.
        asked = [
            kind.name,
            query.get("start_time"),
            query.get("end_time"),
            width,
            name,
            sorted(group_by),
            sorted(only.items()),
        ]
        fingerprint = sha256(orjson.dumps(asked)).hexdigest()[:16]
        period, zone = _PERIODS[width], ZoneInfo(name)
        first, last = periods.start_of(start, period, zone), end or now()
        if cursor := query.get("page"):
            first, last = _position(cursor, fingerprint, since=first, period=period, zone=zone)
        edges = [first]
        while edges[-1] < last and len(edges) <= (limit or default):
            edges.append(periods.next_start(edges[-1], period, zone))
        return UsageQuery(
            kind=kind,
            period=period,
            zone=zone,
            edges=edges,
            end=last,
            group_by=group_by,
            only=only,
            fingerprint=fingerprint,
        )

    return read


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _time(query: Mapping[str, str], name: str) -> datetime | None:
    seconds = integer(query, name, least=0, most=_MAX_TIME)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _values(query: QueryDict, name: str) -> list[str]:
    """Return the values of a list parameter without duplicates. The SDK appends brackets to the names of lists."""
    values = [*dict.fromkeys([*query.getlist(name), *query.getlist(f"{name}[]")])]
    if len(values) > _MAX_VALUES:
        raise ArrayTooLong(
            f"Invalid '{name}': list too long. Expected at most {_MAX_VALUES} values.",
            param=name,
        )
    return values


def _position(
    cursor: str, fingerprint: str, *, since: datetime, period: str, zone: ZoneInfo
) -> tuple[datetime, datetime]:
    """Return the start of the page that a cursor names, and the end of all pages."""
    wrong = InvalidValue(
        "Invalid 'page': pass the 'next_page' of a previous response, with otherwise the same parameters.", param="page"
    )
    encoded = cursor.removeprefix("page_")
    try:
        values: Any = orjson.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        first, last, of_query = values
        moments = [datetime.fromtimestamp(seconds, UTC) for seconds in (first, last)]
    except (binascii.Error, ValueError, TypeError, OverflowError, OSError) as error:
        raise wrong from error
    begin, end = moments
    is_aligned = since <= begin < end and periods.start_of(begin, period, zone) == begin
    if of_query != fingerprint or not is_aligned or max(first, last) > _MAX_TIME:
        raise wrong
    return begin, end

"""Links from a number to the list of the rows that it counts."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode

# Filter parameters of the lists, by dimension of the sums. A dimension that is not listed has no filter there.
_FILTERS: Mapping[str, Mapping[str, str]] = {
    "responses_response": {
        "team_id": "team__id__exact",
        "api_key_id": "api_key__id__exact",
        "model": "model",
        "status": "status__exact",
        "mode": "mode",
    },
    "tenants_usagerecord": {
        "team_id": "team__id__exact",
        "api_key_id": "api_key__id__exact",
        "model": "model",
        "outcome": "outcome",
    },
    "responses_toolcall": {"team_id": "team__id__exact", "kind": "kind", "name": "name", "status": "status"},
}
_LISTS = {
    "responses": ("responses_response", "created_at"),
    "calls": ("tenants_usagerecord", "occurred_at"),
    "tools": ("responses_toolcall", "started_at"),
}


def changelist(name: str, /, **query: Any) -> str:
    """Return the URL of the change list of a model (`app_model`) with filters."""
    url = reverse(f"admin:{name}_changelist")
    return f"{url}?{urlencode(query, doseq=True)}" if query else url


def rows_of(source: str, /, *, since: datetime, until: datetime, **dimensions: str) -> str:
    """Return the URL of the list of a source's rows between two times, filtered by dimensions."""
    name, time = _LISTS[source]
    return changelist(name, **_range(time, since, until), **_filters(name, dimensions))


def _filters(name: str, dimensions: Mapping[str, str]) -> dict[str, str]:
    known = {_FILTERS[name][key]: value for key, value in dimensions.items() if key in _FILTERS[name] and value}
    # The sums store the mode as `json`, the filter of the list calls it `sync`.
    return {key: "sync" if (key, value) == ("mode", "json") else value for key, value in known.items()}


def responses(*, since: datetime, until: datetime, **dimensions: str) -> str:
    """Return the URL of the list of responses, see `rows_of`."""
    return rows_of("responses", since=since, until=until, **dimensions)


def _range(field: str, since: datetime, until: datetime) -> dict[str, str]:
    # The filter includes its last second, the sums exclude `until`.
    first, last = since.astimezone(UTC), until.astimezone(UTC) - timedelta(seconds=1)
    return {
        f"{field}_from_0": f"{first:%Y-%m-%d}",
        f"{field}_from_1": f"{first:%H:%M:%S}",
        f"{field}_to_0": f"{last:%Y-%m-%d}",
        f"{field}_to_1": f"{last:%H:%M:%S}",
    }

"""Links from a number to the list of the rows that it counts."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from console.widgets import changelist_url

# The list of each source, the column with the time, and the list's filters by dimension of the sums. A dimension that
# is missing has no filter in the list.
_LISTS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "responses": (
        "responses_response",
        "created_at",
        {
            "team_id": "team__id__exact",
            "api_key_id": "api_key__id__exact",
            "model": "model",
            "status": "status__exact",
            "mode": "mode",
        },
    ),
    "calls": (
        "tenants_usagerecord",
        "occurred_at",
        {"team_id": "team__id__exact", "api_key_id": "api_key__id__exact", "model": "model", "outcome": "outcome"},
    ),
    "tools": (
        "responses_toolcall",
        "started_at",
        {"team_id": "team__id__exact", "kind": "kind", "name": "name", "status": "status"},
    ),
}


LIST_FILTERS = _LISTS["responses"][2]
"""The filters of the list of responses, by dimension."""


def rows_of(source: str, /, *, since: datetime, until: datetime, **dimensions: str) -> str:
    """Return the URL of the list of a source's rows between two times, filtered by dimensions."""
    _, _, filters = _LISTS[source]
    return _list_url(
        source, since, until, {filters[key]: value for key, value in dimensions.items() if key in filters and value}
    )


def responses_of(*, since: datetime, until: datetime, **filters: str) -> str:
    """Return the URL of the list of responses between two times, with the list's own filters."""
    return _list_url("responses", since, until, filters)


def _list_url(source: str, since: datetime, until: datetime, filters: Mapping[str, str]) -> str:
    name, field, _ = _LISTS[source]
    # The filter includes its last second, the sums exclude `until`.
    first, last = since.astimezone(UTC), until.astimezone(UTC) - timedelta(seconds=1)
    query = {
        f"{field}_from_0": f"{first:%Y-%m-%d}",
        f"{field}_from_1": f"{first:%H:%M:%S}",
        f"{field}_to_0": f"{last:%Y-%m-%d}",
        f"{field}_to_1": f"{last:%H:%M:%S}",
        **filters,
    }
    # The sums store the mode as `json`, the filter of the list calls it `sync`.
    if query.get("mode") == "json":
        query["mode"] = "sync"
    return changelist_url(name, **query)

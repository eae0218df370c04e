"""Usage page: metrics by time and group, links to lists, CSV, and isolation of teams."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from billing.admin.usage.aggregate import build_report
from billing.admin.usage.query import parse_query
from core.clock import now
from responses.models import Status
from tenants import scope
from tenants.models import Team, UsageRecord
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_response, text
from tests.support.api import Caller, MakeCaller
from tests.support.site_client import SiteClient

pytestmark = pytest.mark.usefixtures("rollups")
USAGE = "/admin/usage/"


def table(client: Client, **query: str) -> list[dict[str, str]]:
    """Return the rows of the CSV file of a query."""
    answer = client.get(USAGE, {"format": "csv", **query})
    assert answer["Content-Type"].startswith("text/csv")
    return [*csv.DictReader(io.StringIO(text(answer)))]


def totals(client: Client, **query: str) -> dict[str, str]:
    """Return the table of totals by name."""
    row = r'<td><i class="c-dot-sign[^>]*></i>(?:<a [^>]*>)?([^<]*)(?:</a>)?</td>\s*<td class="c-num">([^<]*)</td>'
    return dict(re.findall(row, text(client.get(USAGE, query))))


def test_responses_are_counted_by_status(lead: Client, caller: Caller) -> None:
    for status in (Status.COMPLETED, Status.COMPLETED, Status.FAILED):
        add_response(caller, status=status)
    assert totals(lead, range="24h", group="status") == {"Completed": "2", "Failed": "1"}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("requests", "2"),
        ("errors", "50.0 %"),
        ("tokens_in", "300"),
        ("tokens_cached", "30"),
        ("tokens_out", "70"),
        ("tools", "5"),
    ],
)
def test_each_metric_has_a_total(lead: Client, caller: Caller, metric: str, expected: str) -> None:
    add_response(caller, input_tokens=100, cached_tokens=30, output_tokens=70, tool_calls=2)
    add_response(caller, status=Status.FAILED, input_tokens=200, tool_calls=3)
    assert list(totals(lead, metric=metric, group="none").values()) == [expected]


def test_percentiles_are_accurate_to_12_percent(lead: Client, caller: Caller) -> None:
    for number in range(1, 101):
        add_response(caller, duration_ms=number * 100, first_token_ms=number * 10)
    for metric, exact in (("p50", 5000), ("p95", 9500), ("ttft50", 500), ("ttft95", 950)):
        (row,) = table(lead, metric=metric, group="none", range="24h")
        assert float(row[metric]) == pytest.approx(exact, rel=0.12)


def test_cost_and_calls_come_from_the_usage_records(lead: Client, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        for endpoint in ("responses", "embeddings"):
            UsageRecord.objects.create(
                team=caller.team, api_key=caller.key, endpoint=endpoint, object_id="x", model="m", upstream_id="u",
                upstream_model="m", outcome="stop", cost="0.25",
            )  # fmt: skip
    assert totals(lead, metric="calls", group="endpoint") == {"responses": "1", "embeddings": "1"}
    assert totals(lead, metric="cost", group="model") == {"m": "$0.50"}


def test_tool_calls_can_be_grouped_by_tool(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    for place, name in enumerate(("search", "search", "fetch")):
        add_call(response, call_id=f"c{place}", name=name)
    page = text(lead.get(USAGE, {"metric": "tokens_in", "group": "tool", "model": "m"}))
    assert "cannot be grouped by tool" in page
    assert "These filters were removed" in page
    assert totals(lead, metric="tools", group="tool") == {"search": "2", "fetch": "1"}


def test_an_unsupported_grouping_is_reported(lead: Client, caller: Caller) -> None:
    page = text(lead.get(USAGE, {"metric": "cost", "group": "status"}))
    assert "Cost cannot be grouped by status" in page


def test_groups_beyond_the_largest_eight_are_combined(lead: Client, caller: Caller) -> None:
    for number in range(11):
        for _ in range(1 + (number < 8)):
            add_response(caller, model=f"m{number:02}")
    found = totals(lead, group="model", range="24h")
    assert [*found] == [f"m{number:02}" for number in range(8)] + ["Other"]
    assert found["Other"] == "3"
    assert len(table(lead, group="model", range="24h")) == 11


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("requests", [1, 2, 0]), ("errors", [100, 50, None]), ("p95", [30, 3000, None]), ("tokens_in", [7, 14, 0])],
)
def test_the_values_of_combined_groups_are_those_of_their_rows(
    rollups: None, caller: Caller, metric: str, expected: list[float | None]
) -> None:
    days = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (1, 2, 3)]
    for at in days:
        for number in range(8):
            add_response(caller, model=f"m{number}", created_at=at, duration_ms=100_000, input_tokens=1_000)
    rest: dict[str, Any] = {"input_tokens": 7, "first_token_ms": None}
    add_response(caller, model="r1", created_at=days[0], duration_ms=30, status=Status.FAILED, **rest)
    add_response(caller, model="r1", created_at=days[1], duration_ms=3000, status=Status.FAILED, **rest)
    add_response(caller, model="r2", created_at=days[1], duration_ms=3000, **rest)
    asked = f"metric={metric}&group=model&bucket=day&range=custom&since=2026-03-01&until=2026-03-03"
    query = parse_query(QueryDict(asked), current_time=now())
    with scope.team(caller.team.pk):
        report = build_report(query, teams=[caller.team.pk])
    assert (report.groups[-1].name, report.other_count) == ("Other", 2)
    assert [*report.groups[-1].values] == [
        None if value is None else pytest.approx(value, rel=0.2) for value in expected
    ]


def test_calls_without_a_price_are_counted_in_combined_groups(rollups: None, caller: Caller) -> None:
    at = now() - timedelta(hours=1)
    prices = {f"m{number}": Decimal(1) for number in range(8)} | {"r1": None, "r2": None}
    with scope.team(caller.team.pk):
        UsageRecord.objects.bulk_create(
            UsageRecord(
                team=caller.team, api_key=caller.key, occurred_at=at, endpoint="responses", object_id="x", model=model,
                upstream_id="u", upstream_model="m", outcome="stop", cost=price,
            )
            for model, price in prices.items()
        )  # fmt: skip
        query = parse_query(QueryDict("metric=cost&group=model&range=24h"), current_time=now())
        report = build_report(query, teams=[caller.team.pk])
    other = report.groups[-1]
    assert (other.name, sum(value or 0 for value in other.values), other.total) == ("Other", 0, None)
    assert (sum(other.unpriced), other.total_unpriced, report.total) == (2, 2, 8)


def test_usage_can_be_filtered(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller(team=caller.team)
    add_response(caller, model="one")
    add_response(other, model="two")
    assert totals(lead, group="model", key=other.key.pk) == {"two": "1"}
    assert totals(lead, group="key", model="one") == {
        f"{caller.key.name} ({caller.key.prefix}…{caller.key.last_four})": "1"
    }
    assert totals(lead, group="model", model="none of these") == {}


def test_days_begin_at_midnight_of_the_time_zone(lead: Client, caller: Caller) -> None:
    add_response(caller, created_at=now() - timedelta(days=3))
    for zone in ("Asia/Kolkata", "America/St_Johns", "Pacific/Apia", "Europe/Berlin"):
        (row,) = table(lead, group="none", bucket="day", tz=zone)
        assert row["time zone"] == zone
        assert "T00:00:00" in row["from"]


def test_the_time_zone_of_the_team_is_the_default(lead: Client, operator: Client, caller: Caller) -> None:
    add_response(caller)
    with scope.team(caller.team.pk):
        Team.objects.filter(pk=caller.team.pk).update(time_zone="Asia/Kathmandu")
    lead.cookies["console_zone"] = "Europe/Berlin"
    for browser, query in ((lead, {}), (lead, {"team": caller.team.pk}), (operator, {"team": caller.team.pk})):
        (row,) = table(browser, group="none", bucket="day", **query)
        assert (row["time zone"], row["from"][11:]) == ("Asia/Kathmandu", "00:00:00+05:45")
    (row,) = table(lead, group="none", bucket="day", tz="UTC")
    assert row["time zone"] == "UTC"


def test_months_of_a_time_zone_can_be_chosen(lead: Client, caller: Caller) -> None:
    # 18:15 and 18:45 UTC are on both sides of midnight in Kolkata.
    for minute in (15, 45):
        add_response(caller, created_at=datetime(2026, 9, 30, 18, minute, tzinfo=UTC))
    span = {"range": "custom", "since": "2026-09-01", "until": "2026-10-31", "tz": "Asia/Kolkata"}
    rows = table(lead, group="none", bucket="month", **span)
    assert [(row["from"], row["requests"]) for row in rows] == [
        ("2026-09-01T00:00:00+05:30", "1"),
        ("2026-10-01T00:00:00+05:30", "1"),
    ]


def test_buckets_add_up_when_clocks_change(lead: Client, caller: Caller) -> None:
    for month, day in ((3, 28), (3, 29), (3, 30), (10, 24), (10, 25), (10, 26)):
        for hour in (0, 1, 12, 22, 23):
            add_response(caller, created_at=now().replace(year=2026, month=month, day=day, hour=hour))
    query = {"group": "none", "range": "custom", "since": "2026-03-01", "until": "2026-10-31", "tz": "Europe/Berlin"}
    for bucket in ("day", "week"):
        assert sum(float(row["requests"]) for row in table(lead, bucket=bucket, **query)) == 30
    assert totals(lead, **query) == {"Responses": "30"}


@pytest.mark.slow
def test_invalid_queries_render_a_page(lead: Client, caller: Caller) -> None:
    odd: list[dict[str, Any]] = [
        {"metric": "x", "group": "y", "bucket": "z", "view": "v", "range": "r", "tz": "Nowhere/Land"},
        {"range": "custom", "since": "1999-01-01", "until": "9999-12-31"},
        {"range": "custom", "since": "2026-12-31", "until": "2026-01-01"},
        {"range": "30d", "bucket": "hour"},
        {"range": "custom", "since": "2020-01-01", "until": "2026-11-01", "bucket": "day"},
        {"team": "\0", "model": "\0"},
        {"tz": "../etc/passwd"},
    ]
    assert [lead.get(USAGE, query).status_code for query in odd] == [200] * len(odd)


def test_numbers_link_to_working_lists(lead: Client, caller: Caller) -> None:
    response = add_response(caller, status=Status.FAILED)
    good = add_response(caller)
    page = text(lead.get(USAGE, {"group": "status", "range": "24h"}))
    (url,) = re.findall(r'<a class="c-link" href="([^"]*)">Failed</a></td>', page)
    listed = text(lead.get(url.replace("&amp;", "&")))
    assert response.pk in listed
    assert good.pk not in listed


def test_names_are_escaped_on_the_page_and_in_the_csv(lead: Client, caller: Caller) -> None:
    add_response(caller, model="=1+<script>alert(1)</script>")
    assert "<script>alert" not in text(lead.get(USAGE, {"group": "model"}))
    (row,) = table(lead, group="model")
    assert row["group"].startswith("'=1+")


def test_another_team_sees_no_usage(stranger: Client, caller: Caller) -> None:
    add_response(caller, model="secret-model")
    assert totals(stranger, group="model") == {}
    named = stranger.get(USAGE, {"group": "model", "team": caller.team.pk, "key": caller.key.pk})
    assert "secret-model" not in text(named)
    assert caller.team.name not in text(named)
    assert table(stranger, group="model", team=caller.team.pk) == []


def test_staff_see_every_team(operator: Client, caller: Caller) -> None:
    add_response(caller)
    assert totals(operator, group="team", team=caller.team.pk) == {caller.team.name: "1"}


def test_usage_requires_signing_in(database: None) -> None:
    assert SiteClient().get(USAGE).status_code == 302


def test_query_count_is_independent_of_the_groups(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    add_response(caller)
    few = count_queries(lead, USAGE)
    for number in range(12):
        add_response(caller, model=f"m{number}")
    assert count_queries(lead, f"{USAGE}?group=model") <= few + 1
    assert few < 30

"""`/v1/organization/usage/*` and `/v1/organization/costs`: records, groups and buckets."""

import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from openai import OpenAI

from billing.reports import kinds
from billing.reports.query import usage_argument
from billing.reports.report import usage_page
from containers.models import Container
from conversations.models import File
from core.clock import unix
from responses.models.vector_stores import VectorStore, VectorStoreFile
from responses.rollups import aggregate
from tenants import directory, scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.sdk import checking_client
from tests.support.web import WebProcess

USAGE = "/organization/usage"
COSTS = "/organization/costs"
DAY = datetime(2026, 6, 10, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
ALL_KINDS = (
    "completions", "embeddings", "moderations", "images", "audio_speeches", "audio_transcriptions", "vector_stores",
    "code_interpreter_sessions", "file_search_calls", "web_search_calls",
)  # fmt: skip


def add(caller: Caller, at: datetime = DAY, **columns: Any) -> UsageRecord:
    """Add a usage record of the caller's key."""
    values = {
        "endpoint": "responses", "object_id": "resp_x", "model": "m", "upstream_id": "u", "upstream_model": "m",
        "outcome": "stop", "input_tokens": 10, "output_tokens": 3, "cost": Decimal("0.25"), **columns,
    }  # fmt: skip
    with scope.team(caller.team.pk):
        return UsageRecord.objects.create(team=caller.team, api_key=caller.key, occurred_at=at, **values)


def days(api: Api, path: str = f"{USAGE}/completions", *, since: datetime = DAY, count: int = 3, **query: Any) -> Any:
    """Return the buckets of some days."""
    end = unix(since + timedelta(days=count))
    return ok(api.get(path, **{"start_time": unix(since), "end_time": end, "limit": 31, **query}))["data"]


def results(api: Api, path: str = f"{USAGE}/completions", **query: Any) -> list[dict[str, Any]]:
    """Return the results of all buckets."""
    return [result for bucket in days(api, path, **query) for result in bucket["results"]]


@pytest.fixture
def sdk(web: WebProcess, caller: Caller) -> Iterator[OpenAI]:
    """The SDK with a key of a team."""
    http = checking_client()
    url = f"{web.url}/v1"
    with OpenAI(base_url=url, admin_api_key=caller.secret, max_retries=0, http_client=http) as client:
        yield client


# -- what is counted -------------------------------------------------------------------------------------------------


def test_the_sdk_reads_completions_in_buckets(sdk: OpenAI, caller: Caller) -> None:
    add(caller, input_tokens=100, cached_tokens=30, cache_write_tokens=20, output_tokens=7)
    add(caller, endpoint="chat.completions", input_tokens=1, output_tokens=1)
    add(caller, endpoint="embeddings")
    page: Any = sdk.admin.organization.usage.completions(start_time=unix(DAY), end_time=unix(DAY + timedelta(days=2)))
    assert [(bucket.start_time, bucket.end_time) for bucket in page.data] == [
        (unix(DAY), unix(DAY + 24 * HOUR)),
        (unix(DAY + 24 * HOUR), unix(DAY + 48 * HOUR)),
    ]
    (result,), empty = page.data[0].results, page.data[1].results
    assert empty == []
    assert result.object == "organization.usage.completions.result"
    assert (result.input_tokens, result.output_tokens, result.num_model_requests) == (101, 8, 2)
    assert (result.input_cached_tokens, result.input_uncached_tokens, result.input_cache_write_tokens) == (30, 51, 20)
    assert (page.has_more, page.next_page, result.project_id) == (False, None, None)


def test_lists_of_the_sdk_group_and_filter(sdk: OpenAI, caller: Caller) -> None:
    for model in ("a", "b", "c"):
        add(caller, model=model)
    page: Any = sdk.admin.organization.usage.completions(
        start_time=unix(DAY),
        end_time=unix(DAY + HOUR),
        group_by=["model", "project_id"],
        models=["a", "c"],
        project_ids=[caller.team.pk],
        batch=False,
    )
    found = [(result.model, result.project_id) for bucket in page.data for result in bucket.results]
    assert found == [("a", caller.team.pk), ("c", caller.team.pk)]


@pytest.mark.parametrize(
    ("kind", "columns", "expected"),
    [
        ("embeddings", {"endpoint": "embeddings"}, {"input_tokens": 10, "num_model_requests": 1}),
        ("moderations", {"endpoint": "moderations"}, {"input_tokens": 10, "num_model_requests": 1}),
        ("images", {"endpoint": "images", "images": 3}, {"images": 3, "num_model_requests": 1}),
        ("audio_speeches", {"endpoint": "audio.speech", "characters": 80}, {"characters": 80, "num_model_requests": 1}),
        ("audio_transcriptions", {"endpoint": "audio.translations", "audio_seconds": 2.6}, {"seconds": 3}),
        ("file_search_calls", {"endpoint": "file_search"}, {"num_requests": 1}),
        ("web_search_calls", {"endpoint": "web_search"}, {"num_requests": 1, "num_model_requests": 1}),
    ],
)
def test_each_kind_counts_its_own_records(
    api: Api, kind: str, columns: dict[str, Any], expected: dict[str, Any]
) -> None:
    add(api.caller, **columns)
    for other in ALL_KINDS:
        found = results(api, f"{USAGE}/{other}")
        assert len(found) == (other == kind), other
    (result,) = results(api, f"{USAGE}/{kind}")
    assert result.items() >= expected.items()


def test_containers_are_counted_as_sessions_of_the_code_interpreter(api: Api, outsider: Api) -> None:
    with scope.team(api.caller.team.pk):
        for hour in (1, 2, 30):
            Container.objects.create(team=api.caller.team, name="c", created_at=DAY + hour * HOUR)
    buckets = days(api, f"{USAGE}/code_interpreter_sessions")
    assert [[one["num_sessions"] for one in bucket["results"]] for bucket in buckets] == [[2], [1], []]
    assert results(outsider, f"{USAGE}/code_interpreter_sessions") == []


def test_vector_stores_have_the_size_of_their_files(api: Api, outsider: Api) -> None:
    team = api.caller.team
    with scope.team(team.pk):
        store = VectorStore.objects.create(team=team, name="s")
        for hour, size in ((-30, 100), (1, 20), (50, 3)):
            file = File.objects.create(
                team=team, filename="f", size=size, purpose="assistants", state="ready", sha256="x"
            )
            VectorStoreFile.objects.create(
                team=team, store=store, file=file, created_at=DAY + hour * HOUR, usage_bytes=size
            )
    buckets = days(api, f"{USAGE}/vector_stores")
    assert [[one["usage_bytes"] for one in bucket["results"]] for bucket in buckets] == [[120], [120], [123]]
    assert results(outsider, f"{USAGE}/vector_stores") == []
    (result,) = results(api, f"{USAGE}/vector_stores", count=1, group_by=["project_id"])
    assert result["project_id"] == team.pk


def test_usage_can_be_grouped_by_tier_and_batch(api: Api) -> None:
    add(api.caller, service_tier="flex", batch=True)
    add(api.caller, service_tier="default")
    found = results(api, group_by=["batch", "service_tier"])
    assert [(one["batch"], one["service_tier"]) for one in found] == [(False, "default"), (True, "flex")]
    assert [one["num_model_requests"] for one in results(api, batch="true")] == [1]


def test_usage_can_be_grouped_by_key_and_owner(make_api: MakeApi, api: Api) -> None:
    other = make_api(team=api.caller.team)
    add(api.caller)
    add(other.caller)
    found = results(api, group_by=["api_key_id"])
    assert {one["api_key_id"] for one in found} == {api.caller.key.pk, other.caller.key.pk}
    # Both keys were created by commands, so they have no owner.
    assert [(one["user_id"], one["num_model_requests"]) for one in results(api, group_by=["user_id"])] == [(None, 2)]
    assert results(api, user_ids=["user-1"]) == []
    (one,) = results(api, api_key_ids=[other.caller.key.pk])
    assert one["num_model_requests"] == 1


# -- costs -----------------------------------------------------------------------------------------------------------


def test_costs_are_exact_to_the_last_digit(api: Api, sdk: OpenAI, caller: Caller) -> None:
    for cost in ("123456.0000000001", "0.1", "0.2"):
        add(caller, cost=Decimal(cost))
    answer = api.get(COSTS, start_time=unix(DAY), limit=1)
    assert b'"value":123456.3000000001,' in answer.content
    page: Any = sdk.admin.organization.usage.costs(start_time=unix(DAY), limit=1)
    amount = page.data[0].results[0].amount
    assert amount is not None
    assert (amount.value, amount.currency) == (pytest.approx(123456.3000000001), "usd")


def test_calls_without_a_price_have_no_cost_of_zero(api: Api) -> None:
    add(api.caller, cost=None)
    (result,) = results(api, COSTS)
    assert (result["amount"], result["unpriced_requests"]) == (None, 1)
    add(api.caller, cost=Decimal(2))
    (result,) = results(api, COSTS)
    assert (result["amount"], result["unpriced_requests"]) == ({"value": 2, "currency": "usd"}, 1)


def test_line_items_are_models_and_tools(api: Api) -> None:
    add(api.caller, model="a")
    add(api.caller, model="a")
    add(api.caller, model="b")
    add(api.caller, model="a", endpoint="web_search", cost=Decimal("0.01"))
    found = {one["line_item"]: one for one in results(api, COSTS, group_by=["line_item"])}
    assert {name: one["amount"]["value"] for name, one in found.items()} == {
        "a": 0.5,
        "b": 0.25,
        "web_search calls": 0.01,
    }
    assert (found["a"]["quantity"], found["a"]["quantity_unit"]) == (2, "requests")
    (one,) = results(api, COSTS, line_items=["a", "web_search calls"])
    assert one["amount"]["value"] == 0.51


# -- for whom --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*(f"{USAGE}/{kind}" for kind in ALL_KINDS), COSTS])
def test_another_teams_key_sees_nothing_of_the_team(api: Api, outsider: Api, path: str) -> None:
    for endpoint in ("responses", "embeddings", "moderations", "images", "audio.speech", "file_search", "web_search"):
        add(api.caller, endpoint=endpoint)
    assert results(outsider, path) == []
    foreign = outsider.get(path, start_time=unix(DAY), end_time=unix(DAY + HOUR), project_ids=[api.caller.team.pk])
    unknown = outsider.get(path, start_time=unix(DAY), end_time=unix(DAY + HOUR), project_ids=["team_unknown"])
    assert ok(foreign) == ok(unknown)


def test_an_admin_key_sees_every_team(api: Api, make_admin: Any, outsider: Api) -> None:
    admin = make_admin("admin.usage.read")
    for caller in (api.caller, outsider.caller):
        add(caller)
    teams = sorted([api.caller.team.pk, outsider.caller.team.pk])
    found = results(admin, project_ids=teams, group_by=["project_id"])
    assert [one["project_id"] for one in found] == teams
    assert len(results(admin, COSTS, project_ids=teams[:1])) == 1
    refused = make_admin("admin.projects.read").get(COSTS, start_time=1)
    assert error(refused) == (403, None, "insufficient_scope")


# -- buckets ---------------------------------------------------------------------------------------------------------


def records(caller: Caller, count: int = 60) -> list[UsageRecord]:
    """Add records at random times of four days, on both sides of a change of clocks in Berlin."""
    chosen = random.Random(18)
    start = datetime(2026, 3, 28, tzinfo=UTC)
    return [
        add(
            caller,
            start + timedelta(seconds=chosen.randrange(4 * 86400)),
            model=chosen.choice("ab"),
            input_tokens=chosen.randrange(100),
        )
        for _ in range(count)
    ]


@pytest.mark.slow
def test_the_buckets_of_every_width_add_up_to_the_total(api: Api, rollups: None) -> None:
    made = records(api.caller)
    total = (len(made), sum(one.input_tokens for one in made))
    start, end = unix(datetime(2026, 3, 28, tzinfo=UTC)), unix(datetime(2026, 4, 1, tzinfo=UTC))
    for rolled in (False, True):
        if rolled:
            aggregate.roll_up(seconds=100)
        for width, limit in (("1d", 31), ("1h", 100), ("1m", 1440)):
            found = [
                result
                for page in pages(api, start_time=start, end_time=end, bucket_width=width, limit=limit)
                for bucket in page["data"]
                for result in bucket["results"]
            ]
            assert (sum(one["num_model_requests"] for one in found), sum(one["input_tokens"] for one in found)) == total


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
def test_days_follow_the_time_zone(api: Api, rollups: None, zone: str) -> None:
    made, local = records(api.caller), ZoneInfo(zone)
    since = datetime(2026, 3, 27, tzinfo=local)
    buckets = days(api, since=since, count=6, time_zone=zone)
    starts = [datetime.fromtimestamp(bucket["start_time"], local) for bucket in buckets]
    assert all((start.hour, start.minute) == (0, 0) for start in starts)
    assert all(one["end_time"] == two["start_time"] for one, two in itertools.pairwise(buckets))
    expected = [sum(one.occurred_at.astimezone(local).date() == start.date() for one in made) for start in starts]
    assert [sum(one["num_model_requests"] for one in bucket["results"]) for bucket in buckets] == expected


def test_a_call_at_midnight_belongs_to_the_new_day(api: Api) -> None:
    for at in (DAY - timedelta(microseconds=1), DAY, DAY + timedelta(hours=24, microseconds=-1)):
        add(api.caller, at)
    for width in ("1d", "1h", "1m"):
        (bucket, *_) = ok(api.get(f"{USAGE}/completions", start_time=unix(DAY), bucket_width=width))["data"]
        assert bucket["results"][0]["num_model_requests"] == (2 if width == "1d" else 1)


def pages(api: Api, path: str = f"{USAGE}/completions", **query: Any) -> Iterator[dict[str, Any]]:
    """Yield all pages."""
    page = ok(api.get(path, **query))
    yield page
    while page["has_more"]:
        page = ok(api.get(path, page=page["next_page"], **query))
        yield page
    assert page["next_page"] is None


@pytest.mark.parametrize("path", [f"{USAGE}/completions", COSTS])
def test_pages_return_the_same_as_one_page(api: Api, path: str) -> None:
    records(api.caller, 20)
    query = {"start_time": unix(datetime(2026, 3, 25, tzinfo=UTC)), "end_time": unix(datetime(2026, 4, 3, tzinfo=UTC))}
    (whole,) = pages(api, path, limit=31, group_by=["project_id"], **query)
    walked = [bucket for page in pages(api, path, limit=2, group_by=["project_id"], **query) for bucket in page["data"]]
    assert walked == whole["data"]
    assert len(walked) == 9


@pytest.mark.parametrize(("width", "default", "most"), [("1d", 7, 31), ("1h", 24, 168), ("1m", 60, 1440)])
def test_the_page_limit_depends_on_the_bucket_width(api: Api, width: str, default: int, most: int) -> None:
    query = {"start_time": unix(DAY), "end_time": unix(DAY + timedelta(days=90)), "bucket_width": width}
    page = ok(api.get(f"{USAGE}/completions", **query))
    assert (len(page["data"]), page["has_more"]) == (default, True)
    assert len(ok(api.get(f"{USAGE}/completions", limit=most, **query))["data"]) == most
    refused = api.get(f"{USAGE}/completions", limit=most + 1, **query)
    assert error(refused) == (400, "limit", "integer_above_max_value")


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"start_time": None}, "start_time", "missing_required_parameter"),
        ({"start_time": "yesterday"}, "start_time", "invalid_type"),
        ({"start_time": "1.5"}, "start_time", "invalid_type"),
        ({"start_time": "-1"}, "start_time", "integer_below_min_value"),
        ({"start_time": "9" * 19}, "start_time", "integer_above_max_value"),
        ({"end_time": "5"}, "end_time", "invalid_value"),
        ({"bucket_width": "1w"}, "bucket_width", "invalid_value"),
        ({"group_by": "colour"}, "group_by", "invalid_value"),
        ({"group_by[]": "line_item"}, "group_by", "invalid_value"),
        ({"limit": "0"}, "limit", "integer_below_min_value"),
        ({"limit": "many"}, "limit", "invalid_type"),
        ({"batch": "maybe"}, "batch", "invalid_type"),
        ({"time_zone": "Mars/Base"}, "time_zone", "invalid_value"),
        ({"page": "page_2"}, "page", "invalid_value"),
        ({"page": "page_WzEsMiwiYSJd"}, "page", "invalid_value"),
        ({"project": "x"}, "project", "unknown_parameter"),
    ],
)
def test_malformed_parameters_are_rejected(api: Api, query: dict[str, Any], param: str, code: str) -> None:
    given = {name: value for name, value in {"start_time": str(unix(DAY)), **query}.items() if value is not None}
    assert error(api.get(f"{USAGE}/completions", **given)) == (400, param, code)


def test_a_cursor_of_another_query_is_rejected(api: Api) -> None:
    query = {"start_time": unix(DAY), "end_time": unix(DAY + timedelta(days=9)), "limit": 1}
    cursor = ok(api.get(f"{USAGE}/completions", **query))["next_page"]
    for changed in ({"bucket_width": "1h"}, {"group_by": "model"}, {"start_time": unix(DAY) + 1}):
        refused = api.get(f"{USAGE}/completions", page=cursor, **{**query, **changed})
        assert error(refused) == (400, "page", "invalid_value")
    assert error(api.get(COSTS, page=cursor, **query)) == (400, "page", "invalid_value")


def test_costs_support_only_daily_buckets(api: Api) -> None:
    assert error(api.get(COSTS, start_time=1, bucket_width="1h")) == (400, "bucket_width", "invalid_value")
    assert len(days(api, COSTS, count=180, limit=180)) == 180


# -- queries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_admin", [False, True])
@pytest.mark.parametrize("width", ["1d", "1h", "1m"])
def test_no_large_table_is_read_as_a_whole(
    rollups: None, api: Api, make_admin: Any, width: str, is_admin: bool
) -> None:
    caller = make_admin("admin.usage.read") if is_admin else api
    principal = directory.principal(caller.headers["Authorization"].removeprefix("Bearer "))
    parameters = QueryDict(f"start_time={unix(DAY)}&bucket_width={width}&group_by=model")
    usage = usage_argument(kinds.COMPLETIONS).read(parameters)
    with CaptureQueriesContext(connection) as captured:
        usage_page(usage, principal=principal)
    (statement,) = [one["sql"] for one in captured if "tenants_usagerecord" in one["sql"]]
    # Days and hours come from the sums, minutes from the records.
    assert ("responses_callhour" in statement) == (width != "1m")
    with scope.every_team(), connection.cursor() as cursor:
        # In the small tables of tests, a scan would be the best plan.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}")
        ((plan,),) = cursor.fetchall()
    scanned = {node["Relation Name"] for node in nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan"}
    assert scanned <= {"responses_rollupmark"}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the steps of a plan."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)

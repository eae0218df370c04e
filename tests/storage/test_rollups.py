"""Sums of hours and days: their content, their time, and their equality with the rows."""

from collections import Counter
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import hypothesis
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import periods
from core.clock import now
from responses.models import Response, Status, ToolCall
from responses.models.rollups import ResponseHour, RollupMark, UnrolledRow
from responses.rollups import aggregate, queries
from responses.rollups.cells import MIDNIGHTS, whole_days
from responses.rollups.queries import RollupQuery, RollupRow
from responses.rollups.sources import CALLS, DAY, RESPONSES, TOOLS, RollupSource
from tenants import scope
from tenants.models import UsageRecord
from tests.admin.rows import add_call, add_response
from tests.support.api import Caller, MakeCaller
from tests.support.sampling import SEED, sized

# Each test starts without sums and creates its own, which takes half a second.
pytestmark = pytest.mark.slow
HOUR = timedelta(hours=1)


def hour_of(moment: datetime) -> datetime:
    """Return the hour of a time."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def past_hour(hours: float) -> datetime:
    """Return the middle of an hour that ended long ago."""
    return hour_of(now()) - timedelta(hours=hours) + timedelta(minutes=30)


def sums(caller: Caller, source: RollupSource = RESPONSES, **question: Any) -> list[RollupRow]:
    """Query sums of the caller's team, by default of the last three days."""
    span = {"since": hour_of(now()) - timedelta(hours=72), "until": hour_of(now()) + HOUR}
    with scope.team(caller.team.pk):
        return queries.fetch_rows(
            RollupQuery(source=source, teams=[caller.team.pk], **{"measures": [], **span, **question})
        )


def total(caller: Caller, measure: str = "responses", source: RollupSource = RESPONSES, **question: Any) -> Any:
    """Return one sum over everything."""
    found = sums(caller, source, measures=[measure], **question)
    return found[0].values[measure] if found else 0


def roll_up(*, at: datetime | None = None) -> aggregate.RollupResult:
    """Roll up all hours, including rows of other tests, without a time limit."""
    return aggregate.roll_up(seconds=100, at=at)


def end(response: Response, **columns: Any) -> None:
    """End the run of a response."""
    at = now()
    ending = {"status": Status.COMPLETED, "ended_at": at, "completed_at": at, "duration_ms": 9000, **columns}
    with scope.team(response.team_id):
        Response.objects.filter(pk=response.pk).update(**ending)


def test_complete_hours_are_read_from_sums_and_the_rest_from_rows(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=past_hour(5), input_tokens=10)
    add_response(caller, input_tokens=1)
    roll_up()
    with scope.team(caller.team.pk):
        Response.objects.filter(team=caller.team).update(input_tokens=100)
    assert total(caller, "input_tokens") == 110


def test_a_response_that_ends_late_is_counted_once_with_its_final_status(rollups: None, caller: Caller) -> None:
    response = add_response(caller, status=Status.IN_PROGRESS, created_at=past_hour(5))
    roll_up()
    assert [one.key for one in sums(caller, measures=["responses"], by=["status"])] == [("in_progress",)]
    end(response, output_tokens=7)
    assert total(caller, "output_tokens") == 7
    assert roll_up().late >= 1
    found = sums(caller, measures=["responses", "output_tokens"], by=["status"], bucket="hour")
    values = {"responses": 1, "output_tokens": 7}
    assert found == [RollupRow(bucket=hour_of(past_hour(5)), key=("completed",), values=values)]


def test_a_running_response_is_not_summed_yet(rollups: None, caller: Caller) -> None:
    response = add_response(caller, status=Status.QUEUED, created_at=past_hour(30))
    roll_up()
    roll_up()
    with scope.team(caller.team.pk):
        assert UnrolledRow.objects.filter(row_id=response.pk).exists()
    assert total(caller) == 1


def test_rolling_up_twice_changes_nothing(rollups: None, caller: Caller) -> None:
    for hours in (1, 2, 3, 30):
        add_response(caller, created_at=past_hour(hours))
    roll_up()
    first = sums(caller, measures=["responses"], bucket="hour")
    roll_up()
    assert sums(caller, measures=["responses"], bucket="hour") == first
    assert total(caller) == 4


def test_rows_that_were_committed_late_are_counted_with_the_next_hour(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=past_hour(2))
    roll_up()
    add_response(caller, created_at=past_hour(2) + timedelta(minutes=1))
    RollupMark.objects.update(until=hour_of(now()) - HOUR)
    add_response(caller, created_at=past_hour(1))
    roll_up()
    assert total(caller) == (3 if now().minute >= 5 else 2)


def test_the_first_minutes_of_an_hour_are_summed_before_it_ends(rollups: None, caller: Caller) -> None:
    hour, minute = hour_of(past_hour(4)), timedelta(minutes=1)
    add_response(caller, created_at=hour + 2 * minute, input_tokens=10)
    add_response(caller, created_at=hour + 7 * minute, input_tokens=1)
    roll_up(at=hour + 11 * minute)
    assert queries.rolled_up_until() == hour + 5 * minute
    with scope.team(caller.team.pk):
        Response.objects.filter(team=caller.team).update(input_tokens=100)
    assert total(caller, "input_tokens") == 110


def test_partial_sums_are_merged_when_their_hour_ends(rollups: None, caller: Caller) -> None:
    hour, minute = hour_of(past_hour(4)), timedelta(minutes=1)
    # If the day of a time zone begins within the hour, two sums remain.
    while any(minutes // 60 == hour.hour for minutes in MIDNIGHTS):
        hour -= HOUR
    cells = ResponseHour.objects.filter(
        team_id=caller.team.pk, hour=hour, level=RESPONSES.level(frozenset({"team_id"}))
    )
    for number, duration in enumerate((30, 4_000, None, 500_000)):
        add_response(caller, created_at=hour + 9 * number * minute, duration_ms=duration, input_tokens=number)
        roll_up(at=hour + (9 * number + 11) * minute)
    with scope.team(caller.team.pk):
        assert cells.count() == 4
    names = ["responses", "input_tokens", "duration", "first_token", "cost"]
    question: dict[str, Any] = {"measures": names, "by": ["model", "status"]}
    parts = sums(caller, **question)
    # The hour ends without further rows.
    roll_up(at=hour + 66 * minute)
    with scope.team(caller.team.pk):
        assert cells.get().responses == 4
    assert sums(caller, **question) == parts
    aggregate.discard()
    roll_up()
    assert sums(caller, **question) == parts


def test_a_row_committed_after_its_partial_sum_is_counted_when_the_hour_ends(rollups: None, caller: Caller) -> None:
    hour, minute = hour_of(past_hour(4)), timedelta(minutes=1)
    add_response(caller, created_at=hour + minute)
    roll_up(at=hour + 11 * minute)
    add_response(caller, created_at=hour + 2 * minute)
    add_response(caller, created_at=hour + 3 * minute, status=Status.IN_PROGRESS)
    assert total(caller) == 1
    roll_up(at=hour + 66 * minute)
    assert total(caller) == 3


def rows_of_days(caller: Caller) -> Any:
    """Return the sums of whole days of the caller's team without further dimensions."""
    return ResponseHour.objects.filter(team=caller.team, level=DAY + RESPONSES.level(frozenset({"team_id"})))


def day_of(days: int) -> datetime:
    """Return the beginning of a past day of UTC."""
    return now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)


def test_past_days_are_read_from_sums_of_days(rollups: None, caller: Caller) -> None:
    for hours in (5, 11, 23):
        add_response(caller, created_at=day_of(3) + hours * HOUR, input_tokens=1, duration_ms=30 * hours)
    add_response(caller, created_at=day_of(2) + HOUR, input_tokens=1, cost=Decimal("0.5"))
    span: dict[str, Any] = {"since": day_of(3) + 10 * HOUR, "until": day_of(1)}
    asked: dict[str, Any] = {"measures": ["responses", "input_tokens", "duration", "cost"], "by": ["model"], **span}
    rows = {zone: sums(caller, bucket="day", zone=zone, **asked) for zone in ("UTC", "Asia/Kolkata")}
    roll_up()
    for zone, expected in rows.items():
        assert sums(caller, bucket="day", zone=zone, **asked) == expected
    with scope.team(caller.team.pk):
        rows_of_days(caller).update(input_tokens=100)
    # The first day is only asked for in part. Without a bucket, the zone does not matter.
    assert total(caller, "input_tokens", **span) == 102
    assert [day.values["input_tokens"] for day in sums(caller, bucket="day", **asked | {"by": []})] == [2, 100]
    # The days of this time zone begin in the middle of the sum.
    kolkata = sums(caller, bucket="day", zone="Asia/Kolkata", **asked | {"by": []})
    assert sum(day.values["input_tokens"] for day in kolkata) == 3


def test_the_current_day_is_not_summed_before_its_hours_are_final(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=day_of(2) + 22 * HOUR)
    roll_up(at=day_of(1) + 3 * HOUR)
    with scope.team(caller.team.pk):
        assert not rows_of_days(caller).exists()
    add_response(caller, created_at=day_of(1))
    roll_up(at=day_of(1) + 3.5 * HOUR)
    with scope.team(caller.team.pk):
        assert rows_of_days(caller).values_list("hour", flat=True).get() == day_of(2)
    assert total(caller) == 2


def test_a_response_that_ends_days_later_is_added_to_its_day(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=day_of(3) + HOUR)
    response = add_response(caller, created_at=day_of(3) + HOUR, status=Status.IN_PROGRESS)
    recent = add_response(caller, created_at=now() - 2 * HOUR, status=Status.IN_PROGRESS)
    roll_up()
    end(response, output_tokens=7)
    end(recent, output_tokens=7)
    span: dict[str, Any] = {"since": day_of(3), "until": day_of(2)}
    assert (total(caller, **span), total(caller, "output_tokens", **span)) == (2, 7)
    roll_up()
    assert (total(caller, **span), total(caller, "output_tokens", **span)) == (2, 7)
    with scope.team(caller.team.pk):
        assert {row.hour for row in rows_of_days(caller)} == {day_of(3)}
    assert total(caller, since=day_of(4), until=hour_of(now()) + HOUR) == 3


def test_a_day_with_fewer_rows_than_its_hours_is_summed_again(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=day_of(3) + HOUR)
    roll_up(at=day_of(2) + 4 * HOUR)
    with scope.team(caller.team.pk):
        kept = rows_of_days(caller).get()
    # As after an upgrade, in which the previous version added a row to the hours only.
    with scope.every_team():
        ResponseHour.objects.filter(level__gte=DAY).update(responses=0)
    roll_up(at=day_of(2) + 5 * HOUR)
    assert total(caller, since=day_of(3), until=day_of(2)) == 0
    roll_up(at=day_of(1) + 4 * HOUR)
    with scope.team(caller.team.pk):
        assert [(row.hour, row.responses) for row in rows_of_days(caller)] == [(kept.hour, 1)]


def test_sums_discarded_within_a_day_are_rebuilt(rollups: None, caller: Caller) -> None:
    for hours in (1, 13):
        add_response(caller, created_at=day_of(3) + hours * HOUR)
    roll_up()
    aggregate.discard(since=day_of(3) + 12 * HOUR)
    assert total(caller, since=day_of(3), until=day_of(2)) == 2
    with scope.team(caller.team.pk):
        assert not rows_of_days(caller).exists()
    roll_up()
    assert total(caller, since=day_of(3), until=day_of(2)) == 2
    with scope.team(caller.team.pk):
        assert rows_of_days(caller).get().responses == 2


@pytest.mark.parametrize(
    ("edges", "days"),
    [
        (["01T00", "04T00"], [("01T00", "04T00")]),
        (["01T00", "02T00", "04T00"], [("01T00", "04T00")]),
        (["01T01", "03T23"], [("02T00", "03T00")]),
        (["01T01", "01T23"], []),
        (["01T01", "02T01"], []),
        (["01T18", "03T18", "05T18"], [("02T00", "03T00"), ("04T00", "05T00")]),
        (["01T00", "01T12", "02T00", "03T00"], [("02T00", "03T00")]),
    ],
)
def test_whole_days_lie_between_two_edges(edges: list[str], days: list[tuple[str, str]]) -> None:
    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"2026-03-{text}:00+00:00")

    assert whole_days([at(edge) for edge in edges]) == [(at(since), at(until)) for since, until in days]


def test_deleted_responses_stay_in_the_sums(rollups: None, caller: Caller) -> None:
    response = add_response(caller, created_at=past_hour(10))
    roll_up()
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=response.pk).delete()
    assert total(caller) == 1


def test_a_deleted_running_response_is_never_summed(rollups: None, caller: Caller) -> None:
    response = add_response(caller, status=Status.QUEUED, created_at=past_hour(10))
    roll_up()
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=response.pk).delete()
    roll_up()
    assert total(caller) == 0


def test_a_concurrent_rollup_is_not_disturbed(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=past_hour(5))
    other = connection.copy()
    with closing(other), other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [aggregate.LOCK])
        rolled = roll_up()
        cursor.execute("SELECT pg_advisory_unlock(%s)", [aggregate.LOCK])
    assert rolled == aggregate.RollupResult(steps=0, late=0, more=False)
    assert roll_up().steps >= 1


def test_a_rollup_works_in_bounded_steps(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=past_hour(40))
    add_response(caller, created_at=past_hour(20))
    assert aggregate.roll_up(seconds=0) == aggregate.RollupResult(steps=0, late=0, more=True)
    assert total(caller) == 2


def test_a_rollup_continues_while_any_source_has_more_rows(rollups: None, caller: Caller) -> None:
    add_response(caller, created_at=past_hour(40))
    roll_up()
    # Rows that no longer exist are treated like ended ones.
    deleted = [("responses", str(number)) for number in range(2 * aggregate._BATCH_SIZE + 1)] + [("tools", "0")]
    with scope.team(caller.team.pk):
        UnrolledRow.objects.bulk_create(
            UnrolledRow(team_id=caller.team.pk, source=source, row_id=row_id, hour=past_hour(40))
            for source, row_id in deleted
        )
    result = roll_up()
    assert (result.late, result.more) == (len(deleted), False)


def test_upstream_calls_are_summed_with_their_cost(rollups: None, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        for endpoint, at in (("responses", past_hour(6)), ("chat.completions", past_hour(6)), ("embeddings", now())):
            UsageRecord.objects.create(
                team=caller.team, api_key=caller.key, occurred_at=at, endpoint=endpoint, object_id="x", model="m",
                upstream_id="u", upstream_model="m", outcome="stop", input_tokens=5, cost=Decimal("0.0000000007"),
            )  # fmt: skip
    roll_up()
    found = sums(caller, CALLS, measures=["calls", "input_tokens"], by=["endpoint"])
    assert {one.key[0]: one.values["calls"] for one in found} == dict.fromkeys(
        ("responses", "chat.completions", "embeddings"), 1
    )
    assert total(caller, "cost", CALLS) == Decimal("0.0000000021")


def test_tool_calls_are_summed_by_name(rollups: None, caller: Caller) -> None:
    response = add_response(caller, created_at=past_hour(6))
    at = past_hour(6)
    for number in range(3):
        ending = {"started_at": at, "ended_at": at + timedelta(milliseconds=100)}
        add_call(response, call_id=f"c{number}", name="search", kind="mcp", **ending)
    add_call(response, call_id="bad", name="search", kind="mcp", status="failed", started_at=at, ended_at=at)
    roll_up()
    (found,) = sums(caller, TOOLS, measures=["calls", "failed"], by=["kind", "name"])
    assert (found.key, found.values) == (("mcp", "search"), {"calls": 4, "failed": 1})


def test_a_tool_call_restarted_in_a_later_hour_is_counted_once(rollups: None, caller: Caller) -> None:
    response = add_response(caller, status=Status.IN_PROGRESS, created_at=past_hour(9))
    add_call(response, status="pending", started_at=past_hour(9), ended_at=None)
    roll_up()
    calls = ToolCall.objects.filter(response=response)
    with scope.team(caller.team.pk):
        calls.update(started_at=past_hour(4), ended_at=past_hour(3), status="completed")
    assert total(caller, "calls", TOOLS) == 1
    aggregate.discard(since=past_hour(7))
    roll_up()
    assert total(caller, "calls", TOOLS) == 1


def test_a_call_answered_late_is_counted_with_its_final_status(rollups: None, caller: Caller) -> None:
    response = add_response(caller, created_at=past_hour(3))
    add_call(response, status="asked", started_at=past_hour(3), ended_at=None)
    add_call(response, call_id="never", status="waiting", started_at=past_hour(30), ended_at=None)
    roll_up()
    with scope.team(caller.team.pk):
        ToolCall.objects.filter(response=response, status="asked").update(status="approved", ended_at=now())
    for _ in range(2):
        found = sums(caller, TOOLS, measures=["calls"], by=["status"])
        assert sorted((one.key[0], one.values["calls"]) for one in found) == [("approved", 1), ("waiting", 1)]
        roll_up()


def test_percentiles_are_computed_from_sums(rollups: None, caller: Caller) -> None:
    for number in range(1, 21):
        ended = {"duration_ms": number * 1000, "first_token_ms": None}
        add_response(caller, created_at=past_hour(3 + number % 3 * 20), **ended)
    roll_up()
    counts = total(caller, "duration")
    assert sum(counts) == 20
    assert sum(total(caller, "first_token")) == 0


def test_a_time_span_can_be_split_into_days_of_a_time_zone(rollups: None, caller: Caller) -> None:
    evening = datetime(2026, 3, 10, 22, 30, tzinfo=UTC)
    add_response(caller, created_at=evening)
    add_response(caller, created_at=evening + HOUR)
    roll_up()
    span: dict[str, Any] = {"since": datetime(2026, 3, 9, tzinfo=UTC), "until": datetime(2026, 3, 12, tzinfo=UTC)}
    days = sums(caller, measures=["responses"], bucket="day", zone="Europe/Berlin", **span)
    assert [(day.bucket.isoformat(), day.values["responses"]) for day in days if day.bucket] == [
        ("2026-03-09T23:00:00+00:00", 1),
        ("2026-03-10T23:00:00+00:00", 1),
    ]


# Days begin at 18:30, 18:15, 3:30 or 2:30, 10:15 or 11:15 UTC; in Havana, clocks change at midnight.
ODD_ZONES = ("Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Pacific/Chatham", "America/Havana")


def test_days_that_begin_within_an_hour_are_exact(rollups: None, caller: Caller) -> None:
    # Every 20 minutes around the days on which clocks change, in spring and in autumn.
    starts = (datetime(2026, 3, 6, tzinfo=UTC), datetime(2026, 10, 30, tzinfo=UTC))
    moments = [first + timedelta(minutes=20 * step, seconds=step) for first in starts for step in range(3 * 72)]
    with scope.team(caller.team.pk):
        UsageRecord.objects.bulk_create(
            UsageRecord(
                team=caller.team, api_key=caller.key, occurred_at=at, endpoint="responses", object_id="x", model="m",
                upstream_id="u", upstream_model="m", outcome="stop",
            )
            for at in moments
        )  # fmt: skip
    for zone in ODD_ZONES:
        check_days(caller, moments, starts, zone)
    roll_up()
    for zone in ODD_ZONES:
        check_days(caller, moments, starts, zone)


def check_days(caller: Caller, moments: list[datetime], starts: tuple[datetime, ...], zone: str) -> None:
    """Compare the number of calls per day of a time zone, and of a range that begins and ends within an hour."""
    local = ZoneInfo(zone)
    midnight = periods.start_of_day(date(2026, 10, 31), local)
    end_of_day = periods.start_of_day(date(2026, 11, 1), local)
    for first in starts:
        span: dict[str, Any] = {"since": first, "until": first + timedelta(days=3)}
        expected = Counter(at.astimezone(local).date() for at in moments if first <= at < span["until"])
        days = sums(caller, CALLS, measures=["calls"], bucket="day", zone=zone, **span)
        counts = {day.bucket.astimezone(local).date(): day.values["calls"] for day in days if day.bucket}
        assert counts == expected, zone
    counted = sum(midnight <= at < end_of_day for at in moments)
    assert total(caller, "calls", CALLS, since=midnight, until=end_of_day) == counted, zone


def test_another_team_sees_none_of_the_sums(rollups: None, caller: Caller, make_caller: MakeCaller) -> None:
    add_response(caller, created_at=past_hour(5))
    roll_up()
    other = make_caller()
    question: dict[str, Any] = {"measures": ["responses"], "since": past_hour(72), "until": now()}
    with scope.team(other.team.pk):
        assert queries.fetch_rows(RollupQuery(source=RESPONSES, teams=[caller.team.pk], **question)) == []
        assert queries.fetch_rows(RollupQuery(source=RESPONSES, **question)) == []


def test_the_command_rebuilds_the_sums(rollups: None, caller: Caller) -> None:
    roll_up()
    add_response(caller, created_at=past_hour(20))
    call_command("rollup", since=f"{past_hour(24):%Y-%m-%dT%H:%M}", verbosity=0)
    assert total(caller) == 1
    with pytest.raises(CommandError):
        call_command("rollup", since="yesterday")


MOMENTS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["completed", "failed", "in_progress"]), st.sampled_from("ab")),
    min_size=1,
    max_size=8,
)


@hypothesis.seed(SEED)
@settings(max_examples=sized(8, full=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=MOMENTS, span=st.tuples(st.integers(0, 61), st.integers(0, 61)), late=st.booleans(), zone=st.integers(0, 2))
def test_query_results_equal_sums_over_the_rows(
    rollups: None, make_caller: MakeCaller, rows: list[Any], span: tuple[int, int], late: bool, zone: int
) -> None:
    caller = make_caller()
    made = [
        add_response(caller, created_at=past_hour(hours), status=status, model=model, input_tokens=place + 1)
        for place, (hours, status, model) in enumerate(rows)
    ]
    aggregate.discard()
    roll_up()
    for response in made:
        if late and response.status == Status.IN_PROGRESS:
            end(response, input_tokens=500)
    first, last = hour_of(now()) - timedelta(hours=max(span)), hour_of(now()) - timedelta(hours=min(span))
    for _ in range(2):
        with scope.team(caller.team.pk):
            wanted = Response.objects.filter(team=caller.team, created_at__gte=first, created_at__lt=last)
            expected = sorted(wanted.values_list("model", "status", "input_tokens"))
        asked: dict[str, Any] = {"since": first, "until": last, "measures": ["responses", "input_tokens"]}
        found = sums(caller, by=["model", "status"], **asked)
        days = sums(caller, bucket="day", zone=["UTC", "Asia/Kolkata", "America/New_York"][zone], **asked)
        assert sum(one.values["responses"] for one in found) == len(expected)
        assert sum(one.values["input_tokens"] for one in found) == sum(tokens for _, _, tokens in expected)
        assert {one.key for one in found} == {(model, status) for model, status, _ in expected}
        assert sum(one.values["input_tokens"] for one in days) == sum(tokens for _, _, tokens in expected)
        roll_up()
    # The next example sums its own rows only.
    with scope.team(caller.team.pk):
        Response.objects.filter(team=caller.team).delete()

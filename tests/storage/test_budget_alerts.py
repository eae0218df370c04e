"""Alerts of budgets: one for each percentage, period and subject, by mail and webhook."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from billing.budget_alerts import send_alerts
from core.clock import now
from responses.rollups import aggregate
from tenants import scope, services
from tenants.models import Budget, BudgetCheck, LimitSet, Notification, NotificationKind, UsageRecord
from tests.support.api import Caller, MakeCaller
from tests.support.mail import add_person, mails_of
from tests.support.webhooks import add_endpoint, deliveries_of

NOON = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def alone(database: None, settings: Settings) -> Iterator[None]:
    """Remove earlier alerts, and configure a mail server that nothing connects to."""
    settings.EMAIL_HOST, settings.DEFAULT_FROM_EMAIL = "127.0.0.1", "platform@example.com"
    BudgetCheck.objects.all().delete()
    # The records of these tests are older than the sums of other tests.
    aggregate.discard()
    yield
    BudgetCheck.objects.all().delete()


def add_budget(caller: Caller, amount: int, period: str = "day", *, end_user: str = "", **columns: Any) -> Budget:
    """Create a budget of the caller's team, of its key if `of_key`, or of an end user."""
    key = caller.key if columns.pop("of_key", False) else None
    with scope.team(caller.team.pk):
        limits, _ = LimitSet.objects.get_or_create(team=caller.team, api_key=key, end_user=end_user)
        defaults = {"created_at": NOON - timedelta(days=90)}
        return Budget.objects.create(
            team=caller.team, limit_set=limits, period=period, amount=amount, **{**defaults, **columns}
        )


def spend(caller: Caller, cost: str, at: datetime = NOON, **columns: Any) -> None:
    """Write the usage record of a call."""
    with scope.team(caller.team.pk):
        UsageRecord.objects.create(
            **{
                "team": caller.team,
                "api_key": caller.key,
                "occurred_at": at,
                "object_id": "resp_1",
                "model": "m",
                "upstream_id": "u",
                "upstream_model": "m",
                "cost": Decimal(cost),
                **columns,
            }
        )


def alerts_of(caller: Caller) -> list[tuple[str, int]]:
    """Return the subject (its type or the end user) and the percentage of each alert of the team, in order."""
    with scope.team(caller.team.pk):
        rows = Notification.objects.filter(kind=NotificationKind.BUDGET_ALERT).order_by("created_at", "pk")
        found = [row.details for row in rows]
    return [
        (one["subject"]["id"] if one["subject"]["type"] == "end_user" else one["subject"]["type"], one["percent"])
        for one in found
    ]


@pytest.mark.slow
def test_each_percentage_alerts_once_in_a_period(caller: Caller) -> None:
    add_person(caller)
    add_budget(caller, 10)
    expected: list[tuple[str, int]] = []
    for cost, new in (("4.9999999999", []), ("0.0000000001", [50]), ("1", []), ("2", [80]), ("5", [100]), ("9", [])):
        spend(caller, cost)
        expected += [("team", percent) for percent in new]
        for _ in range(2):
            send_alerts(at=NOON + timedelta(minutes=1))
        assert alerts_of(caller) == expected
    assert [mail.subject.split(" of")[0] for mail in mails_of(caller)] == ["50 %", "80 %", "100 %"]
    spend(caller, "5", NOON + timedelta(days=1))
    send_alerts(at=NOON + timedelta(days=1, minutes=1))
    assert alerts_of(caller) == [*expected, ("team", 50)]


@pytest.mark.slow
def test_hourly_sums_and_newer_records_are_counted_once(caller: Caller) -> None:
    """Usage of this month before and after the mark of the sums."""
    present = now()
    add_budget(caller, 100, "month")
    first = max(present - timedelta(hours=3), present.replace(day=1, hour=0, minute=0, second=0, microsecond=0))
    spend(caller, "30", first)
    aggregate.roll_up()
    spend(caller, "19", present)
    send_alerts(at=present)
    assert alerts_of(caller) == []
    spend(caller, "1", present)
    send_alerts(at=present)
    assert alerts_of(caller) == [("team", 50)]


def test_budgets_of_keys_count_only_their_key(caller: Caller) -> None:
    other = services.create_key(team=caller.team, spec=services.KeySpec(name="other")).key
    add_budget(caller, 10, of_key=True, alert_percents=[100], is_hard=False)
    spend(caller, "99", api_key=other)
    spend(caller, "9")
    send_alerts(at=NOON)
    assert alerts_of(caller) == []
    spend(caller, "1")
    send_alerts(at=NOON)
    assert alerts_of(caller) == [("api_key", 100)]


def test_every_end_user_has_their_own_budget(caller: Caller) -> None:
    add_budget(caller, 10, end_user="*", alert_percents=[100])
    add_budget(caller, 50, end_user="important", alert_percents=[100])
    for name, cost in (("a", "6"), ("b", "11"), ("important", "49"), ("", "500")):
        spend(caller, cost, end_user=name)
    send_alerts(at=NOON)
    assert alerts_of(caller) == [("b", 100)]
    spend(caller, "4", end_user="a")
    spend(caller, "1", end_user="important")
    send_alerts(at=NOON)
    assert sorted(alerts_of(caller)) == [("a", 100), ("b", 100), ("important", 100)]


def test_periods_begin_in_the_time_zone_of_the_team(caller: Caller) -> None:
    caller.team.time_zone = "Asia/Kolkata"
    with scope.team(caller.team.pk):
        caller.team.save()
    add_budget(caller, 10, alert_percents=[100])
    midnight = datetime(2026, 11, 17, 18, 30, tzinfo=UTC)
    spend(caller, "9", midnight - timedelta(seconds=1))
    spend(caller, "9", midnight)
    send_alerts(at=NOON)
    assert alerts_of(caller) == []
    spend(caller, "1", NOON)
    send_alerts(at=NOON)
    with scope.team(caller.team.pk):
        (alert,) = Notification.objects.all()
    assert alert.details["period"] == {
        "unit": "day",
        "start": "2026-11-17T18:30:00+00:00",
        "end": "2026-11-18T18:30:00+00:00",
    }


def test_spending_shortly_before_the_end_of_a_period_alerts_after_it(caller: Caller) -> None:
    add_budget(caller, 10, alert_percents=[100])
    midnight = datetime(2026, 11, 19, tzinfo=UTC)
    send_alerts(at=midnight - timedelta(seconds=30))
    spend(caller, "10", midnight - timedelta(seconds=10))
    send_alerts(at=midnight + timedelta(seconds=30))
    send_alerts(at=midnight + timedelta(seconds=90))
    assert alerts_of(caller) == [("team", 100)]


def test_concurrent_checks_alert_once(caller: Caller) -> None:
    add_person(caller)
    add_endpoint(caller, "https://example.com/", "budget.alert")
    add_budget(caller, 10)
    spend(caller, "10")

    def run(_: int) -> int:
        try:
            return send_alerts(at=NOON)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, range(4))) == 3
    assert [percent for _, percent in alerts_of(caller)] == [50, 80, 100]
    assert (len(mails_of(caller)), len(deliveries_of(caller))) == (3, 3)


def test_the_webhook_event_has_the_numbers(caller: Caller, make_caller: MakeCaller) -> None:
    add_endpoint(caller, "https://example.com/", "budget.alert")
    other = make_caller()
    add_endpoint(other, "https://example.com/", "budget.alert")
    add_budget(caller, 10, alert_percents=[80], is_hard=False)
    spend(caller, "8.25")
    send_alerts(at=NOON)
    (delivery,) = deliveries_of(caller)
    assert (delivery.event_type, delivery.object_id[:4]) == ("budget.alert", "ntf_")
    assert delivery.data == {
        "team": {"id": caller.team.pk, "name": caller.team.name},
        "subject": {"type": "team", "id": caller.team.pk, "name": caller.team.name},
        "period": {"unit": "day", "start": "2026-11-18T00:00:00+00:00", "end": "2026-11-19T00:00:00+00:00"},
        "spent": "8.2500000000",
        "amount": "10.0000000000",
        "currency": "usd",
        "percent": 80,
        "is_hard": False,
    }
    assert deliveries_of(other) == []


def test_the_mail_has_the_numbers_and_no_secret(caller: Caller) -> None:
    add_person(caller)
    add_budget(caller, 10, of_key=True, alert_percents=[80])
    spend(caller, "8.25")
    send_alerts(at=NOON)
    (mail,) = mails_of(caller)
    for part in ("$8.25", "$10.00", "2026-11-18 00:00", caller.team.name, "are refused"):
        assert part in mail.text
    assert caller.secret not in mail.text


def test_an_end_user_cannot_add_lines_to_the_mail(caller: Caller) -> None:
    add_person(caller)
    add_budget(caller, 10, end_user="*", alert_percents=[100])
    spend(caller, "11", end_user="ada\n\nYour password has expired:\nhttps://evil.example")
    assert send_alerts(at=NOON) == 1
    (mail,) = mails_of(caller)
    assert "ada Your password has expired: https://evil.example of the team" in mail.text
    assert "\n" not in mail.subject


def test_the_number_of_queries_does_not_depend_on_the_teams(make_caller: MakeCaller) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            send_alerts(at=NOON)
        return len(captured)

    for _ in range(2):
        one = make_caller()
        add_budget(one, 1_000)
        spend(one, "1")
    queries()
    few = queries()
    for _ in range(8):
        one = make_caller()
        add_budget(one, 1_000)
        spend(one, "1")
    assert queries() == few

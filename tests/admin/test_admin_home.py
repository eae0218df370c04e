"""Home page: tiles with links and trends, panels, and first steps for new teams."""

import re
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from core.clock import now
from responses.models import Status
from tenants import scope
from tenants.models import ApiKey, Role
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_rejections, add_response, add_usage, member, text
from tests.support.api import Caller, MakeCaller
from tests.support.decisions import add_decision

pytestmark = pytest.mark.usefixtures("rollups")
HOME = "/admin/"


def tile(home: str, title: str) -> tuple[str, str]:
    """Return the number on a tile and its link."""
    value = r'<div class="c-tile-value[^>]*>(.*?)</div>'
    pattern = rf'<a href="([^"]*)"(?:(?!<a ).)*?</span>\s*{re.escape(title)}\s*</div>\s*{value}'
    found = re.search(pattern, home, re.DOTALL)
    assert found is not None, title
    return found[2], found[1].replace("&amp;", "&")


def panel(home: str, title: str) -> str:
    """Return the HTML of a panel."""
    found = re.search(rf'<section class="c-box" aria-label="{re.escape(title)}">(.*?)</section>', home, re.DOTALL)
    assert found is not None, title
    return found[1]


def test_tiles_count_todays_responses(lead: Client, caller: Caller) -> None:
    for _ in range(3):
        add_response(caller, input_tokens=1000, cached_tokens=100, output_tokens=20, first_token_ms=100)
    add_response(caller, status=Status.FAILED, input_tokens=5)
    home = text(lead.get(HOME))
    numbers = {name: tile(home, name)[0] for name in ("Requests", "Errors", "Input tokens", "Output tokens")}
    assert numbers == {"Requests": "4", "Errors": "25.0 %", "Input tokens": "3,005", "Output tokens": "60"}
    assert "300 cached" in home


def test_tiles_show_latency_percentiles(lead: Client, caller: Caller) -> None:
    for _ in range(20):
        add_response(caller, duration_ms=2000, first_token_ms=400)
    home = text(lead.get(HOME))
    for name, low, high in (("First token p50", 300, 430), ("First token p95", 300, 430)):
        assert low <= int(tile(home, name)[0].removesuffix(" ms")) <= high
    assert 1.7 <= float(tile(home, "Latency p95")[0].removesuffix(" s")) <= 2.4


def test_percentiles_combine_days_with_empty_ones_between(lead: Client, caller: Caller) -> None:
    for days, milliseconds in ((0, 1000), (3, 9000)):
        for _ in range(5):
            add_response(caller, duration_ms=milliseconds, created_at=now() - timedelta(days=days))
    home = text(lead.get(f"{HOME}?span=7d"))
    medium, high = (float(tile(home, f"Latency {name}")[0].removesuffix(" s")) for name in ("p50", "p95"))
    assert 0.8 <= medium <= 1.4
    assert 7.4 <= high <= 10


def test_the_trend_compares_with_the_previous_period(lead: Client, caller: Caller) -> None:
    for days in (0, 1, 6, 8, 9):
        add_response(caller, created_at=now() - timedelta(days=days))
    home = text(lead.get(f"{HOME}?span=7d"))
    assert tile(home, "Requests")[0] == "3"
    assert "+50 % vs. previous 7 days" in home


@pytest.mark.slow
def test_tiles_count_the_chosen_period(lead: Client, caller: Caller) -> None:
    for days in (0, 6, 20, 40):
        add_response(caller, created_at=now() - timedelta(days=days))
    counts = [tile(text(lead.get(f"{HOME}?span={span}")), "Requests")[0] for span in ("today", "7d", "30d", "odd")]
    assert counts == ["1", "2", "3", "1"]


@pytest.mark.usefixtures("no_worker")  # which would claim the run
def test_running_and_queued_runs_of_any_age_are_counted(lead: Client, caller: Caller) -> None:
    lease = now() + timedelta(seconds=30)
    add_response(caller, status=Status.IN_PROGRESS, created_at=now() - timedelta(days=2), lease_until=lease)
    add_response(caller, status=Status.QUEUED, background=True, created_at=now() - timedelta(minutes=3))
    home = text(lead.get(HOME))
    value, url = tile(home, "Running")
    assert (value, tile(home, "Queued")[0], tile(home, "Stuck")[0]) == ("1", "1", "1")
    assert tile(home, "Oldest in queue")[0].startswith("3 min")
    assert "In progress" in text(lead.get(url))


@pytest.mark.usefixtures("no_worker")  # which would resume the run
def test_runs_with_an_expired_lease_are_counted_as_stuck(lead: Client, caller: Caller) -> None:
    add_response(caller, status=Status.IN_PROGRESS, background=True, lease_until=now() - timedelta(minutes=2))
    assert tile(text(lead.get(HOME)), "Stuck")[0] == "1"


@pytest.mark.nightly
@pytest.mark.slow
def test_every_link_opens(admin: Client, caller: Caller) -> None:
    add_response(caller)
    home = text(admin.get(f"{HOME}?span=7d"))
    main = home[home.index('class="c-home"') :]
    urls = {url.replace("&amp;", "&") for url in re.findall(r'<a (?:class="[^"]*" )?href="(/admin/[^"]*)"', main)}
    assert len(urls) > 20
    assert {url: admin.get(url).status_code for url in urls} == dict.fromkeys(urls, 200)


def test_the_errors_tile_links_to_failed_responses(lead: Client, caller: Caller) -> None:
    good, bad = add_response(caller), add_response(caller, status=Status.FAILED)
    listed = text(lead.get(tile(text(lead.get(HOME)), "Errors")[1]))
    assert bad.pk in listed
    assert good.pk not in listed


def test_a_bar_of_the_chart_links_to_its_hour(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    old = add_response(caller, created_at=now() - timedelta(days=3))
    urls = re.findall(r'<a href="([^"]*)" aria-label="[^"]* UTC: 1 Completed"', text(lead.get(HOME)))
    listed = text(lead.get(urls[-1].replace("&amp;", "&")))
    assert response.pk in listed
    assert old.pk not in listed


def test_the_cost_of_all_endpoints_is_compared_with_the_previous_period(lead: Client, caller: Caller) -> None:
    add_response(caller)
    for days, cost in ((0, "0.25"), (0, "0.50"), (1, "0.50")):
        add_usage(caller, cost=cost, endpoint="chat.completions", occurred_at=now() - timedelta(days=days))
    home = text(lead.get(HOME))
    value, url = tile(home, "Cost")
    assert value == "$0.75"
    assert "+50 % vs. yesterday" in home
    assert url.startswith("/admin/usage/?metric=cost")


def test_rejected_requests_are_counted_by_limit(lead: Client, caller: Caller) -> None:
    add_response(caller)
    add_rejections(caller, "requests_per_minute", 7)
    home = text(lead.get(HOME))
    assert tile(home, "Rejected") == ("7", "/admin/rejections/?range=today")
    assert "requests per minute" in home


def test_calls_without_a_price_are_not_shown_as_free(lead: Client, caller: Caller) -> None:
    add_response(caller)
    add_usage(caller, cost=None)
    assert tile(text(lead.get(HOME)), "Cost")[0] == "No price"


def test_the_latest_ten_responses_are_listed_without_content(lead: Client, caller: Caller) -> None:
    rows = [
        add_response(caller, created_at=now() - timedelta(minutes=minutes), input_preview="a secret plan")
        for minutes in range(12)
    ]
    home = text(lead.get(HOME))
    assert [row.pk in home for row in rows] == [True] * 10 + [False] * 2
    assert "a secret plan" not in home


def test_expiring_and_unused_keys_are_listed(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    add_response(caller)
    soon = make_caller(team=caller.team, expires_at=now() + timedelta(days=3)).key
    idle = make_caller(team=caller.team).key
    with scope.team(caller.team.pk):
        ApiKey.objects.filter(pk=soon.pk).update(name="expires soon")
        ApiKey.objects.filter(pk=idle.pk).update(name="unused key", created_at=now() - timedelta(days=100))
    home = text(lead.get(HOME))
    assert "expires soon" in panel(home, "API keys expiring within 14 days")
    assert "unused key" in panel(home, "API keys unused for 90 days")
    assert "never used" in panel(home, "API keys unused for 90 days")


def test_failing_tools_are_listed(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_call(response, name="broken", status="failed")
    add_call(response, name="fine", call_id="call_2")
    failing = panel(text(lead.get(HOME)), "Failing tools, last 24 hours")
    assert "1 of 1 calls failed" in failing
    assert "fine" not in failing
    url = re.findall(r'<li><a class="c-link" href="([^"]*)"', failing)[0].replace("&amp;", "&")
    assert "broken" in text(lead.get(url))


@pytest.mark.slow
def test_only_staff_see_upstreams(lead: Client, operator: Client, caller: Caller) -> None:
    add_response(caller)
    assert "Upstreams, last 24 hours" not in text(lead.get(HOME))
    assert "Upstreams, last 24 hours" in text(operator.get(HOME))


def test_a_team_without_responses_sees_first_steps(caller: Caller, lead: Client) -> None:
    home = text(lead.get(HOME))
    assert "Get started in three steps" in home
    assert "curl http://testserver/v1/responses" in home
    assert reverse("admin:tenants_apikey_add") in home
    assert reverse("admin:tenants_team_add") not in home
    auditor = text(member(caller.team, Role.AUDITOR).get(HOME))
    assert reverse("admin:tenants_apikey_add") not in auditor[auditor.index('class="c-home"') :]


@pytest.mark.usefixtures("upstream")
def test_operators_without_a_model_are_asked_to_connect_one(operator: Client, auditor: Client) -> None:
    assert "Connect a model server" not in text(auditor.get(HOME))
    # The rows of other tests are hidden by a transaction that is rolled back.
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM responses_response")
        assert "<h3>Connect a model server <small>Done" in text(operator.get(HOME))
        cursor.execute("UPDATE tenants_model SET enabled = false")
        home = text(operator.get(HOME))
        transaction.set_rollback(True)
    assert "Get started in four steps" in home
    assert "<h3>Connect a model server</h3>" in home
    assert "/admin/upstreams/connect/" in home


def test_members_see_figures_of_their_own_team_only(caller: Caller, stranger: Client, make_caller: MakeCaller) -> None:
    response = add_response(caller)
    assert "No responses yet" in text(stranger.get(HOME))
    assert response.pk not in text(stranger.get(HOME))
    assert tile(text(member(caller.team).get(HOME)), "Requests")[0] == "1"


def test_the_home_page_has_a_constant_number_of_queries(
    lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    add_response(caller)
    few = count_queries(lead, HOME)
    for _ in range(9):
        add_response(caller)
    assert count_queries(lead, HOME) == few
    assert few < 60


def test_what_waits_for_approval_is_one_click_away(lead: Client, stranger: Client, caller: Caller) -> None:
    add_response(caller)
    assert "Nothing waits for approval." in panel(text(lead.get(HOME)), "Awaiting approval")
    decision = add_decision(caller)
    home = text(lead.get(HOME))
    assert reverse("console:approval", args=[decision.pk]) in panel(home, "Awaiting approval")
    assert tile(home, "Awaiting approval") == ("1", reverse("console:approvals"))
    # It occupies no worker, so it does not count as running.
    assert tile(home, "Running")[0] == "0"
    assert decision.pk not in text(stranger.get(HOME))


def test_failures_are_listed_with_their_reasons_and_linked(lead: Client, caller: Caller) -> None:
    failed = add_response(caller, status=Status.FAILED, error_code="upstream_unreachable", model="big")
    add_response(caller, status=Status.FAILED, error_code="upstream_unreachable", model="big")
    add_response(caller)
    home = text(lead.get(HOME))
    assert reverse("admin:responses_response_change", args=[failed.pk]) in panel(home, "Latest failures")
    reasons = panel(home, "Reasons of failures, last 24 hours")
    assert ("upstream_unreachable: big" in reasons, "2 failed" in reasons) == (True, True)
    (url,) = re.findall(r'<li><a class="c-link" href="([^"]*)"', reasons)
    assert failed.pk in text(lead.get(url.replace("&amp;", "&")))


def test_the_home_of_a_lead_begins_with_their_team(lead: Client, operator: Client, caller: Caller) -> None:
    add_response(caller)
    home = text(lead.get(HOME))
    teams, tiles = home.index('class="c-home-teams"'), home.index('aria-label="Activity in this period"')
    assert teams < tiles
    assert caller.team.name in home[teams:tiles]
    order = [
        home.index(f'aria-label="{title}"') for title in ("Spend and budgets", "Latest failures", "Awaiting approval")
    ]
    assert order == sorted(order)
    titles = re.findall(r"</span>\s*([A-Z][\w ]+?)\s*</div>", home[tiles:])
    assert titles[:3] == ["Cost", "Errors", "Rejected"]
    assert "c-home-teams" not in text(operator.get(HOME))


def test_the_home_of_a_lead_shows_nothing_of_another_team(
    lead: Client, caller: Caller, make_caller: MakeCaller
) -> None:
    add_response(caller)
    failed = add_response(make_caller(), status=Status.FAILED, error_code="server_error", model="theirs")
    home = text(lead.get(HOME))
    assert ("theirs" in home, failed.pk in home) == (False, False)


def test_the_slowest_tools_come_first(lead: Client, caller: Caller) -> None:
    response, at = add_response(caller), now()
    for name, seconds in (("quick", 1), ("slow", 60)):
        add_call(response, name=name, call_id=name, started_at=at - timedelta(seconds=seconds), ended_at=at)
    slowest = panel(text(lead.get(HOME)), "Slowest tools, last 24 hours")
    assert slowest.index("slow<") < slowest.index("quick<")

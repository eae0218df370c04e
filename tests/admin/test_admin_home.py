"""The home page: numbers that link to what they count."""

import re
from datetime import timedelta

from django.test import Client

from kernel.clock import now
from responses.models import Status
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_response, member, text
from tests.support.api import Caller


def tile(home: str, title: str) -> tuple[str, str]:
    """The number on a tile, and where it leads."""
    value = r'<div class="c-tile-value[^>]*>(.*?)</div>'
    pattern = rf'<a href="([^"]*)"(?:(?!<a ).)*?</span>\s*{re.escape(title)}\s*</div>\s*{value}'
    found = re.search(pattern, home, re.DOTALL)
    assert found is not None, title
    return found[2], found[1].replace("&amp;", "&")


def test_it_counts_what_ran_today(lead: Client, caller: Caller) -> None:
    for _ in range(3):
        add_response(caller, input_tokens=1000, output_tokens=20)
    add_response(caller, status=Status.FAILED, input_tokens=5)
    home = text(lead.get("/admin/"))
    numbers = {name: tile(home, name)[0] for name in ("Responses today", "Failed today", "Tokens in today")}
    assert numbers == {"Responses today": "4", "Failed today": "1", "Tokens in today": "3,005"}


def test_it_counts_seven_days_and_not_an_eighth(lead: Client, caller: Caller) -> None:
    for days in (0, 6, 8):
        add_response(caller, created_at=now() - timedelta(days=days))
    assert tile(text(lead.get("/admin/")), "Responses, 7 days")[0] == "2"


def test_it_counts_what_runs_whenever_it_began(lead: Client, caller: Caller) -> None:
    add_response(caller, status=Status.IN_PROGRESS, created_at=now() - timedelta(days=2))
    value, url = tile(text(lead.get("/admin/")), "Running now")
    assert value == "1"
    assert "in progress" in text(lead.get(url))


def test_it_counts_keys_that_work(lead: Client, caller: Caller, make_caller: object) -> None:
    assert callable(make_caller)
    make_caller(team=caller.team)
    make_caller(team=caller.team, expires_at=now() - timedelta(days=1))
    assert tile(text(lead.get("/admin/")), "Active keys")[0] == "2"


def test_each_number_links_to_a_list_that_opens(admin: Client, caller: Caller) -> None:
    add_response(caller)
    urls = re.findall(r'<a href="(/admin/[^"]*)" class="[^"]*c-tile', text(admin.get("/admin/")))
    assert len(urls) == 8
    assert {admin.get(url.replace("&amp;", "&")).status_code for url in urls} == {200}


def test_the_failed_number_links_to_the_failed(lead: Client, caller: Caller) -> None:
    good, bad = add_response(caller), add_response(caller, status=Status.FAILED)
    listed = text(lead.get(tile(text(lead.get("/admin/")), "Failed today")[1]))
    assert bad.pk in listed
    assert good.pk not in listed


def test_the_chart_tells_each_hour(lead: Client, caller: Caller) -> None:
    at = now()
    add_response(caller, created_at=at)
    add_response(caller, status=Status.FAILED, created_at=at)
    hour = at.replace(minute=0)
    assert f"{hour:%d %b %H:%M} UTC: 1 completed, 1 failed" in text(lead.get("/admin/"))


def test_a_bar_leads_to_its_hour(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    old = add_response(caller, created_at=now() - timedelta(hours=3))
    urls = re.findall(r'<a href="([^"]*)" aria-label="[^"]* UTC: 1 completed"', text(lead.get("/admin/")))
    listed = text(lead.get(urls[-1].replace("&amp;", "&")))
    assert response.pk in listed
    assert old.pk not in listed


def test_it_shows_the_latest_ten(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller, created_at=now() - timedelta(minutes=minutes)) for minutes in range(12)]
    home = text(lead.get("/admin/"))
    assert [row.pk in home for row in rows] == [True] * 10 + [False] * 2


def test_a_member_counts_only_the_own_team(caller: Caller, stranger: Client) -> None:
    response = add_response(caller)
    home = text(stranger.get("/admin/"))
    assert tile(home, "Responses today")[0] == "0"
    assert response.pk not in home
    assert tile(text(member(caller.team).get("/admin/")), "Responses today")[0] == "1"


def test_it_takes_no_more_queries_for_more_rows(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    add_response(caller)
    few = count_queries(lead, "/admin/")
    for _ in range(9):
        add_response(caller)
    assert count_queries(lead, "/admin/") == few

"""Every URL and action of the admin, opened with roles that must not see a team: nothing of it may leak.

The team's texts contain unique markers: `CONTENT` in all message content, `NAME` in all names.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.db import models
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoDbBlocker

from responses.seeding.seed import SeedOptions, seed
from tenants.models import Role, StaffRole
from tests.admin.crawling import AdminRoute, TeamData, actions, addresses, admin_routes, leaks, queries
from tests.admin.rows import member, sign_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CONTENT, NAME = "Kranichruf", "Reiherstand"
REFUSED = {403, 404, 405}
PLACES = admin_routes()
# The theme shows the actions of a list's rows at each of them, or at none.
_FOR_ALL_ROWS = ("/revoke/",)


@pytest.fixture(scope="module")
def data(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """The team that nobody may see."""
    with django_db_blocker.unblock():
        made = seed(SeedOptions(responses=45, teams=1, seed=3, mark=CONTENT, label=NAME))
        return TeamData.of(made.tenants[0].team, markers=[CONTENT, NAME])


@pytest.fixture(scope="module")
def others(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, Client]]:
    """Browsers of somebody in each role of another team, which has data of its own, and of nobody."""
    with django_db_blocker.unblock():
        team = seed(SeedOptions(responses=25, teams=1, seed=4)).tenants[0].team
        yield {**{role.value: member(team, role) for role in Role}, "nobody": Client()}


def asks(data: TeamData) -> Iterator[tuple[AdminRoute, str, dict[str, str]]]:
    """Each address with each query that makes sense there; where ids stand in the address, with none."""
    for place in PLACES:
        for url in addresses(place, data):
            for query in queries(data) if not place.parameters else [{}]:
                yield place, url, query


def test_there_are_addresses_to_ask(data: TeamData) -> None:
    urls = [url for _, url, _ in asks(data)]
    assert len(urls) > 150
    assert len(data.ids) > 150
    assert any(data.team.pk in url for url in urls)


def test_no_page_shows_a_byte_of_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
    leaked = {}
    for place, url, query in asks(data):
        for role, client in others.items():
            answer = client.get(url, query)
            if found := leaks(answer, data, asked=everything_asked(data)):
                leaked[role, url, str(query)] = found
            if is_about(place) and not is_refused(answer, role):
                leaked[role, url, ""] = [f"answered {answer.status_code} {answer.headers.get('Location', '')}"]
    assert not leaked, lines(leaked)


def test_no_request_changes_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
    before, leaked = data.fingerprint(), {}
    for place in PLACES:
        for url in addresses(place, data):
            for form in forms(data):
                for role, client in others.items():
                    answer = client.post(url, form)
                    if found := leaks(answer, data, asked=everything_asked(data)):
                        leaked[role, url] = found
                    if is_about(place) and not is_refused(answer, role):
                        leaked[role, url] = [f"answered {answer.status_code} {answer.headers.get('Location', '')}"]
    assert not leaked, lines(leaked)
    assert data.fingerprint() == before


def test_no_action_reaches_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
    before, leaked = data.fingerprint(), {}
    for model, action in actions():
        form = {"action": action, "_selected_action": ids_of(data, model), "index": "0", "select_across": "1"}
        for role, client in others.items():
            for sure in ({}, {"post": "yes", "confirm": "yes", "reason": "because"}):
                answer = client.post(list_of(model), {**form, **sure}, follow=True)
                if found := leaks(answer, data, asked=everything_asked(data)):
                    leaked[role, action, list_of(model)] = found
    assert not leaked, lines(leaked)
    assert data.fingerprint() == before


def test_no_choice_of_a_form_names_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
    leaked = {}
    for model, page in django_admin.site._registry.items():
        for field in page.autocomplete_fields:
            model_name = str(model._meta.model_name)
            names = {"app_label": model._meta.app_label, "model_name": model_name, "field_name": field}
            for role, client in others.items():
                for term in ("", "e"):
                    if found := leaks(client.get("/admin/autocomplete/", {**names, "term": term}), data):
                        leaked[role, str(names)] = found
    assert not leaked, lines(leaked)


@pytest.mark.parametrize("role", list(StaffRole))
def test_staff_see_no_content_before_they_reveal_it(role: StaffRole, data: TeamData, database: None) -> None:
    client, shown = sign_in(staff=role), {}
    for _, url, query in asks(data):
        answer = client.get(url, query)
        if found := [word for word in leaks(answer, data, asked=url) if word == CONTENT]:
            shown[url, str(query)] = found
    assert not shown, lines(shown)


def test_an_auditor_of_the_team_sees_no_content_either(data: TeamData, database: None) -> None:
    client, shown = member(data.team, Role.AUDITOR), {}
    for _, url, query in asks(data):
        if CONTENT in leaks(client.get(url, query), data):
            shown[url, str(query)] = CONTENT
    assert not shown, lines(shown)


def test_who_only_looks_changes_nothing(data: TeamData, database: None) -> None:
    watching = (sign_in(staff=StaffRole.AUDITOR), member(data.team, Role.AUDITOR))
    before = data.fingerprint()
    for client in watching:
        for place in PLACES:
            for url in addresses(place, data):
                client.post(url, {"post": "yes", "confirm": "yes"})
    assert data.fingerprint() == before


@pytest.mark.parametrize("role", ["administrator", *Role, *StaffRole])
def test_every_link_that_somebody_is_shown_leads_somewhere(role: str, data: TeamData, database: None) -> None:
    """From the home page on, over every kind of page that can be reached: nothing breaks, nothing is forbidden."""
    client = person(role, data)
    seen, broken, waiting = {"/admin/"}, {}, ["/admin/"]
    kinds: dict[str, int] = {}
    while waiting:
        url = waiting.pop(0)
        answer = client.get(url)
        if answer.status_code not in {200, 302} and not url.endswith(_FOR_ALL_ROWS):
            broken[url] = answer.status_code
            continue
        for link in links_of(answer) - seen:
            seen.add(link)
            kind = re.sub(r"\d+|[a-z]+[-_][0-9a-f]{36}|=[^&]*", "#", link)
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= 2:
                waiting.append(link)
    assert not broken, lines(broken)
    assert len(seen) > 30


@pytest.mark.parametrize("role", ["administrator", *Role, *StaffRole])
def test_no_page_breaks_for_whoever_may_open_it(role: str, data: TeamData, database: None) -> None:
    client = person(role, data)
    client.raise_request_exception = False
    answers = {(url, str(query)): client.get(url, query).status_code for _, url, query in asks(data)}
    # 400: not every query that is asked here is a filter of every list.
    assert {asked: status for asked, status in answers.items() if status not in {200, 302, 400, *REFUSED}} == {}
    assert sum(status == 200 for status in answers.values()) > 40


# -- what they ask with ------------------------------------------------------------------------------------------------


def person(role: str, data: TeamData) -> Client:
    """The browser of somebody in that role, in the team where it is one of a team."""
    if role == "administrator":
        return sign_in(superuser=True)
    return member(data.team, Role(role)) if role in Role.values else sign_in(staff=StaffRole(role))


def is_about(place: AdminRoute) -> bool:
    """Whether an address of the place names something of the team, and not a kind of page."""
    return bool(set(place.parameters) - {"app_label"})


def is_refused(answer: object, role: str) -> bool:
    """Refused; who has not signed in is asked to."""
    status, headers = getattr(answer, "status_code", 0), getattr(answer, "headers", {})
    if role == "nobody" and status == 302:
        return "/login/" in headers["Location"]
    return status in REFUSED


def lines(found: Mapping[Any, object]) -> str:
    """What was found, to be read."""
    return "\n" + "\n".join(f"{where}: {what}" for where, what in found.items())


def forms(data: TeamData) -> list[dict[str, str]]:
    """What is sent: nothing, and what says yes to everything."""
    team = data.team.pk
    sure = {"post": "yes", "confirm": "yes", "reason": "because I say so", "team": team, "name": "x", "next": "/admin/"}
    return [{}, sure]


@cache
def everything_asked(data: TeamData) -> str:
    """The ids that anybody asks for here: what somebody has asked stands in their own log."""
    rows = [pk for model in data.rows for pk in ids_of(data, model)]
    return " ".join([*(f"{url} {query}" for _, url, query in asks(data)), *rows])


def ids_of(data: TeamData, model: type[models.Model]) -> list[str]:
    """The rows of the team in a list."""
    return [str(row.pk) for row in data.rows.get(model, [])][:20]


def list_of(model: type[models.Model]) -> str:
    """The address of a list."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def links_of(answer: Any) -> set[str]:
    """The addresses of the admin that a page shows links to; patterns for scripts, and what is hidden, are none."""
    if answer.streaming:
        return set()
    page = re.sub(r"<template.*?</template>", "", answer.content.decode(errors="replace"), flags=re.DOTALL)
    found = set()
    for tag in re.findall(r"<a\s[^>]*>", page):
        link = re.search(r'href="(/admin/[^"#]*)', tag)
        if link and not re.search(r"\shidden\b", tag) and "logout" not in link[1]:
            found.add(link[1].replace("&amp;", "&"))
    return found

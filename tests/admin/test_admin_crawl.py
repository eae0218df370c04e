"""Every URL and action of the admin, requested by users who must not see a team: none of its data may leak.

The data of the team contains marker words: `CONTENT` in all content, `NAME` in all names. One of the users who must not
see the team requests each URL, and each role requests some of the pages. In `python -m benchmarks crawl` all users
request all pages.
"""

import random
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

from seeding.seed import SeedOptions, seed
from tenants.models import Role, StaffRole
from tests.admin.crawling import (
    AdminRoute,
    TeamData,
    actions,
    addresses,
    admin_routes,
    leaks,
    queries,
    unknown_address,
)
from tests.admin.rows import member, sign_in
from tests.support.sampling import SEED, rest_at_night, sampled, sized
from tests.support.site_client import SiteClient

pytestmark = pytest.mark.slow
CONTENT, NAME = "Kranichruf", "Reiherstand"
REFUSED = {403, 404, 405}
PLACES = admin_routes()
PAGES, FOLLOWED = 30, 20
"""Number of pages that a role requests in a sample, and of links that it follows."""
# The theme shows a row action on all rows or on none, so some links are refused.
_FOR_ALL_ROWS = ("/revoke/",)


@pytest.fixture(scope="module")
def data(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> TeamData:
    """The team whose data must not leak."""
    with django_db_blocker.unblock():
        made = seed(SeedOptions(responses=45, teams=1, seed=3, mark=CONTENT, label=NAME))
        return TeamData.of(made.tenants[0].team, markers=[CONTENT, NAME])


@pytest.fixture(scope="module")
def others(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, Client]]:
    """Clients by role in another team, which has data too, and a client without a session."""
    with django_db_blocker.unblock():
        team = seed(SeedOptions(responses=25, teams=1, seed=4)).tenants[0].team
        yield {**{role.value: member(team, role) for role in Role}, "nobody": SiteClient()}


def requests_to_try(data: TeamData) -> Iterator[tuple[AdminRoute, str, dict[str, str]]]:
    """Yield each URL with each query that it accepts. URLs that contain ids are requested without queries."""
    for place in PLACES:
        for url in addresses(place, data):
            for query in queries(data) if not place.parameters else [{}]:
                yield place, url, query


def test_the_crawl_covers_enough_urls(data: TeamData) -> None:
    urls = [url for _, url, _ in requests_to_try(data)]
    assert len(urls) > 150
    assert len(data.ids) > 150
    assert any(data.team.pk in url for url in urls)


def test_no_page_leaks_data_of_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
    leaked = {}
    for place, url, query in requests_to_try(data):
        for role, client in sampled(others.items(), 1, key=f"{url} {query}"):
            answer = client.get(url, query)
            if found := leaks(answer, data, asked=all_requested(data)):
                leaked[role, url, str(query)] = found
            if names_an_object(place) and not is_refused(answer, role):
                leaked[role, url, ""] = [f"answered {answer.status_code} {answer.headers.get('Location', '')}"]
    assert not leaked, lines(leaked)


def test_no_post_changes_or_leaks_data_of_another_team(
    data: TeamData, others: dict[str, Client], database: None
) -> None:
    before, leaked = data.fingerprint(), {}
    for place in PLACES:
        for url in addresses(place, data):
            for form in forms(data):
                for role, client in sampled(others.items(), 1, key=f"{url} {form}"):
                    answer = client.post(url, form)
                    if found := leaks(answer, data, asked=all_requested(data)):
                        leaked[role, url] = found
                    if names_an_object(place) and not is_refused(answer, role):
                        leaked[role, url] = [f"answered {answer.status_code} {answer.headers.get('Location', '')}"]
    assert not leaked, lines(leaked)
    assert data.fingerprint() == before


@pytest.mark.parametrize("method", ["get", "post"])
def test_unknown_ids_are_not_found(method: str, admin: Client) -> None:
    urls = [unknown_address(place) for place in PLACES if names_an_object(place)]
    answers = {url: getattr(admin, method)(url).status_code for url in urls}
    # 405: a page that only reads, or an action that only a form posts.
    assert {url: status for url, status in answers.items() if status not in {404, 405}} == {}
    assert list(answers.values()).count(404) > len(answers) / 2


@pytest.mark.parametrize("method", ["get", "post"])
def test_ids_of_another_team_get_the_answer_of_unknown_ids(
    method: str, data: TeamData, others: dict[str, Client], database: None
) -> None:
    differing = {}
    for place in PLACES:
        for url in addresses(place, data) if names_an_object(place) else ():
            for role, client in sampled(others.items(), 1, key=f"{method} {url}"):
                status = getattr(client, method)(url).status_code
                expected = getattr(client, method)(unknown_address(place)).status_code
                if status != expected:
                    differing[role, url] = f"answered {status}, an unknown id {expected}"
    assert not differing, lines(differing)


def test_no_list_action_reaches_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
    before, leaked = data.fingerprint(), {}
    for model, action in actions():
        form = {"action": action, "_selected_action": ids_of(data, model), "index": "0", "select_across": "1"}
        for role, client in sampled(others.items(), 2, key=f"{model} {action}"):
            for confirmed in ({}, {"post": "yes", "confirm": "yes", "reason": "because"}):
                answer = client.post(list_of(model), {**form, **confirmed}, follow=True)
                if found := leaks(answer, data, asked=all_requested(data)):
                    leaked[role, action, list_of(model)] = found
    assert not leaked, lines(leaked)
    assert data.fingerprint() == before


def test_no_autocomplete_choice_names_another_team(data: TeamData, others: dict[str, Client], database: None) -> None:
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
def test_staff_see_no_content_before_a_reveal(role: StaffRole, data: TeamData, database: None) -> None:
    client, shown = sign_in(staff=role), {}
    for _, url, query in sampled(requests_to_try(data), PAGES, key=f"staff {role}"):
        answer = client.get(url, query)
        if found := [word for word in leaks(answer, data, asked=url) if word == CONTENT]:
            shown[url, str(query)] = found
    assert not shown, lines(shown)


def test_a_team_auditor_sees_no_content(data: TeamData, database: None) -> None:
    client, shown = member(data.team, Role.AUDITOR), {}
    for _, url, query in sampled(requests_to_try(data), PAGES, key="auditor"):
        if CONTENT in leaks(client.get(url, query), data):
            shown[url, str(query)] = CONTENT
    assert not shown, lines(shown)


def test_auditors_change_nothing(data: TeamData, database: None) -> None:
    watching = (sign_in(staff=StaffRole.AUDITOR), member(data.team, Role.AUDITOR))
    before = data.fingerprint()
    for place in PLACES:
        for url in addresses(place, data):
            for client in sampled(watching, 1, key=url):
                client.post(url, {"post": "yes", "confirm": "yes"})
    assert data.fingerprint() == before


@pytest.mark.parametrize("role", rest_at_night(["administrator", *Role, *StaffRole], first=2))
def test_every_visible_link_opens(role: str, data: TeamData, database: None) -> None:
    """Follows links from the home page to every kind of page: none fails or is forbidden."""
    client = person(role, data)
    seen, broken, waiting, opened = {"/admin/"}, {}, ["/admin/"], 0
    kinds: dict[str, int] = {}
    chance = random.Random(f"{SEED} {role}")
    while waiting and opened < sized(FOLLOWED, full=10_000):
        # The home page first, then in any order, so that samples reach every kind of page.
        url = waiting.pop(chance.randrange(len(waiting)))
        answer = client.get(url)
        opened += 1
        # The audit log has links to objects that were deleted later, here by other tests.
        if answer.status_code == 404 and url.startswith("/admin/go/"):
            continue
        if answer.status_code not in {200, 302} and not url.endswith(_FOR_ALL_ROWS):
            broken[url] = answer.status_code
            continue
        for link in sorted(links_of(answer) - seen):
            seen.add(link)
            kind = re.sub(r"\d+|[a-z]+[-_][0-9a-v]{20,36}|=[^&]*", "#", link)
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= 2:
                waiting.append(link)
    assert not broken, lines(broken)
    assert len(seen) > 30


@pytest.mark.parametrize("role", rest_at_night(["administrator", *Role, *StaffRole], first=2))
def test_no_page_fails_for_any_role(role: str, data: TeamData, database: None) -> None:
    client = person(role, data)
    client.raise_request_exception = False
    tried = sampled(requests_to_try(data), PAGES, key=f"no page fails for {role}")
    answers = {(url, str(query)): client.get(url, query).status_code for _, url, query in tried}
    # 400: not every query used here is a filter of every list.
    assert {asked: status for asked, status in answers.items() if status not in {200, 302, 400, *REFUSED}} == {}
    assert sum(status == 200 for status in answers.values()) > sized(2, full=40)


# -- helpers -----------------------------------------------------------------------------------------------------------


def person(role: str, data: TeamData) -> Client:
    """Return a client of a user with this role; a team role applies to the team of the subject."""
    if role == "administrator":
        return sign_in(superuser=True)
    return member(data.team, Role(role)) if role in Role.values else sign_in(staff=StaffRole(role))


def names_an_object(place: AdminRoute) -> bool:
    """Return True if URLs of the place identify an object, not just a kind of page."""
    return bool(set(place.parameters) - {"app_label"})


def is_refused(answer: object, role: str) -> bool:
    """Return True for an error, or for a redirect to the sign-in page without a session."""
    status, headers = getattr(answer, "status_code", 0), getattr(answer, "headers", {})
    if role == "nobody" and status == 302:
        return "/login/" in headers["Location"]
    return status in REFUSED


def lines(found: Mapping[Any, object]) -> str:
    """Format findings for the failure message."""
    return "\n" + "\n".join(f"{where}: {what}" for where, what in found.items())


def forms(data: TeamData) -> list[dict[str, str]]:
    """Return an empty form and a form that confirms everything."""
    team = data.team.pk
    confirmed = {
        "post": "yes",
        "confirm": "yes",
        "reason": "because of a ticket",
        "team": team,
        "name": "x",
        "next": "/admin/",
    }
    return [{}, confirmed]


@cache
def all_requested(data: TeamData) -> str:
    """Return all requested URLs and ids: a user's own audit log contains what they requested."""
    rows = [pk for model in data.rows for pk in ids_of(data, model)]
    return " ".join([*(f"{url} {query}" for _, url, query in requests_to_try(data)), *rows])


def ids_of(data: TeamData, model: type[models.Model]) -> list[str]:
    """Return the first ids of the team's rows of a model."""
    return [str(row.pk) for row in data.rows.get(model, [])][:20]


def list_of(model: type[models.Model]) -> str:
    """Return the URL of a list."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def links_of(answer: Any) -> set[str]:
    """Return the admin URLs that a page links to, without templates for scripts and hidden links."""
    if answer.streaming:
        return set()
    page = re.sub(r"<template.*?</template>", "", answer.content.decode(errors="replace"), flags=re.DOTALL)
    found = set()
    for tag in re.findall(r"<a\s[^>]*>", page):
        link = re.search(r'href="(/admin/[^"#]*)', tag)
        if link and not re.search(r"\shidden\b", tag) and "logout" not in link[1]:
            found.add(link[1].replace("&amp;", "&"))
    return found

"""Every page of the admin opens for users who may see it."""

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from responses.models import PromptTemplate, Response
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from tenants import scope, services
from tenants.models import (
    ApiKey,
    AuditEvent,
    Connector,
    Guardrail,
    GuardrailDecision,
    MailDelivery,
    Membership,
    Model,
    Price,
    SearchEngine,
    Team,
    Upstream,
    UsageRecord,
)
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_response, page_url, sign_in, text
from tests.support.api import Caller, MakeCaller
from tests.support.mail import add_mail
from tests.support.prompts import write_prompt
from tests.support.site_client import SiteClient
from tests.support.webhooks import add_endpoint, announce

PAGES = {
    "tenants/team": Team,
    "tenants/apikey": ApiKey,
    "tenants/membership": Membership,
    "tenants/model": Model,
    "tenants/price": Price,
    "tenants/upstream": Upstream,
    "tenants/connector": Connector,
    "tenants/searchengine": SearchEngine,
    "tenants/guardrail": Guardrail,
    "tenants/guardraildecision": GuardrailDecision,
    "tenants/usagerecord": UsageRecord,
    "tenants/auditevent": AuditEvent,
    "tenants/maildelivery": MailDelivery,
    "responses/response": Response,
    "responses/prompttemplate": PromptTemplate,
    "responses/webhookendpoint": WebhookEndpoint,
    "responses/webhookdelivery": WebhookDelivery,
    "auth/user": User,
}
TESTED_ELSEWHERE = {
    "tenants/adminkey",
    "tenants/invite",
    "containers/container",
    "conversations/conversation",
    "conversations/file",
    "responses/batch",
    "responses/chatcompletion",
    "responses/toolcall",
    "responses/vectorstore",
    "skills/skill",
}
"""Models whose pages are tested in other files."""
FORMS = [
    "tenants/team",
    "tenants/apikey",
    "tenants/membership",
    "tenants/model",
    "tenants/price",
    "tenants/upstream",
    "tenants/connector",
    "tenants/searchengine",
    "tenants/guardrail",
    "responses/prompttemplate",
    "responses/webhookendpoint",
    "auth/user",
]


def any_primary_key(model: type, caller: Caller) -> str:
    """Return the primary key of a row of a model, creating rows where necessary."""
    with scope.every_team():
        upstream, _ = Upstream.objects.get_or_create(name="pages", base_url="http://127.0.0.1:9/v1")
        served, _ = Model.objects.get_or_create(name="pages", upstream=upstream)
        Price.objects.get_or_create(model=served, amount=1)
        Connector.objects.get_or_create(name="pages", url="http://127.0.0.1:9/mcp")
        SearchEngine.objects.get_or_create(name="pages", base_url="http://127.0.0.1:9", enabled=False)
        Guardrail.objects.get_or_create(team=caller.team)
        GuardrailDecision.objects.create(team=caller.team, response_id="resp_1", stage="input", outcome="passed")
        Membership.objects.get_or_create(team=caller.team, user=User.objects.first())
        UsageRecord.objects.create(team=caller.team, object_id="resp_1", model="m", upstream_id="u", upstream_model="m")
        add_response(caller)
        write_prompt(caller, "Be brief.")
        add_endpoint(caller, "https://example.com/")
        announce(caller)
        add_mail(caller)
        return str(model._default_manager.order_by("-pk").first().pk)  # type: ignore[attr-defined]


def test_every_registered_model_is_covered_here_or_elsewhere(database: None) -> None:
    registered = {f"{model._meta.app_label}/{model._meta.model_name}" for model in django_admin.site._registry}
    assert registered == set(PAGES) | TESTED_ELSEWHERE


@pytest.mark.parametrize("page", PAGES)
def test_an_administrator_opens_each_list(page: str, admin: Client, caller: Caller) -> None:
    any_primary_key(PAGES[page], caller)
    assert admin.get(f"/admin/{page}/").status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_an_administrator_opens_a_row_of_each_list(page: str, admin: Client, caller: Caller) -> None:
    answer = admin.get(f"/admin/{page}/{any_primary_key(PAGES[page], caller)}/change/")
    assert answer.status_code == 200


@pytest.mark.parametrize("page", FORMS)
def test_an_administrator_opens_each_form(page: str, admin: Client) -> None:
    assert admin.get(f"/admin/{page}/add/", follow=True).status_code == 200


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(FORMS)))
def test_read_only_models_have_no_add_form(page: str, admin: Client) -> None:
    assert admin.get(f"/admin/{page}/add/").status_code == 403


@pytest.mark.parametrize("page", [*PAGES, ""])
def test_anonymous_requests_redirect_to_the_sign_in(page: str, database: None) -> None:
    answer = SiteClient().get(f"/admin/{page}/".replace("//", "/"))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/admin/login/?next=")


@pytest.mark.slow
def test_signing_in_redirects_to_the_home_page(database: None) -> None:
    User.objects.create_superuser("signing-in", password="correct horse battery")
    answer = SiteClient().post("/account/login/", {"login": "signing-in", "password": "correct horse battery"})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/")


def test_the_sidebar_lists_every_page(admin: Client) -> None:
    home = text(admin.get("/admin/"))
    titles = ["Home", "Responses", "Teams", "API keys", "Models", "Upstreams", "Usage", "Webhooks", "System"]
    assert [title for title in titles if f"<span>{title}</span>" not in home] == []


def test_the_tabs_of_the_sidebars_pages_list_every_other_page(admin: Client) -> None:
    linked = set()
    for link in re.findall(r'<li><a href="(/admin/[^"]*)"', text(admin.get("/admin/"))):
        linked |= {link, *re.findall(r'href="(/admin/[^"?]+)"', text(admin.get(link)))}
    assert [page for page in PAGES if f"/admin/{page}/" not in linked] == []


def test_a_user_without_a_team_opens_only_the_home_page(database: None) -> None:
    client = sign_in()
    home = text(client.get("/admin/"))
    assert "<span>Home</span>" in home
    assert "<span>Responses</span>" not in home
    assert {client.get(f"/admin/{page}/").status_code for page in PAGES} == {403}


def test_every_stylesheet_script_and_image_of_a_page_is_served(admin: Client) -> None:
    links = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', text(admin.get("/admin/"))))
    assert [link for link in links if link.startswith("/static/bundles/console.")] != []
    assert {link for link in links if admin.get(link).status_code != 200} == set()


@pytest.mark.slow
def test_pages_load_no_external_resources(admin: Client, caller: Caller) -> None:
    pages = ["/admin/", "/admin/responses/response/", page_url(add_response(caller)), "/admin/tenants/apikey/add/"]
    loaded = [re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]+"', text(admin.get(page))) for page in pages]
    assert loaded == [[], [], [], []]


def add_rows(caller: Caller, count: int) -> None:
    """Create members, keys, usage records and audit events of a team."""
    for _ in range(count):
        services.create_key(team=caller.team, spec=services.KeySpec(name="another"))
        with scope.every_team():
            person = User.objects.create(username=f"person-{uuid.uuid4().hex}")
            Membership.objects.create(team=caller.team, user=person)
            UsageRecord.objects.create(
                team=caller.team, api_key=caller.key, object_id="x", model="m", upstream_id="u", upstream_model="m"
            )


@pytest.mark.parametrize("page", ["apikey", "membership", "usagerecord", "auditevent"])
def test_query_count_of_a_list_is_independent_of_its_rows(
    page: str, lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    add_rows(caller, 1)
    few = count_queries(lead, f"/admin/tenants/{page}/")
    add_rows(caller, 5)
    assert count_queries(lead, f"/admin/tenants/{page}/") == few


@pytest.mark.slow
def test_query_count_of_team_and_user_lists_is_independent_of_their_rows(
    admin: Client, make_caller: MakeCaller, count_queries: CountQueries
) -> None:
    pages = ("/admin/tenants/team/", "/admin/auth/user/?o=-1")
    add_rows(make_caller(), 2)
    few = [count_queries(admin, page) for page in pages]
    add_rows(make_caller(), 5)
    assert [count_queries(admin, page) for page in pages] == few


def views(patterns: Sequence[URLPattern | URLResolver], prefix: str = "/") -> Iterator[tuple[str, Any]]:
    """Yield the route and the view of every URL pattern."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from views(pattern.url_patterns, prefix + str(pattern.pattern))
        else:
            yield prefix + str(pattern.pattern), pattern.callback


@pytest.mark.slow
def test_no_page_may_be_shown_in_a_frame(lead: Client) -> None:
    pages = ("/admin/", "/admin/playground/", "/account/login/", "/docs", "/admin/nothing/", "/openapi.json")
    assert {lead.get(url)["X-Frame-Options"] for url in pages} == {"DENY"}


def test_a_form_of_another_site_is_refused(lead: Client) -> None:
    strict = SiteClient(enforce_csrf_checks=True)
    strict.cookies = lead.cookies
    for url in ("/account/login/", "/account/logout/", "/account/sessions/", "/admin/content/reveal/"):
        refused = strict.post(url, {"next": "/admin/"})
        assert (refused.status_code, "CSRF verification failed" in text(refused)) == (403, True), url
    pages = [(route, view) for route, view in views(get_resolver().url_patterns) if not route.startswith("/v1/")]
    exempt = {route for route, view in pages if getattr(view, "csrf_exempt", False)}
    # The token in its URL grants the permission. The other pages only read.
    for route in exempt - {"/account/unsubscribe/<str:token>/"}:
        assert strict.post(route.replace("<path:path>", "index.html")).status_code == 405, route
    assert len(exempt) < len(pages) / 5

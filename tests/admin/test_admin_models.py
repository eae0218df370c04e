"""Models and upstreams in the admin: prices, health, test calls, model lists, and secrets."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from tenants import scope
from tenants.models import AuditEvent, Connector, Guardrail, Model, SearchEngine, Upstream, UsageRecord
from tests.admin.conftest import CountQueries
from tests.admin.rows import text
from tests.admin.test_admin_upstreams import PLAIN
from tests.support.api import Caller, MakeCaller
from tests.support.chunks import text as answer_of
from tests.support.upstream import Script, refusal, stream

MODELS, UPSTREAMS = "/admin/tenants/model/", "/admin/tenants/upstream/"
SECRET = "upstream-secret-77aa"


@pytest.fixture
def server(database: None) -> Iterator[Upstream]:
    """An unreachable upstream with an API key."""
    made = Upstream.objects.create(name=f"up {uuid.uuid4().hex}", base_url="http://127.0.0.1:9/v1", api_key=SECRET)
    yield made
    with scope.every_team():
        Upstream.objects.filter(pk=made.pk).delete()


@pytest.fixture
def scripted(script: Script) -> Iterator[Model]:
    """A model of the scripted upstream."""
    made = Model.objects.create(name=script.model, upstream=Upstream.objects.get(name="scripted"))
    yield made
    with scope.every_team():
        made.delete()


def call(caller: Caller, model: Model, **columns: Any) -> None:
    """Add a usage record."""
    with scope.every_team():
        UsageRecord.objects.create(
            team=caller.team, object_id="x", model=model.name, upstream_id=model.upstream_id, upstream_model="m",
            **{"duration_ms": 100, "outcome": "stop", "endpoint": "responses", **columns},
        )  # fmt: skip


def price_forms(*prices: dict[str, str]) -> dict[str, str]:
    """Return the form fields of these prices."""
    usual = {"per": "1000000", "above_tokens": "0", "cache_seconds": "0"}
    values = {
        f"price_entries-{index}-{name}": value
        for index, price in enumerate(prices)
        for name, value in {**usual, **price}.items()
    }
    return {**values, "price_entries-TOTAL_FORMS": str(len(prices))}


def test_prices_are_saved_and_listed(admin: Client, server: Upstream) -> None:
    name = f"priced {uuid.uuid4().hex}"
    prices = price_forms(
        {"dimension": "input", "amount": "0.4"},
        {"dimension": "cached_input", "amount": "0.1"},
        {"dimension": "output", "amount": "1.6"},
        {"dimension": "output", "amount": "3.2", "service_tier": "priority", "above_tokens": "200000"},
    )
    answer = admin.post(f"{MODELS}add/", {**PLAIN, "name": name, "upstream": server.pk, **prices})
    assert answer.status_code == 302
    model = Model.objects.get(name=name)
    last = model.prices().entries[-1]
    assert (last.amount, last.service_tier, last.above_tokens) == (Decimal("3.2"), "priority", 200_000)
    page = text(admin.get(MODELS, {"q": name}))
    assert ("$0.40 in" in page, "$0.10 cached, $1.60 out" in page) == (True, True)


@pytest.mark.parametrize(
    "prices",
    [
        [{"dimension": "input", "amount": "-1"}],
        [{"dimension": "input", "amount": "1"}, {"dimension": "input", "amount": "2"}],
        [{"dimension": "output", "amount": ""}],
    ],
)
def test_wrong_prices_are_refused(admin: Client, server: Upstream, prices: list[dict[str, str]]) -> None:
    name = f"priced {uuid.uuid4().hex}"
    form = {**PLAIN, "name": name, "upstream": server.pk, **price_forms(*prices)}
    assert admin.post(f"{MODELS}add/", form).status_code == 200
    assert not Model.objects.filter(name=name).exists()


@pytest.mark.slow
def test_lists_show_success_rates_of_models_and_upstreams(
    operator: Client, server: Upstream, caller: Caller, count_queries: CountQueries
) -> None:
    model = Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=server)
    for outcome in ("stop", "stop", "stop", "failed"):
        call(caller, model, outcome=outcome)
    call(caller, model, outcome="failed", occurred_at=now() - timedelta(hours=20))
    for url, name in ((MODELS, model.name), (UPSTREAMS, server.name)):
        page = text(operator.get(url, {"q": name}))
        assert "1 h: 75 % of 4, p95" in page
        assert "24 h: 60 % of 5, p95" in page
        assert count_queries(operator, f"{url}?q={name}") <= 25
    assert "24 h: 60 % of 5" in text(operator.get(f"{MODELS}{model.pk}/change/"))


def test_a_test_call_shows_the_output_and_is_audited(operator: Client, scripted: Model, script: Script) -> None:
    script.then(stream(*answer_of("Hel", "lo")))
    page = text(operator.post(f"/admin/models/{scripted.pk}/test/"))
    assert ("Call succeeded" in page, "Hello" in page, "Time to first token" in page) == (True, True, True)
    [request] = script.received
    assert request.body.get("max_tokens") == 16 or request.body.get("max_completion_tokens") == 16
    with scope.every_team():
        line = AuditEvent.objects.get(action="model.tested", target=str(scripted.pk))
    assert (line.after["model"], line.after["error"]) == (scripted.name, "")


@pytest.mark.slow
def test_a_failed_test_call_shows_the_error_without_the_key(
    admin: Client, scripted: Model, script: Script, server: Upstream
) -> None:
    script.then(refusal(400, "No such thing."))
    assert "No such thing." in text(admin.post(f"/admin/models/{scripted.pk}/test/"))
    nowhere = Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=server)
    page = text(admin.post(f"/admin/models/{nowhere.pk}/test/"))
    assert ("Call failed" in page, "could not be reached" in page, SECRET in page) == (True, True, False)


def test_only_operators_may_test_models(
    lead: Client, platform_auditor: Client, operator: Client, scripted: Model
) -> None:
    urls = (f"/admin/models/{scripted.pk}/test/", f"/admin/upstreams/{scripted.upstream_id}/models/")
    for client in (lead, platform_auditor):
        assert [client.post(url).status_code for url in urls] == [403, 403]
    assert operator.get(urls[0]).status_code == 302
    assert operator.post("/admin/models/987654321/test/").status_code == 404


def test_a_model_listed_by_an_upstream_is_added(operator: Client, server: Upstream) -> None:
    url = f"/admin/upstreams/{server.pk}/models/"
    page = text(operator.get(url))
    assert ("could not be reached" in page, SECRET in page) == (True, False)
    name = f"found-{uuid.uuid4().hex}"
    assert "is routed to" in text(operator.post(url, {"name": name}, follow=True))
    assert Model.objects.get(name=name).upstream_id == server.pk
    with scope.every_team():
        assert AuditEvent.objects.filter(action="model.created", after__name=name).count() == 1


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_an_operator_may_not_change_key_or_address_of_an_upstream(operator: Client, server: Upstream) -> None:
    url = f"{UPSTREAMS}{server.pk}/change/"
    form = {"name": f"{server.name} 2", "address": "http://127.0.0.1:8/v1", "wire_api": "responses"}
    assert operator.post(url, {**form, "new_api_key": "mine", "forget_api_key": "on"}).status_code == 302
    kept = Upstream.objects.get(pk=server.pk)
    assert (kept.name, kept.wire_api) == (form["name"], "responses")
    assert (kept.api_key, kept.base_url) == (SECRET, server.base_url)
    assert "You do not have permission" in text(operator.get(url))


def test_an_operator_may_add_an_upstream_but_not_its_key(operator: Client) -> None:
    name = f"up {uuid.uuid4().hex}"
    form = {"name": name, "address": "http://127.0.0.1:9/v1", "wire_api": "responses", "new_api_key": "mine"}
    assert operator.post(f"{UPSTREAMS}add/", form).status_code == 302
    made = Upstream.objects.get(name=name)
    assert made.api_key == ""
    made.delete()


def test_an_operator_may_not_set_secrets_of_connectors_and_search_engines(operator: Client) -> None:
    name = uuid.uuid4().hex
    made = Connector.objects.create(name=name, title="t", url="https://a.example.com/mcp", authorization=SECRET)
    engine = SearchEngine.objects.create(name=name, kind="tavily", api_key=SECRET)
    inline = {"TOTAL_FORMS": "0", "INITIAL_FORMS": "0"}
    forms = {
        f"/admin/tenants/connector/{made.pk}/change/": {
            "name": name, "title": "u", "url": "https://b.example.com/mcp", "new_authorization": "mine",
            **{f"connectorvisibility_set-{key}": value for key, value in inline.items()},
        },
        f"/admin/tenants/searchengine/{engine.pk}/change/": {
            "name": name, "kind": "brave", "base_url": "https://b.example.com", "new_api_key": "mine",
            **{f"searchenginevisibility_set-{key}": value for key, value in inline.items()},
        },
    }  # fmt: skip
    assert [operator.post(url, form).status_code for url, form in forms.items()] == [302, 302]
    made.refresh_from_db()
    engine.refresh_from_db()
    assert (made.title, made.url, made.authorization) == ("u", "https://a.example.com/mcp", SECRET)
    assert (engine.kind, engine.base_url, engine.api_key) == ("brave", "", SECRET)
    made.delete()
    engine.delete()


def test_only_leads_may_set_the_hook_secret(operator: Client, lead: Client, caller: Caller) -> None:
    with scope.every_team():
        Guardrail.objects.create(team=caller.team, hook_url="https://a.example.com/x", hook_secret=SECRET)
    url = f"/admin/tenants/guardrail/{caller.team.pk}/change/"
    form = {"input_checker": "", "input_action": "block", "output_checker": "", "output_action": "block"}
    form |= {"hook_url": "https://b.example.com/x", "new_hook_secret": "mine", "fails_open": "on"}
    kept = []
    for client in (operator, lead):
        assert client.post(url, form).status_code == 302
        with scope.every_team():
            row = Guardrail.objects.get(pk=caller.team.pk)
        kept.append((row.fails_open, row.hook_url, row.hook_secret))
    assert kept == [(True, "https://a.example.com/x", SECRET), (True, "https://b.example.com/x", "mine")]


def test_pages_of_a_model_need_no_query_for_each_team(
    admin: Client, server: Upstream, make_caller: MakeCaller, count_queries: CountQueries
) -> None:
    model = Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=server)
    teams = [make_caller().team for _ in range(5)]
    with scope.every_team():
        model.teams.add(teams[0])
    pages = [f"{MODELS}{model.pk}/change/", f"{MODELS}{model.pk}/delete/", f"{UPSTREAMS}{server.pk}/delete/"]
    numbers = [count_queries(admin, page) for page in pages]
    with scope.every_team():
        model.teams.add(*teams)
    assert [count_queries(admin, page) for page in pages] == numbers
    for page in pages:
        shown = text(admin.get(page))
        assert all(team.name in shown for team in teams)

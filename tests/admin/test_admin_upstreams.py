"""Upstreams with write-only keys, models and their capabilities."""

import re
import uuid
from collections.abc import Iterator
from dataclasses import fields
from datetime import date
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from routing.admin.capabilities import capability_labels
from tenants import directory, scope
from tenants.capabilities import Capabilities
from tenants.models import AuditEvent, Model, ModelVisibility, Upstream
from tests.admin.rows import text
from tests.support.api import Caller, MakeCaller
from tests.support.rows import every_row_with

SECRET = "upstream-secret-8d1f"
LIST = "/admin/tenants/upstream/"
NO_IMAGES = '{"vision": false}'
# Form of a model with default capabilities.
PLAIN = {
    "enabled": "on",
    "vision": "on",
    "inline_images": "on",
    "forced_tool_choice": "on",
    "logprobs": "on",
    "raw_reasoning": "on",
    "structured_output": "checked",
    "priority": "0",
    "weight": "1",
    "serves": "all",
    "modelvisibility_set-TOTAL_FORMS": "0",
    "modelvisibility_set-INITIAL_FORMS": "0",
    "price_entries-TOTAL_FORMS": "0",
    "price_entries-INITIAL_FORMS": "0",
}


@pytest.fixture
def upstream(database: None) -> Iterator[Upstream]:
    """An upstream with a key. Removed afterwards, because upstreams are shared by all teams and so by all tests."""
    made = Upstream.objects.create(name=f"up {uuid.uuid4().hex}", base_url="http://127.0.0.1:9/v1", api_key=SECRET)
    yield made
    with scope.every_team():
        Upstream.objects.filter(pk=made.pk).update(api_key="")
        Upstream.objects.filter(pk=made.pk).delete()


def page_url(upstream: Upstream) -> str:
    """Return the URL of the page of an upstream."""
    return f"{LIST}{upstream.pk}/change/"


def save(client: Client, upstream: Upstream, **changed: Any) -> None:
    """Save the form of an upstream."""
    form = {"name": upstream.name, "address": upstream.base_url, "wire_api": upstream.wire_api, **changed}
    answer = client.post(page_url(upstream), form)
    assert answer.status_code == 302


def stored_key(upstream: Upstream) -> str:
    """Return the decrypted key, as the inference client gets it."""
    return Upstream.objects.get(pk=upstream.pk).api_key


@pytest.mark.slow
def test_credentials_in_the_url_are_stored_as_the_secret(admin: Client, upstream: Upstream) -> None:
    save(admin, upstream, address="http://robot:sesame-31@127.0.0.1:9/v1")
    upstream.refresh_from_db()
    basic = "Basic cm9ib3Q6c2VzYW1lLTMx"
    assert (upstream.base_url, stored_key(upstream)) == ("http://127.0.0.1:9/v1", basic)
    assert every_row_with("sesame-31", basic) == []
    with scope.every_team():
        event = AuditEvent.objects.filter(target=upstream.pk).latest("occurred_at")
    assert event.after["new_api_key"] == "•••"
    assert "sesame-31" not in text(admin.get(LIST)) + text(admin.get(page_url(upstream)))


def test_credentials_in_the_url_beside_a_key_are_refused(admin: Client, upstream: Upstream) -> None:
    form = {"name": upstream.name, "address": "http://robot:sesame-32@127.0.0.1:9/v1", "wire_api": upstream.wire_api}
    assert "either a key or" in text(admin.post(page_url(upstream), {**form, "new_api_key": "sk-other"}))
    assert stored_key(upstream) == SECRET


def test_an_operator_may_not_enter_credentials_in_the_url(operator: Client, upstream: Upstream) -> None:
    Upstream.objects.filter(pk=upstream.pk).update(api_key="")
    form = {"name": upstream.name, "address": "http://robot:sesame-33@127.0.0.1:9/v1", "wire_api": upstream.wire_api}
    assert "permission to enter a user name" in text(operator.post(page_url(upstream), form))
    assert stored_key(upstream) == ""


@pytest.mark.slow
def test_the_key_is_never_shown(admin: Client, upstream: Upstream) -> None:
    pages = [text(admin.get(url)) for url in (LIST, page_url(upstream), "/admin/tenants/model/")]
    assert [SECRET in page for page in pages] == [False] * 3
    assert "A key is set. Leave empty to keep it." in pages[1]


def test_an_empty_field_keeps_the_key(admin: Client, upstream: Upstream) -> None:
    save(admin, upstream, name=f"{upstream.name} renamed", new_api_key="")
    assert stored_key(upstream) == SECRET
    assert Upstream.objects.get(pk=upstream.pk).name.endswith("renamed")


def test_a_new_key_replaces_the_old_one_and_is_encrypted(admin: Client, upstream: Upstream) -> None:
    save(admin, upstream, new_api_key="another-secret")
    assert stored_key(upstream) == "another-secret"
    with connection.cursor() as cursor:
        cursor.execute("SELECT api_key FROM tenants_upstream WHERE id = %s", [upstream.pk])
        assert "another-secret" not in cursor.fetchone()[0]


def test_a_key_can_be_removed(admin: Client, upstream: Upstream) -> None:
    save(admin, upstream, forget_api_key="on")
    assert stored_key(upstream) == ""
    assert "forget_api_key" not in text(admin.get(page_url(upstream)))


@pytest.mark.slow
def test_pages_open_when_the_key_cannot_be_decrypted(admin: Client, upstream: Upstream) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenants_upstream SET api_key = 'garbage' WHERE id = %s", [upstream.pk])
    Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=upstream)
    urls = (LIST, page_url(upstream), "/admin/tenants/model/", "/admin/tenants/model/add/")
    assert [admin.get(url).status_code for url in urls] == [200] * 4


@pytest.mark.parametrize("url", ["http://ollama:11434/v1", "https://api.openai.com/v1/", "http://[::1]:8000/v1"])
def test_valid_base_urls_are_accepted(url: str, admin: Client, upstream: Upstream) -> None:
    save(admin, upstream, address=url)
    assert Upstream.objects.get(pk=upstream.pk).base_url == url.rstrip("/")


@pytest.mark.parametrize("url", ["", "ftp://host/v1", "javascript:alert(1)", "http://host/v1?key=1", "//host/v1"])
def test_invalid_base_urls_are_rejected(url: str, admin: Client, upstream: Upstream) -> None:
    answer = admin.post(page_url(upstream), {"name": upstream.name, "address": url})
    assert answer.status_code == 200
    assert Upstream.objects.get(pk=upstream.pk).base_url == "http://127.0.0.1:9/v1"


def test_only_one_upstream_is_the_default(admin: Client, upstream: Upstream) -> None:
    before = list(Upstream.objects.filter(is_default=True).values_list("pk", flat=True))
    try:
        save(admin, upstream, is_default="on")
        assert list(Upstream.objects.filter(is_default=True)) == [upstream]
    finally:
        Upstream.objects.filter(pk__in=before).update(is_default=True)


def test_a_model_is_visible_to_the_chosen_teams(
    admin: Client, upstream: Upstream, caller: Caller, make_caller: MakeCaller
) -> None:
    name = f"m {uuid.uuid4().hex}"
    inline = {"modelvisibility_set-TOTAL_FORMS": "1", "modelvisibility_set-INITIAL_FORMS": "0"}
    form = {**PLAIN, "name": name, "upstream": upstream.pk, "upstream_model": "real", **inline}
    answer = admin.post("/admin/tenants/model/add/", {**form, "modelvisibility_set-0-team": caller.team.pk})
    assert answer.status_code == 302
    with scope.every_team():
        assert ModelVisibility.objects.get(model__name=name).team == caller.team
    visible = [directory.principal(who.secret) for who in (caller, make_caller())]
    assert [name in [model["id"] for model in directory.list_models(who)] for who in visible] == [True, False]


LIMITED = {
    "requests_per_minute": "60",
    "tokens_per_minute": "",
    "concurrent_requests": "4",
    "only_metadata": '{"tier": "gold"}',
}


def test_limits_and_restrictions_are_saved(admin: Client, upstream: Upstream, caller: Caller) -> None:
    name = f"m {uuid.uuid4().hex}"
    form = {**PLAIN, **LIMITED, "name": name, "upstream": upstream.pk, "only_keys": f" {caller.key.pk}, "}
    assert admin.post("/admin/tenants/model/add/", form).status_code == 302
    row = Model.objects.get(name=name)
    assert (row.requests_per_minute, row.tokens_per_minute, row.concurrent_requests) == (60, None, 4)
    assert row.only_metadata == {"tier": "gold"}
    with scope.every_team():
        assert list(row.keys.values_list("pk", flat=True)) == [caller.key.pk]
    page = f"/admin/tenants/model/{row.pk}/change/"
    assert f'value="{caller.key.pk}"' in text(admin.get(page))
    assert admin.post(page, {**form, "only_keys": "", "only_metadata": ""}).status_code == 302
    with scope.every_team():
        assert not row.keys.exists()
    assert Model.objects.get(pk=row.pk).only_metadata == {}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("only_keys", "key_unknown", "Unknown API keys: key_unknown."),
        ("only_metadata", '{"tier": 1}', "Enter a JSON object of strings"),
        ("only_metadata", "[]", "Enter a JSON object of strings"),
        ("requests_per_minute", "0", "greater than or equal to 1"),
    ],
)
def test_invalid_limits_and_restrictions_are_rejected(
    admin: Client, upstream: Upstream, field: str, value: str, message: str
) -> None:
    form = {**PLAIN, **LIMITED, "name": f"m {uuid.uuid4().hex}", "upstream": upstream.pk, field: value}
    answer = admin.post("/admin/tenants/model/add/", form)
    assert (answer.status_code, message in text(answer)) == (200, True)
    assert not Model.objects.filter(upstream=upstream).exists()


@pytest.mark.slow
def test_query_count_of_models_is_independent_of_the_rows(
    admin: Client, upstream: Upstream, count_queries: Any
) -> None:
    Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=upstream)
    few = count_queries(admin, "/admin/tenants/model/")
    for _ in range(5):
        Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=upstream)
    assert count_queries(admin, "/admin/tenants/model/") == few


@pytest.fixture
def model(upstream: Upstream) -> Model:
    """A model with default capabilities; removed with its upstream."""
    return Model.objects.create(name=f"m {uuid.uuid4().hex}", upstream=upstream)


def save_model(client: Client, model: Model, **changed: Any) -> Any:
    """Save the form of a model; None leaves a box unchecked."""
    form = {**PLAIN, "name": model.name, "upstream": model.upstream_id, **changed}
    sent = {name: value for name, value in form.items() if value is not None}
    return client.post(f"/admin/tenants/model/{model.pk}/change/", sent)


def stored_capabilities(model: Model) -> Capabilities:
    """Return the stored capabilities of a model."""
    return Model.objects.get(pk=model.pk).capabilities()


def test_the_api_of_an_upstream_can_be_changed(admin: Client, upstream: Upstream) -> None:
    save(admin, upstream, wire_api="responses")
    assert Upstream.objects.get(pk=upstream.pk).wire_api == "responses"


def test_every_capability_is_on_the_form_with_its_effect(admin: Client, model: Model) -> None:
    page = text(admin.get(f"/admin/tenants/model/{model.pk}/change/"))
    assert [field.name for field in fields(Capabilities) if f'name="{field.name}"' not in page] == []
    assert "requests for them are rejected" in page


def test_the_default_form_sets_no_capabilities(admin: Client, model: Model) -> None:
    assert save_model(admin, model).status_code == 302
    assert stored_capabilities(model) == Capabilities()
    assert capability_labels(Model.objects.get(pk=model.pk)) == []


def test_the_place_of_a_target_is_saved_and_listed(admin: Client, model: Model) -> None:
    other = f"m {uuid.uuid4().hex}"
    assert save_model(admin, model, priority="-1", weight="3", fallback_for=other).status_code == 302
    saved = Model.objects.get(pk=model.pk)
    assert (saved.priority, saved.weight, saved.fallback_for) == (-1, 3, other)
    page = text(admin.get("/admin/tenants/model/", {"q": model.name}))
    assert ("-1, weight 3" in page, f"fallback for {other}" in page) == (True, True)


def test_the_shutdown_date_is_saved_and_listed(admin: Client, model: Model) -> None:
    assert save_model(admin, model, shutdown_date="2027-03-31").status_code == 302
    assert Model.objects.get(pk=model.pk).shutdown_date == date(2027, 3, 31)
    assert "2027-03-31" in text(admin.get("/admin/tenants/model/", {"q": model.name}))


def test_a_model_cannot_be_saved_as_its_own_fallback(admin: Client, model: Model) -> None:
    answer = save_model(admin, model, fallback_for=model.name)
    assert "A model cannot be the fallback of itself" in text(answer)


def test_capabilities_are_saved_shown_and_audited(admin: Client, model: Model) -> None:
    efforts = ["low", "high"]
    assert save_model(admin, model, vision=None, reasoning_efforts=efforts, context_window="32768").status_code == 302
    assert stored_capabilities(model) == Capabilities(
        vision=False, reasoning_efforts=("low", "high"), context_window=32768
    )
    assert "no images" in text(admin.get("/admin/tenants/model/", {"q": model.name}))
    with scope.every_team():
        line = AuditEvent.objects.filter(target=str(model.pk), action="model.updated").get()
    assert line.after == {"vision": False, "reasoning_efforts": efforts, "context_window": 32768}


def test_a_model_without_selected_efforts_accepts_any_effort(admin: Client, model: Model) -> None:
    save_model(admin, model, reasoning_efforts=["low"])
    save_model(admin, model)
    assert stored_capabilities(model).reasoning_efforts is None


@pytest.mark.parametrize(("field", "value"), [("structured_output", "guessed"), ("max_images", "-1")])
def test_invalid_capabilities_are_rejected(admin: Client, model: Model, field: str, value: str) -> None:
    assert save_model(admin, model, **{field: value}).status_code == 200
    assert stored_capabilities(model) == Capabilities()


def add_by_command(upstream: Upstream, *options: str) -> None:
    """Run `manage.py add_upstream` for this upstream."""
    given = ("--name", upstream.name, "--base-url", upstream.base_url, *options)
    call_command("add_upstream", *given, stdout=StringIO())


def test_the_command_sets_capabilities(model: Model) -> None:
    capabilities = '{"extra_sampling": true, "reasoning_efforts": ["low"], "context_window": 4096}'
    add_by_command(model.upstream, "--models", model.name, "--wire-api", "responses", "--capabilities", capabilities)
    assert stored_capabilities(model) == Capabilities(
        extra_sampling=True, reasoning_efforts=("low",), context_window=4096
    )
    assert Upstream.objects.get(pk=model.upstream_id).wire_api == "responses"


def test_the_command_keeps_unspecified_capabilities(model: Model) -> None:
    add_by_command(model.upstream, "--models", model.name, "--wire-api", "responses", "--capabilities", NO_IMAGES)
    add_by_command(model.upstream, "--models", model.name)
    assert stored_capabilities(model) == Capabilities(vision=False)
    assert Upstream.objects.get(pk=model.upstream_id).wire_api == "responses"


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [
        ("nonsense", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"visions": true}', "Did you mean 'vision'?"),
        ('{"vision": "perhaps"}', "vision"),
        ('{"structured_output": "guessed"}', "structured_output"),
        ('{"context_window": -1}', "context_window"),
        ('{"reasoning_efforts": "low"}', "--capabilities"),
    ],
)
def test_the_command_rejects_invalid_capabilities(model: Model, capabilities: str, message: str) -> None:
    with pytest.raises(CommandError, match=re.escape(message)):
        add_by_command(model.upstream, "--models", model.name, "--capabilities", capabilities)
    assert stored_capabilities(model) == Capabilities()


def test_capabilities_require_models_on_the_command_line(upstream: Upstream) -> None:
    with pytest.raises(CommandError, match="requires --models"):
        add_by_command(upstream, "--capabilities", NO_IMAGES)

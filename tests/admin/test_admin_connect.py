"""The guided page that connects an upstream: its steps, what it refuses, and that the key is in no answer."""

import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from routing.admin.guided.forms import MAX_CHOSEN
from tenants import scope
from tenants.models import AuditEvent, Model, Upstream
from tests.admin.rows import text
from tests.support.chunks import calls
from tests.support.chunks import text as answer_of
from tests.support.model_server import ModelServer, model_server
from tests.support.upstream import Script, ScriptedUpstream, refusal, stream

PAGE = "/admin/upstreams/connect/"
KEY = "sk-guided-secret-0123456789"
NAMES = ("Qwen/Qwen3-8B", "Qwen/<b>bold</b>")
CARD = {"role": "own", "priority": "0", "weight": "1", "tools": "unknown", "images": "unknown", "reasoning": "unknown"}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A server that lists two models."""
    rows = [{"id": name, "owned_by": "vllm", "max_model_len": 40960} for name in NAMES]
    with model_server({"/v1/models": {"object": "list", "data": rows}}) as running:
        yield running


@pytest.fixture
def name(database: None) -> Iterator[str]:
    """The beginning of names of upstreams that are removed after the test."""
    made = f"guided-{uuid.uuid4().hex[:12]}"
    yield made
    with scope.every_team():
        Upstream.objects.filter(name__startswith=made).delete()


def step(client: Client, kind: str, address: str, *cards: dict[str, Any], **more: Any) -> Any:
    """Send the form for a step."""
    numbered = {f"m{number}-{field}": value for number, card in enumerate(cards) for field, value in card.items()}
    form = {"name": "", "address": address, "new_api_key": KEY, "api": "detect", "cards": len(cards)}
    return client.post(PAGE, {"step": kind, **form, **numbered, **more})


def card(model: str, **values: Any) -> dict[str, Any]:
    """Return the fields of a chosen model."""
    return {**CARD, "upstream_model": model, "name": model, "price": "none", **values}


def test_the_page_is_the_add_button_of_upstreams(operator: Client) -> None:
    answer = operator.get("/admin/tenants/upstream/add/")
    assert (answer.status_code, answer["Location"]) == (302, PAGE)
    assert "Base URL" in text(operator.get("/admin/tenants/upstream/add/?plain=1"))
    assert operator.get("/admin/tenants/upstream/add/?_popup=1").status_code == 200
    assert "Well-known server" in text(operator.get(PAGE))
    assert PAGE in text(operator.get("/admin/routes/"))


def test_other_roles_are_refused(lead: Client, platform_auditor: Client, server: ModelServer) -> None:
    for client in (lead, platform_auditor):
        assert client.get(PAGE).status_code == 403
        assert step(client, "test", server.base_url).status_code == 403
        assert client.get("/admin/upstreams/up_1/connected/").status_code == 403
    assert server.paths == []


def test_a_test_lists_the_models_without_saving_anything(admin: Client, server: ModelServer) -> None:
    count = Upstream.objects.count()
    shown = text(step(admin, "test", server.base_url))
    assert "lists 2 models" in shown
    assert "API: Chat completions" in shown
    assert 'name="detected_api" value="chat_completions"' in shown
    assert "40,960 tokens" in shown
    assert ("Qwen/&lt;b&gt;bold&lt;/b&gt;" in shown, "<b>bold</b>" in shown) == (True, False)
    assert KEY not in shown
    assert Upstream.objects.count() == count


def test_a_failed_test_shows_the_words_of_the_server(admin: Client) -> None:
    with model_server({}) as empty:
        shown = text(step(admin, "test", empty.base_url))
    assert "Test failed." in shown
    assert "HTTP 404" in shown
    assert "not found" in shown
    assert "could not be reached" in text(step(admin, "test", "http://127.0.0.1:9/v1"))


def test_words_of_the_server_are_escaped_and_without_the_key(admin: Client) -> None:
    error = {"error": {"message": f"<script>alert(1)</script> The key {KEY} is blocked."}}
    with model_server({"/v1/models": error}) as blocked:
        shown = text(step(admin, "test", blocked.base_url))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert (KEY in shown, "<script>alert" in shown) == (False, False)


def test_an_address_without_v1_is_completed(admin: Client, server: ModelServer) -> None:
    root = server.base_url.removesuffix("/v1")
    assert f'data-connect-address="{server.base_url}"' in text(step(admin, "test", root))


@pytest.mark.parametrize("address", ["", "ftp://host/v1", "javascript:alert(1)", "http://host/v1?key=1"])
def test_an_invalid_address_is_not_called(address: str, admin: Client) -> None:
    for kind in ("test", "choose", "detect", "save"):
        shown = text(step(admin, kind, address, models=["m"]))
        assert "Base URL: " in shown
        assert "Test passed" not in shown


def test_chosen_models_have_what_the_server_says_and_keep_what_was_entered(admin: Client, server: ModelServer) -> None:
    entered = card(NAMES[0], name="qwen", context_window="8192")
    shown = text(step(admin, "choose", server.base_url, entered, models=[*NAMES], others="own-name, "))
    assert re.findall(r'name="m\d-context_window" value="(\d+)"', shown) == ["8192", "40960"]
    assert re.findall(r'name="m\d-name" value="([^"]+)"', shown) == ["qwen", "Qwen/&lt;b&gt;bold&lt;/b&gt;", "own-name"]
    assert KEY not in shown
    assert "Select a model" in text(step(admin, "choose", server.base_url))
    assert f"at most {MAX_CHOSEN}" in text(step(admin, "choose", server.base_url, others=",".join(map(str, range(60)))))


def test_models_with_new_names_are_selected_unless_there_are_too_many(admin: Client, name: str) -> None:
    def selected(*names: str) -> list[str]:
        with model_server({"/v1/models": {"object": "list", "data": [{"id": model} for model in names]}}) as listing:
            shown = text(step(admin, "test", listing.base_url))
        assert f"of {len(names)} models selected" in shown
        return re.findall(r'name="models" value="([^"]+)" checked', shown)

    step(admin, "save", "http://127.0.0.1:9/v1", card("m", name=name), name=name)
    many = [f"{name}-{number:02}" for number in range(MAX_CHOSEN)]
    assert selected(name, *many) == many
    assert selected(name, *many, f"{name}-more") == []


def test_connect_saves_what_the_server_says(admin: Client, name: str) -> None:
    rows = [{"id": f"{name}-{size}", "max_model_len": 40960} for size in ("large", "small")]
    with model_server({"/v1/models": {"object": "list", "data": rows}}) as listing:
        answer = step(
            admin, "connect", listing.base_url, models=[rows[0]["id"]], others=f"{name}-unlisted", name=name,
            detected_api="responses",
        )  # fmt: skip
    upstream = Upstream.objects.get(name=name)
    assert answer["HX-Redirect"] == f"/admin/upstreams/{upstream.pk}/connected/"
    assert (upstream.api_key, upstream.wire_api) == (KEY, "responses")
    saved = Model.objects.filter(upstream=upstream).order_by("name")
    assert [(row.name, row.context_window, bool(row.prices())) for row in saved] == [
        (f"{name}-large", 40960, False),
        (f"{name}-unlisted", None, False),
    ]


def test_connect_shows_what_has_to_be_corrected(admin: Client, name: str, server: ModelServer) -> None:
    step(admin, "save", server.base_url, card("m", name=name), name=name)
    shown = text(step(admin, "connect", server.base_url, models=[name], name=f"{name}-2"))
    assert "There is a model of this name." in shown
    assert f'name="m0-name" value="{name}"' in shown
    assert "Select a model" in text(step(admin, "connect", server.base_url, name=f"{name}-2"))
    assert "Base URL: " in text(step(admin, "connect", "ftp://host/v1", models=["m"], name=f"{name}-2"))
    assert not Upstream.objects.filter(name=f"{name}-2").exists()


def test_an_upstream_without_a_name_is_named_after_its_host(admin: Client, name: str) -> None:
    address = f"http://{name}:8000/v1"
    for number in range(2):
        step(admin, "save", address, card("m", name=f"{name}-{number}"))
    saved = Upstream.objects.filter(base_url=address).order_by("created_at")
    assert [upstream.name for upstream in saved] == [f"{name}:8000", f"{name}:8000-2"]


def test_detect_fills_in_what_the_calls_have_found(admin: Client, upstream: ScriptedUpstream, script: Script) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if "tools" in body:
            return stream(*calls(get_weather="{}"))
        return refusal(400, "<i>no</i> images") if "reasoning_effort" not in body else stream(*answer_of("391"))

    script.by_request(answer)
    shown = text(step(admin, "detect", upstream.url, card(script.model, name="kept", context_window="4096")))
    selects = re.findall(r'<select name="m0-(tools|images|reasoning)".*?</select>', shown, re.DOTALL)
    assert selects == ["tools", "images", "reasoning"]
    found = dict(re.findall(r'<select name="m0-(\w+)"(?:(?!</select>).)*?value="(\w+)" selected', shown, re.DOTALL))
    assert [found[field] for field in selects] == ["yes", "no", "unknown"]
    assert ('value="kept"' in shown, 'value="4096"' in shown) == (True, True)
    assert ("&lt;i&gt;no&lt;/i&gt; images" in shown, "<i>no</i>" in shown, KEY in shown) == (True, False, False)


def test_saving_creates_everything_with_audit_rows(admin: Client, name: str, server: ModelServer) -> None:
    main, small = f"{name}-main", f"{name}-small"
    with_price = card("m1", name=main, price="entered", input_price="0.5", output_price="1.5", images="no")
    answer = step(
        admin, "save", server.base_url,
        {**with_price, "context_window": "4096", "tools": "limited"},
        card("m2", name=small, role="own", weight="7"),
        name=name, detected_api="responses",
    )  # fmt: skip
    upstream = Upstream.objects.get(name=name)
    assert answer["HX-Redirect"] == f"/admin/upstreams/{upstream.pk}/connected/"
    assert (upstream.base_url, upstream.api_key, upstream.wire_api) == (server.base_url, KEY, "responses")
    row = Model.objects.get(name=main)
    assert (row.upstream_model, row.context_window, row.vision, row.forced_tool_choice) == ("m1", 4096, False, False)
    assert [(entry.dimension, entry.amount) for entry in row.prices().entries] == [
        ("input", Decimal("0.5")), ("output", Decimal("1.5")),
    ]  # fmt: skip
    other = Model.objects.get(name=small)
    assert (other.weight, other.context_window, bool(other.prices())) == (1, None, False)
    with scope.every_team():
        lines = AuditEvent.objects.filter(target__in=[upstream.pk, str(row.pk), f"model:{row.pk}", str(other.pk)])
        actions = sorted(lines.values_list("action", flat=True))
        assert actions == ["model.created", "model.created", "prices.updated", "upstream.created"]
        assert all(line.actor.startswith("user:") and KEY not in str(line.after) for line in lines)
    page = text(admin.get(answer["HX-Redirect"]))
    assert ("Send a test request" in page, main in page, KEY in page) == (True, True, False)


def test_a_model_becomes_a_further_target_or_a_fallback(admin: Client, name: str, server: ModelServer) -> None:
    step(admin, "save", server.base_url, card("m", name=name), name=name)
    target = card("replica", role="target", existing=name, name="ignored", priority="2", weight="3")
    fallback = card("small", role="fallback", existing=name, name=f"{name}-small")
    step(admin, "save", server.base_url, target, fallback, name=f"{name}-2")
    rows = Model.objects.filter(upstream__name=f"{name}-2").order_by("upstream_model")
    assert [(row.name, row.priority, row.weight, row.fallback_for) for row in rows] == [
        (name, 2, 3, ""),
        (f"{name}-small", 0, 1, name),
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "Enter a name."),
        ({"role": "target"}, "Select a model."),
        ({"role": "fallback", "existing": "unknown"}, "Select a valid choice"),
        ({"role": "target", "weight": "-1"}, "greater than or equal to 0"),
        ({"context_window": "0"}, "greater than or equal to 1"),
        ({"price": "entered", "input_price": "1"}, "Enter a price."),
        ({"price": "entered", "input_price": "-1", "output_price": "1"}, "greater than or equal to 0"),
        ({"price": "listed"}, "Select a valid choice"),
        ({"tools": "perhaps"}, "Select a valid choice"),
        ({"upstream_model": ""}, "This field is required"),
    ],
)
def test_invalid_models_are_not_saved(
    changed: dict[str, str], message: str, admin: Client, name: str, server: ModelServer
) -> None:
    shown = text(step(admin, "save", server.base_url, card("m", name=f"{name}-m") | changed, name=name))
    assert message in shown
    assert "Correct the errors" in shown
    assert KEY not in shown
    assert not Upstream.objects.filter(name=name).exists()


def test_names_that_are_taken_are_refused_and_nothing_is_changed(admin: Client, name: str, server: ModelServer) -> None:
    step(admin, "save", server.base_url, card("m", name=name), name=name)
    again = text(step(admin, "save", "http://127.0.0.1:9/v1", card("m", name=f"{name}-2"), name=name))
    assert "already exists" in again
    assert Upstream.objects.get(name=name).base_url == server.base_url
    assert "further target of an existing model" in text(
        step(admin, "save", server.base_url, card("m", name=name), name=f"{name}-2")
    )
    twice = [card(model, role="target", existing=name) for model in ("a", "b")]
    assert "b: " in text(step(admin, "save", server.base_url, *twice, name=f"{name}-3"))
    assert not Upstream.objects.filter(name=f"{name}-3").exists()
    assert "Select a model" in text(step(admin, "save", server.base_url, name=f"{name}-4"))


def test_an_operator_connects_servers_without_a_key_only(operator: Client, name: str, server: ModelServer) -> None:
    assert "do not have permission to enter it" in text(operator.get(PAGE))
    step(operator, "save", server.base_url, card("m", name=name), name=name)
    assert Upstream.objects.get(name=name).api_key == ""
    address = server.base_url.replace("http://", "http://robot:sesame-71@")
    shown = text(step(operator, "save", address, card("m", name=f"{name}-2"), name=f"{name}-2"))
    assert "permission to enter a user name" in shown


def test_an_unknown_upstream_is_not_connected(operator: Client) -> None:
    assert operator.get("/admin/upstreams/up_unknown/connected/").status_code == 404


def test_the_published_price_is_offered_and_stored(admin: Client, name: str) -> None:
    address = "https://api.openai.com/v1"
    shown = text(step(admin, "save", address, card("gpt-4o", name="", price="listed")))
    assert "Published price" in shown
    assert "Input $2.50 per million" in shown
    step(admin, "save", address, card("gpt-4o", name=name, price="listed"), name=name)
    assert Model.objects.get(name=name).prices()


def test_the_test_request_shows_the_answer_and_its_cost(
    admin: Client, name: str, upstream: ScriptedUpstream, script: Script
) -> None:
    priced = card(script.model, name=name, price="entered", input_price="1000", output_price="1000")
    step(admin, "save", upstream.url, priced, name=name)
    script.say("Hello")
    row = Model.objects.get(name=name)
    shown = text(admin.post(f"/admin/models/{row.pk}/test/", headers={"HX-Request": "true"}))
    assert ("Hello" in shown, "7 / 3" in shown, "$0.01" in shown, "<html" in shown) == (True, True, True, False)

"""`add_upstream` and `routes`: several upstreams for one model by command."""

import json
import time
import uuid
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

from core.work.notifications import blocking_client
from launcher.address import any_free_port
from tenants import scope, services
from tenants.models import Model, Upstream
from tests.support.model_server import model_server, models

URL = "http://127.0.0.1:9/v1"
REFUSING_REDIS = "redis://127.0.0.1:9/0"


@pytest.fixture
def name(database: None) -> Iterator[str]:
    """A model name, and the beginning of the names of upstreams that are removed after the test."""
    made = f"model-{uuid.uuid4().hex[:12]}"
    yield made
    with scope.every_team():
        Upstream.objects.filter(name__startswith=made).delete()


def add(name: str, upstream: str, *args: str) -> None:
    """Run `add_upstream`."""
    command = ["--name", f"{name}-{upstream}", "--base-url", URL, "--models", name, *args]
    call_command("add_upstream", *command, stdout=StringIO())


def listed(name: str) -> dict[str, Any]:
    """Return the entry of a model in the output of `routes --json`."""
    out = StringIO()
    call_command("routes", "--json", stdout=out)
    entries: list[dict[str, Any]] = json.loads(out.getvalue())
    return next(entry for entry in entries if entry["model"] == name)


def test_another_upstream_for_a_model_is_another_target(name: str) -> None:
    add(name, "late", "--priority", "2")
    add(name, "early", "--priority", "-1", "--weight", "3")
    add(name, "middle")
    shown = [(target["upstream"], target["priority"], target["weight"]) for target in listed(name)["targets"]]
    assert shown == [(f"{name}-early", -1, 3), (f"{name}-middle", 0, 1), (f"{name}-late", 2, 1)]


def test_options_that_are_not_given_keep_their_values(name: str) -> None:
    add(name, "a", "--priority", "2", "--weight", "0")
    add(name, "a")
    (target,) = listed(name)["targets"]
    assert (target["priority"], target["weight"], target["enabled"], target["teams"]) == (2, 0, True, [])


def test_a_fallback_model_is_listed_with_its_model(name: str) -> None:
    add(name, "a")
    small = f"{name}-small"
    services.add_upstream(name=f"{name}-b", base_url=URL, models=[small], place={"fallback_for": name})
    assert listed(name)["fallback_models"] == [small]
    out = StringIO()
    call_command("routes", stdout=out)
    assert f"{name}\n  {name}-a → {name} (priority 0, weight 1)\n  fallback: {small}\n" in out.getvalue()


def test_an_upstream_can_serve_a_model_under_another_name(name: str) -> None:
    add(name, "a")
    Model.objects.filter(name=name).update(upstream_model="theirs", enabled=False)
    (target,) = listed(name)["targets"]
    assert (target["upstream_model"], target["enabled"]) == ("theirs", False)


def shared(name: str, **state: Any) -> None:
    """Store the state of the target that `add` has made, as a process does."""
    upstream = Upstream.objects.get(name=f"{name}-a")
    document = {"upstream": upstream.name, "model": name, "openings": 1, "reason": "unreachable", **state}
    with blocking_client(settings.REDIS_URL) as client:
        client.hset("platform:targets", f"{upstream.pk}:{name}", json.dumps({"changed_at": time.time(), **document}))


def test_the_states_of_targets_are_listed(name: str) -> None:
    add(name, "a")

    def shown() -> list[tuple[str, int | None]]:
        return [(target["state"], target["open_until"]) for target in listed(name)["targets"]]

    assert shown() == [("closed", None)]
    until = int(time.time()) + 100
    shared(name, open_until=until)
    assert shown() == [("open", until)]
    out = StringIO()
    call_command("routes", stdout=out)
    assert f"{name}-a → {name} (priority 0, weight 1, open)" in out.getvalue()
    shared(name, open_until=until - 200)
    assert shown() == [("half_open", None)]


def test_the_states_of_targets_are_unknown_without_redis(name: str, settings: Any) -> None:
    add(name, "a")
    settings.REDIS_URL = REFUSING_REDIS
    (target,) = listed(name)["targets"]
    assert (target["state"], target["open_until"]) == (None, None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--weight", "-1"], "not an integer from 0 to 32767"),
        (["--priority", "first"], "not an integer"),
        (["--models", "", "--weight", "2"], "--weight requires --models"),
    ],
)
def test_invalid_options_are_refused(name: str, args: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        add(name, "a", *args)


def test_a_model_is_not_its_own_fallback(name: str) -> None:
    with pytest.raises(CommandError, match="--fallback-for: A model cannot be the fallback of itself"):
        add(name, "a", "--fallback-for", name)
    assert not Upstream.objects.filter(name=f"{name}-a").exists()


def test_the_migration_keeps_the_first_upstream_of_each_model_first(name: str) -> None:
    for upstream in ("oldest", "default", "newest"):
        services.add_upstream(name=f"{name}-{upstream}", base_url=URL, models=[name])
    rows = Model.objects.filter(name=name)
    Upstream.objects.filter(name=f"{name}-default").update(is_default=True)
    migration = import_module("tenants.migrations.0007_model_targets")
    with scope.every_team():
        migration.keep_order(apps, SimpleNamespace(connection=connection))
    found = dict(rows.values_list("upstream__name", "priority"))
    assert found == {f"{name}-default": 0, f"{name}-oldest": 1, f"{name}-newest": 2}


def output_of(name: str, *args: str, base_url: str) -> str:
    """Add an upstream and return what the command prints."""
    out = StringIO()
    call_command("add_upstream", "--name", f"{name}-a", "--base-url", base_url, "--models", name, *args, stdout=out)
    return out.getvalue()


def test_the_command_says_which_models_the_server_lists(name: str) -> None:
    with model_server({"/v1/models": models(name, "other", owner="me")}) as server:
        printed = output_of(name, base_url=server.base_url)
        document = json.loads(output_of(name, "--json", base_url=server.base_url))
    assert f"lists 2 models: {', '.join(sorted((name, 'other')))}" in printed
    assert "does not list" not in printed
    assert document["models"] == [name]
    assert (sorted(document["test"]["models"]), document["test"]["missing"]) == (sorted((name, "other")), [])


def test_the_command_names_models_that_the_server_does_not_list(name: str) -> None:
    with model_server({"/v1/models": models("other", owner="me")}) as server:
        assert f"It does not list: {name}" in output_of(name, base_url=server.base_url)


@pytest.mark.parametrize("pages", [None, {}, {"/v1/models": {"data": "none"}}], ids=["no server", "404", "no list"])
def test_a_server_that_fails_its_test_is_saved(name: str, pages: dict[str, Any] | None) -> None:
    if pages is None:
        printed = output_of(name, base_url=f"http://127.0.0.1:{any_free_port()}/v1")
    else:
        with model_server(pages) as server:
            printed = output_of(name, base_url=server.base_url)
    assert "Test failed: " in printed
    assert Upstream.objects.filter(name=f"{name}-a").exists()


def test_the_server_is_not_asked_without_a_test(name: str) -> None:
    with model_server({"/v1/models": models(name, owner="me")}) as server:
        printed = output_of(name, "--no-test", base_url=server.base_url)
        document = json.loads(output_of(name, "--no-test", "--json", base_url=server.base_url))
    assert (server.paths, document["test"]) == ([], None)
    assert printed == f"{name}-a: {server.base_url}\n"

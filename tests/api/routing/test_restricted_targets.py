"""Targets that take only the requests of some API keys, with some metadata or of a service tier."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenants import scope
from tenants.models import Model, Upstream
from tests.support.api import Api, MakeApi, ok
from tests.support.background import ended, text_of
from tests.support.chunks import text
from tests.support.targets import PATHS, Targets, post
from tests.support.upstream import Script, stream, whole
from tests.support.workers import WorkerProcess

HELLO = stream(*text("Hello"))
WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
GOLD = {"tier": "gold"}
METADATA_PATHS = ("/responses", "/chat/completions")

endpoints = pytest.mark.parametrize("path", PATHS)
both_forms = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def counts(*scripts: Script) -> list[int]:
    """Return the numbers of requests."""
    return [len(script.received) for script in scripts]


@pytest.fixture
def colleague(api: Api, make_api: MakeApi) -> Api:
    """The client of another key of the same team."""
    return make_api(team=api.caller.team)


def is_unknown(api: Api, path: str, targets: Targets, **more: Any) -> bool:
    """Return whether the model does not exist for a request."""
    answer = post(api, path, targets.name, **more)
    # Anthropic's status is another one.
    has_status = answer.status_code == (404 if path == "/messages" else 400)
    return has_status and f"The requested model '{targets.name}' does not exist." in answer.text


def is_listed(api: Api, name: str) -> bool:
    """Return whether the model is in the list, and can be retrieved."""
    in_list = name in [model["id"] for model in ok(api.get("/models"))["data"]]
    assert (api.get(f"/models/{name}").status_code == 200) == in_list
    return in_list


@both_forms
@endpoints
def test_requests_of_a_key_go_to_its_target_first(
    api: Api, colleague: Api, outsider: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    shared, own = targets.add().always(HELLO), targets.add(keys=[api.caller.key]).always(HELLO)
    assert "Hello" in post(api, path, targets.name, stream=is_streamed).text
    assert counts(shared, own) == [0, 1]
    for other in (colleague, outsider):
        assert "Hello" in post(other, path, targets.name, stream=is_streamed).text
    assert counts(shared, own) == [2, 1]


@endpoints
def test_requests_of_a_key_fail_over_to_targets_for_all_keys(api: Api, targets: Targets, path: str) -> None:
    shared, own = targets.add().say("Hello"), targets.add(keys=[api.caller.key]).then(WRONG_KEY)
    ok(post(api, path, targets.name))
    assert counts(shared, own) == [1, 1]


@endpoints
def test_a_model_of_one_key_does_not_exist_for_others(
    api: Api, colleague: Api, outsider: Api, targets: Targets, path: str
) -> None:
    own = targets.add(keys=[api.caller.key]).say("Hello")
    for other in (colleague, outsider):
        assert is_unknown(other, path, targets)
    ok(post(api, path, targets.name))
    assert counts(own) == [1]


def test_a_model_of_one_key_is_not_listed_for_others(api: Api, colleague: Api, outsider: Api, targets: Targets) -> None:
    targets.add(keys=[api.caller.key])
    assert [is_listed(caller, targets.name) for caller in (api, colleague, outsider)] == [True, False, False]
    targets.add()
    assert [is_listed(caller, targets.name) for caller in (api, colleague, outsider)] == [True, True, True]


def test_a_fallback_model_does_not_replace_a_model_of_another_key(api: Api, colleague: Api, targets: Targets) -> None:
    own = targets.add(keys=[api.caller.key]).then(WRONG_KEY)
    fallback = targets.add(name=f"{targets.name}-small", fallback_for=targets.name).say("Hello")
    assert is_unknown(colleague, "/responses", targets)
    assert api.create(model=targets.name, input="Hi")["model"] == f"{targets.name}-small"
    assert counts(own, fallback) == [1, 1]


@both_forms
@pytest.mark.parametrize("path", METADATA_PATHS)
def test_requests_with_the_metadata_go_to_the_target_for_it(
    api: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    usual, gold = targets.add().always(HELLO), targets.add(only_metadata=GOLD).always(HELLO)
    options = {"store": True, "stream": is_streamed}
    assert "Hello" in post(api, path, targets.name, metadata={**GOLD, "page": "1"}, **options).text
    assert counts(usual, gold) == [0, 1]
    for metadata in ({"tier": "silver"}, {"page": "1"}, {}):
        assert "Hello" in post(api, path, targets.name, metadata=metadata, **options).text
    assert counts(usual, gold) == [3, 1]


@endpoints
def test_a_model_for_some_metadata_does_not_exist_for_requests_without_it(
    api: Api, targets: Targets, path: str
) -> None:
    gold = targets.add(only_metadata=GOLD)
    assert is_unknown(api, path, targets)
    # Other requests of the key may have the metadata.
    assert is_listed(api, targets.name)
    assert counts(gold) == [0]


def test_the_target_with_more_conditions_comes_first(api: Api, targets: Targets) -> None:
    key = targets.add(keys=[api.caller.key]).then(WRONG_KEY)
    both = targets.add(keys=[api.caller.key], only_metadata=GOLD).then(WRONG_KEY)
    usual, gold = targets.add().say("Hello"), targets.add(only_metadata=GOLD).then(WRONG_KEY)
    answer = api.create(model=targets.name, input="Hi", metadata=GOLD)
    assert text_of(answer) == ["Hello"]
    assert counts(key, both, usual, gold) == [1, 1, 1, 1]


@both_forms
@pytest.mark.parametrize("path", METADATA_PATHS)
def test_priority_requests_go_to_the_targets_for_them(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    usual, fast = targets.add().always(HELLO), targets.add(serves="priority").then(HELLO, WRONG_KEY)
    for expected in ([0, 1], [1, 2]):
        assert "Hello" in post(api, path, targets.name, service_tier="priority", stream=is_streamed).text
        assert counts(usual, fast) == expected
    for tier in ("default", "flex", "auto"):
        assert "Hello" in post(api, path, targets.name, service_tier=tier, stream=is_streamed).text
    assert counts(usual, fast) == [4, 2]


@pytest.mark.parametrize("path", METADATA_PATHS)
def test_priority_requests_are_like_others_without_a_target_for_them(api: Api, targets: Targets, path: str) -> None:
    flex, usual = targets.add(serves="flex"), targets.add().say("Hello")
    ok(post(api, path, targets.name, service_tier="priority"))
    assert counts(flex, usual) == [0, 1]


@pytest.mark.slow
def test_a_background_response_uses_the_target_of_its_key(api: Api, targets: Targets, worker: WorkerProcess) -> None:
    shared, own = targets.add(), targets.add(keys=[api.caller.key]).say("Hello")
    made = api.create(model=targets.name, input="Hi", background=True)
    assert text_of(ended(api, made["id"])) == ["Hello"]
    assert counts(shared, own) == [0, 1]


def add(targets: Targets, *options: str) -> None:
    """Change the first target with the command."""
    server = Upstream.objects.get(name=f"up-{targets.scripts[0].model}")
    given = ("--name", server.name, "--base-url", server.base_url, "--models", targets.name, "--no-test")
    call_command("add_upstream", *given, *options, stdout=StringIO())


def listed(targets: Targets) -> dict[str, Any]:
    """Return the first target as `routes --json` shows it."""
    output = StringIO()
    call_command("routes", "--json", stdout=output)
    routes = {route["model"]: route for route in json.loads(output.getvalue())}
    target: dict[str, Any] = routes[targets.name]["targets"][0]
    return target


SHOWN = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
    "only_keys",
    "only_metadata",
    "region",
    "serves",
)


def test_the_commands_set_and_show_limits_and_restrictions(api: Api, targets: Targets) -> None:
    targets.add()
    key = api.caller.key.pk
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "1000", "--concurrent-requests", "4")
    add(targets, *limits, "--only-keys", key, "--only-metadata", '{"tier": "gold"}', "--region", "Helsinki")
    assert [listed(targets)[name] for name in SHOWN] == [60, 1000, 4, [key], GOLD, "Helsinki", "all"]
    output = StringIO()
    call_command("routes", stdout=output)
    assert "at most 60 requests per minute, at most 1000 tokens per minute, at most 4 requests at once, Helsinki" in (
        output.getvalue()
    )
    # Options that are not given change nothing.
    add(targets, "--requests-per-minute", "0", "--serves", "priority")
    assert [listed(targets)[name] for name in SHOWN] == [None, 1000, 4, [key], GOLD, "Helsinki", "priority"]
    add(targets, "--only-keys", "", "--only-metadata", "{}", "--region", "")
    assert [listed(targets)[name] for name in SHOWN] == [None, 1000, 4, [], {}, "", "priority"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only-keys", "key_unknown"), "--only-keys: Unknown API keys: key_unknown."),
        (("--only-metadata", '{"tier": 1}'), "--only-metadata: Enter a JSON object of strings"),
        (("--requests-per-minute", "-1"), "not an integer from 0 to 100000000"),
        (("--concurrent-requests", "100000001"), "not an integer from 0 to 100000000"),
        (("--region", "x" * 41), "--region: Ensure this value has at most 40 characters"),
    ],
)
def test_the_command_refuses_invalid_values(targets: Targets, options: tuple[str, ...], message: str) -> None:
    targets.add()
    with pytest.raises(CommandError, match=message):
        add(targets, *options)
    with scope.every_team():
        row = Model.objects.get(name=targets.name)
        assert (row.keys.count(), row.only_metadata, row.requests_per_minute) == (0, {}, None)


def test_the_limits_require_a_model(targets: Targets) -> None:
    with pytest.raises(CommandError, match="--requests-per-minute requires --models"):
        call_command("add_upstream", "--name", "x", "--base-url", "http://127.0.0.1:9/v1", "--requests-per-minute", "1")

"""Lines of batches and requests with the service tier `flex` go to the targets for them, and other requests do not."""

import json
from io import StringIO

import pytest
from django.core.management import call_command

from tenants.models import Model, Upstream
from tests.support.api import Api, ok
from tests.support.background import ended as response_ended
from tests.support.batches import asked, ended, line
from tests.support.targets import PATHS, Targets, post
from tests.support.upstream import Script, whole
from tests.support.workers import WorkerProcess

WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
FLEX_PATHS = ("/responses", "/chat/completions")


def counts(*scripts: Script) -> list[int]:
    """Return the numbers of requests."""
    return [len(script.received) for script in scripts]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", FLEX_PATHS)
def test_flex_requests_go_to_the_targets_for_them(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    usual, flex = targets.add(), targets.add(serves="flex").say("Hello")
    answer = post(api, path, targets.name, service_tier="flex", stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)
    assert counts(usual, flex) == [0, 1]


@pytest.mark.parametrize("path", PATHS)
def test_other_requests_do_not_use_targets_for_flex(api: Api, targets: Targets, path: str) -> None:
    flex, usual = targets.add(serves="flex"), targets.add().then(WRONG_KEY)
    assert post(api, path, targets.name).status_code == 500
    assert counts(flex, usual) == [0, 1]


@pytest.mark.parametrize("path", PATHS)
def test_a_model_with_flex_targets_only_is_unknown_to_other_requests(api: Api, targets: Targets, path: str) -> None:
    flex = targets.add(serves="flex")
    assert f"The requested model '{targets.name}' does not exist." in post(api, path, targets.name).text
    assert counts(flex) == [0]


@pytest.mark.parametrize("path", FLEX_PATHS)
def test_a_flex_request_goes_on_to_targets_for_all_requests(api: Api, targets: Targets, path: str) -> None:
    default = targets.add(serves="default")
    everything, flex = targets.add().say("Hello"), targets.add(serves="flex").then(WRONG_KEY)
    ok(post(api, path, targets.name, service_tier="flex"))
    assert counts(default, everything, flex) == [0, 1, 1]


@pytest.mark.parametrize("path", FLEX_PATHS)
def test_flex_requests_are_like_others_without_a_target_for_them(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.add(serves="default").say("Hello"), targets.add()
    ok(post(api, path, targets.name, service_tier="flex"))
    assert counts(first, second) == [1, 0]


def test_a_flex_target_of_a_fallback_model_comes_after_the_requested_model(api: Api, targets: Targets) -> None:
    first = targets.add().say("Hello")
    fallback = targets.add(name=f"{targets.name}-small", fallback_for=targets.name, serves="flex")
    assert api.create(model=targets.name, input="Hi", service_tier="flex")["model"] == targets.name
    assert counts(first, fallback) == [1, 0]


@pytest.mark.slow
def test_a_background_flex_response_uses_the_target_for_it(api: Api, targets: Targets, worker: WorkerProcess) -> None:
    usual, flex = targets.add(), targets.add(serves="flex").say("Hello")
    made = api.create(model=targets.name, input="Hi", service_tier="flex", background=True)
    assert response_ended(api, made["id"])["status"] == "completed"
    assert counts(usual, flex) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("path", FLEX_PATHS)
def test_lines_of_a_batch_use_the_targets_for_flex(
    api: Api, targets: Targets, worker: WorkerProcess, path: str
) -> None:
    usual, flex = targets.add(), targets.add(serves="flex").say("Hello")
    content = {"input": "Hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    url = f"/v1{path}"
    batch = ended(api, asked(api, line("a", url=url, model=targets.name, **content), endpoint=url)["id"])
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert counts(usual, flex) == [0, 1]


def test_the_command_adds_a_target_for_flex(targets: Targets) -> None:
    targets.add()
    server = Upstream.objects.get(name=f"up-{targets.scripts[0].model}")
    given = ("--name", server.name, "--base-url", server.base_url, "--models", targets.name, "--serves", "flex")
    call_command("add_upstream", *given, stdout=StringIO())
    assert Model.objects.get(name=targets.name).serves == "flex"
    output = StringIO()
    call_command("routes", "--json", stdout=output)
    (listed,) = [route for route in json.loads(output.getvalue()) if route["model"] == targets.name]
    assert [target["serves"] for target in listed["targets"]] == ["flex"]

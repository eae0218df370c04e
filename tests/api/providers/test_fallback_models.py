"""A fallback model answers if all targets of the requested model fail, and the answer has its name."""

import uuid

import orjson
import pytest

from tenants import scope
from tenants.models import Team
from tests.support.api import Api, MakeApi, ok
from tests.support.background import ended, text_of
from tests.support.targets import PATHS, Targets, post
from tests.support.upstream import whole
from tests.support.usage_records import usage_records
from tests.support.workers import WorkerProcess

WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
endpoints = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def fallback() -> str:
    """The name of the fallback model."""
    return f"fallback-{uuid.uuid4().hex[:12]}"


@endpoints
def test_the_answer_names_the_fallback_model(api: Api, targets: Targets, fallback: str, path: str) -> None:
    targets.add().then(WRONG_KEY)
    targets.add(name=fallback, fallback_for=targets.name).say("Hello")
    answer = ok(post(api, path, targets.name))
    assert (answer["model"], "Hello" in str(answer)) == (fallback, True)
    assert [row.model for row in usage_records(api.caller, 2)] == [targets.name, fallback]


def test_a_stream_ends_with_the_name_of_the_fallback_model(api: Api, targets: Targets, fallback: str) -> None:
    targets.add().then(WRONG_KEY)
    targets.add(name=fallback, fallback_for=targets.name).say("Hello")
    events = api.events(model=targets.name, input="Hi")
    assert events[-1]["response"]["model"] == fallback
    assert api.retrieve(events[-1]["response"]["id"])["model"] == fallback


def test_every_chunk_names_the_fallback_model(api: Api, targets: Targets, fallback: str) -> None:
    targets.add().then(WRONG_KEY)
    targets.add(name=fallback, fallback_for=targets.name).say("Hello")
    answer = post(api, "/chat/completions", targets.name, stream=True)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    assert {orjson.loads(line)["model"] for line in lines} == {fallback}


@endpoints
def test_the_requested_model_answers_under_its_own_name(api: Api, targets: Targets, fallback: str, path: str) -> None:
    targets.add().then(WRONG_KEY)
    targets.add().say("Hello")
    targets.add(name=fallback, fallback_for=targets.name)
    assert ok(post(api, path, targets.name))["model"] == targets.name


@pytest.mark.slow
def test_a_background_response_names_the_fallback_model(
    api: Api, targets: Targets, fallback: str, worker: WorkerProcess
) -> None:
    targets.add().then(WRONG_KEY)
    targets.add(name=fallback, fallback_for=targets.name).say("Hello")
    response = ended(api, api.create(model=targets.name, input="Hi", background=True)["id"])
    assert (response["model"], text_of(response)) == (fallback, ["Hello"])


@endpoints
def test_a_key_that_may_not_use_the_fallback_model_gets_the_error(
    make_api: MakeApi, targets: Targets, fallback: str, path: str
) -> None:
    targets.add().then(WRONG_KEY)
    other = targets.add(name=fallback, fallback_for=targets.name)
    answer = post(make_api(allowed_models=[targets.name]), path, targets.name)
    assert (answer.status_code, other.received) == (500, [])


@endpoints
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("is_allowed", [False, True], ids=["refused", "allowed"])
def test_a_team_decides_whether_a_fallback_model_may_answer(
    make_api: MakeApi, targets: Targets, fallback: str, path: str, is_streamed: bool, is_allowed: bool
) -> None:
    api = make_api()
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(allow_fallback_models=is_allowed)
    targets.add().then(WRONG_KEY)
    other = targets.add(name=fallback, fallback_for=targets.name)
    if is_allowed:
        other.say("Hello")
    answer = post(api, path, targets.name, stream=is_streamed)
    assert ("Hello" in answer.text, len(other.received)) == (is_allowed, int(is_allowed))
    assert answer.status_code == (200 if is_allowed else 500)


@endpoints
def test_a_team_without_fallback_models_gets_the_other_targets_of_its_model(
    make_api: MakeApi, targets: Targets, fallback: str, path: str
) -> None:
    api = make_api()
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(allow_fallback_models=False)
    targets.add().then(WRONG_KEY)
    targets.add().say("Hello")
    targets.add(name=fallback, fallback_for=targets.name)
    assert ok(post(api, path, targets.name))["model"] == targets.name


def test_a_missing_capability_is_no_reason_for_the_fallback_model(api: Api, targets: Targets, fallback: str) -> None:
    targets.add(logprobs=False)
    targets.add(name=fallback, fallback_for=targets.name)
    assert post(api, "/responses", targets.name, top_logprobs=2).status_code == 400


def test_an_input_that_is_too_long_goes_to_the_fallback_model(api: Api, targets: Targets, fallback: str) -> None:
    targets.add(context_window=100)
    targets.add(name=fallback, fallback_for=targets.name, context_window=100_000).say("Hello")
    made = api.create(model=targets.name, input="word " * 1000)
    assert (made["model"], text_of(made)) == (fallback, ["Hello"])

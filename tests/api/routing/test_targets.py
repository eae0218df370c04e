"""The targets of a model: their order, affinity, and the targets that a team may use."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.support.api import Api, MakeApi, ok
from tests.support.chunks import completion, text
from tests.support.maximum_bills import PNG_URL
from tests.support.targets import PATHS, Targets, post, several_targets
from tests.support.upstream import Answer, Gate, Pause, Script, ScriptedUpstream, stream, whole
from tests.support.waiting import eventually

WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
endpoints = pytest.mark.parametrize("path", PATHS)


def counts(*scripts: Script) -> list[int]:
    """Return the numbers of requests."""
    return [len(script.received) for script in scripts]


def hello_after(wait: Gate | Pause) -> Answer:
    """Return an answer that waits after its status line."""
    answer = whole(completion("Hello"))
    return replace(answer, pieces=(wait, *answer.pieces))


def equal_targets(targets: Targets) -> list[Script]:
    """Add four targets of the same priority that answer any number of requests."""
    return [targets.add(priority=0).always(stream(*text("Hello"))) for _ in range(4)]


@endpoints
def test_the_lowest_priority_is_used_first(api: Api, targets: Targets, path: str) -> None:
    late, early = targets.add(priority=2), targets.add(priority=-1)
    early.say("Hello")
    ok(post(api, path, targets.name))
    assert counts(early, late) == [1, 0]


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_requests_with_the_same_key_go_to_one_target(api: Api, targets: Targets, path: str) -> None:
    scripts = equal_targets(targets)
    for _ in range(4):
        ok(post(api, path, targets.name, prompt_cache_key="k"))
    assert sorted(counts(*scripts)) == [0, 0, 0, 4]


def test_the_responses_of_a_conversation_go_to_one_target(api: Api, targets: Targets) -> None:
    scripts = equal_targets(targets)
    conversation = ok(api.post("/conversations", {}))["id"]
    for _ in range(4):
        api.create(model=targets.name, input="Hi", conversation=conversation)
    assert sorted(counts(*scripts)) == [0, 0, 0, 4]


def test_a_chain_stays_with_its_target(api: Api, targets: Targets) -> None:
    scripts = equal_targets(targets)
    previous: dict[str, Any] = {}
    for _ in range(5):
        previous = {"previous_response_id": api.create(model=targets.name, input="Hi", **previous)["id"]}
    assert sorted(counts(*scripts)) == [0, 0, 0, 5]


@endpoints
def test_requests_without_a_key_go_to_the_faster_target(api: Api, targets: Targets, path: str) -> None:
    fast = targets.add(priority=0).always(whole(completion("Hello")))
    slow = targets.add(priority=0).always(hello_after(Pause(0.3)))
    for _ in range(24):
        ok(post(api, path, targets.name))
    # The slow target gets requests until the other one has had its first.
    assert len(fast.received) > len(slow.received)


@endpoints
def test_requests_without_a_key_go_to_the_target_without_other_requests(
    api: Api, upstream: ScriptedUpstream, path: str
) -> None:
    def use_both() -> None:
        gate = Gate()
        with several_targets(upstream) as targets, ThreadPoolExecutor() as threads:
            scripts = [script.then(hello_after(gate)) for script in targets.two(priority=0)]
            first = threads.submit(post, api, path, targets.name)
            gate.wait_until_reached()
            second = threads.submit(post, api, path, targets.name)
            eventually(lambda: sum(counts(*scripts)) == 2)
            gate.open()
            assert ok(first.result())["model"] == ok(second.result())["model"] == targets.name
            assert counts(*scripts) == [1, 1]

    # Each time for a model without earlier answers, as their times count as well. A random choice would fail once.
    for _ in range(5):
        use_both()


def test_a_target_of_the_same_priority_with_weight_0_gets_no_requests(api: Api, targets: Targets) -> None:
    drained = targets.add(priority=0, weight=0)
    scripts = [script.always(stream(*text("Hello"))) for script in targets.two(priority=0)]
    for _ in range(8):
        ok(post(api, "/chat/completions", targets.name))
    assert (counts(drained), sum(counts(*scripts))) == ([0], 8)


@endpoints
def test_a_target_with_weight_0_gets_no_requests(api: Api, targets: Targets, path: str) -> None:
    drained, other = targets.add(priority=0, weight=0), targets.add(priority=1)
    other.then(WRONG_KEY)
    assert post(api, path, targets.name).status_code == 500
    assert counts(drained, other) == [0, 1]


@endpoints
def test_a_private_target_does_not_fail_over_to_a_public_one(api: Api, targets: Targets, path: str) -> None:
    public = targets.add(priority=0)
    private = targets.add(priority=1, teams=[api.caller.team]).then(WRONG_KEY)
    assert post(api, path, targets.name).status_code == 500
    assert counts(public, private) == [0, 1]


@endpoints
def test_a_private_target_of_another_team_is_not_used(api: Api, make_api: MakeApi, targets: Targets, path: str) -> None:
    private = targets.add(teams=[make_api().caller.team])
    public = targets.add().then(WRONG_KEY)
    assert post(api, path, targets.name).status_code == 500
    assert counts(private, public) == [0, 1]


@endpoints
def test_a_public_fallback_model_does_not_answer_for_a_private_model(api: Api, targets: Targets, path: str) -> None:
    targets.add(teams=[api.caller.team]).then(WRONG_KEY)
    public = targets.add(name=f"{targets.name}-small", fallback_for=targets.name)
    assert post(api, path, targets.name).status_code == 500
    assert counts(public) == [0]


@endpoints
def test_a_private_fallback_model_answers_for_a_public_model(api: Api, targets: Targets, path: str) -> None:
    targets.add().then(WRONG_KEY)
    name = f"{targets.name}-small"
    targets.add(name=name, fallback_for=targets.name, teams=[api.caller.team]).say("Hello")
    assert ok(post(api, path, targets.name))["model"] == name


def test_a_target_that_lacks_a_capability_is_left_out(api: Api, targets: Targets) -> None:
    without, having = targets.add(logprobs=False), targets.add(logprobs=True)
    having.say("Hello")
    api.create(model=targets.name, input="Hi", top_logprobs=2)
    assert counts(without, having) == [0, 1]


def test_a_target_without_vision_gets_no_images(api: Api, targets: Targets) -> None:
    blind, seeing = targets.add(vision=False), targets.add()
    seeing.say("Hello")
    image = {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}
    api.create(model=targets.name, input=[{"role": "user", "content": [image]}])
    assert counts(blind, seeing) == [0, 1]


def test_a_target_whose_context_window_is_too_small_is_left_out(api: Api, targets: Targets) -> None:
    small, large = targets.add(context_window=100), targets.add(context_window=100_000)
    large.say("Hello")
    api.create(model=targets.name, input="word " * 1000)
    assert counts(small, large) == [0, 1]

"""A target that fails gets no requests for a while, except one probe of all processes."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from typing import Any

import httpx2
import pytest
from django.core.management import call_command

from tests.support.api import Api, ok
from tests.support.chunks import text
from tests.support.metrics import Samples
from tests.support.targets import PATHS, Targets, post
from tests.support.upstream import Answer, Cut, Gate, Script, stream, whole
from tests.support.waiting import eventually
from tests.support.web import WebProcess

BUSY = whole({"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}, status=429)
DOWN = whole({"error": {"message": "Down.", "type": "server_error"}}, status=503)
WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
NO_MONEY = whole({"error": {"message": "No money.", "code": "insufficient_quota"}}, status=402)
USAGE_LIMIT = whole({"error": {"message": "Come back later.", "code": "usage_limit_reached"}}, status=429)
INVALID = whole({"error": {"message": "Bad value.", "type": "invalid_request_error"}}, status=400)
RESET = Answer(pieces=[Cut()], delayed_head=True)
CUT = Answer(pieces=[b": waiting\n\n", Cut()])
HELLO = stream(*text("Hello"))
WHOLE = whole(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    }
)
# The pauses of an open target.
PAUSES = (1, 2, 4, 8, 16, 20, 20)

endpoints = pytest.mark.parametrize("path", PATHS)
both_forms = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def asked(script: Script) -> int:
    """Return the number of requests to a target."""
    return len(script.received)


def most_probes(seconds: float) -> int:
    """Return how many pauses of an open target can have ended within this time."""
    ends = [sum(PAUSES[: count + 1]) for count in range(len(PAUSES))]
    return sum(end <= seconds for end in ends)


def states(targets: Targets) -> list[Any]:
    """Return the states of the targets as `routes --json` shows them."""
    out = StringIO()
    call_command("routes", "--json", stdout=out)
    entry: dict[str, Any] = next(route for route in json.loads(out.getvalue()) if route["model"] == targets.name)
    return [target["state"] for target in entry["targets"]]


@pytest.mark.slow
@both_forms
@endpoints
@pytest.mark.parametrize("failure", [DOWN, RESET, CUT], ids=["503", "reset", "cut"])
def test_a_target_is_not_asked_after_three_failures(
    api: Api, targets: Targets, path: str, is_streamed: bool, failure: Answer
) -> None:
    first, second = targets.add().always(failure), targets.add().always(HELLO)
    began = time.monotonic()
    for _ in range(12):
        assert "Hello" in post(api, path, targets.name, stream=is_streamed).text
    assert 3 <= asked(first) <= 3 + most_probes(time.monotonic() - began)
    assert asked(second) == 12


@both_forms
@endpoints
@pytest.mark.parametrize("failure", [NO_MONEY, USAGE_LIMIT], ids=["402", "usage limit"])
def test_an_exhausted_quota_opens_a_target_at_once(
    api: Api, targets: Targets, path: str, is_streamed: bool, failure: Answer
) -> None:
    first, second = targets.add().then(failure), targets.add().always(HELLO)
    for _ in range(3):
        assert "Hello" in post(api, path, targets.name, stream=is_streamed).text
    assert (asked(first), asked(second)) == (1, 3)


def test_rejected_credentials_open_a_target_at_once(api: Api, targets: Targets, web: WebProcess) -> None:
    first, second = targets.add().always(WRONG_KEY), targets.add().always(HELLO)
    written, began = web.written, time.monotonic()
    for _ in range(5):
        ok(post(api, "/responses", targets.name))
    assert 1 <= asked(first) <= 1 + most_probes(time.monotonic() - began)
    assert asked(second) == 5
    # Repeated probes add no further warnings.
    time.sleep(1.1)
    ok(post(api, "/responses", targets.name))
    eventually(lambda: f"up-{first.model}" in web.output(since=written))
    assert web.output(since=written).count(f"upstream up-{first.model} gets no requests") == 1
    assert asked(first) > 1


@endpoints
def test_rate_limits_do_not_open_a_target(api: Api, targets: Targets, path: str) -> None:
    first, _ = targets.add().always(BUSY), targets.add().always(HELLO)
    for _ in range(5):
        ok(post(api, path, targets.name))
    assert asked(first) == 5


@endpoints
def test_invalid_requests_do_not_open_a_target(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.add().always(INVALID), targets.add()
    for _ in range(5):
        assert post(api, path, targets.name).status_code == 400
    assert (asked(first), asked(second)) == (5, 0)


def answers(apis: Sequence[Api], targets: Targets, count: int, path: str) -> list[httpx2.Response]:
    """Send requests at the same time, in turn to each of the processes."""
    with ThreadPoolExecutor(count) as threads:
        sent = [threads.submit(post, apis[number % len(apis)], path, targets.name) for number in range(count)]
        return [request.result() for request in sent]


@pytest.mark.slow
@endpoints
def test_one_of_many_requests_probes_a_target_when_its_pause_ends(
    api: Api, reaching: Api, targets: Targets, path: str
) -> None:
    gate = Gate()
    probed = replace(WHOLE, pieces=[gate, *WHOLE.pieces], delayed_head=True)
    first, second = targets.add().then(WRONG_KEY, probed), targets.add().always(HELLO)
    answers([api], targets, 1, path)
    eventually(lambda: states(targets) == ["open", "closed"])
    eventually(lambda: states(targets) == ["half_open", "closed"])
    with ThreadPoolExecutor(1) as thread:
        burst = thread.submit(answers, [api, reaching], targets, 10, path)
        gate.wait_until_reached()
        # The other requests do not wait for the probe.
        eventually(lambda: asked(second) == 10)
        assert {answer.status_code for answer in answers([api, reaching], targets, 4, path)} == {200}
        assert asked(first) == 2
        gate.open()
        assert {answer.status_code for answer in burst.result()} == {200}
    assert (asked(first), asked(second)) == (2, 14)


@pytest.mark.slow
def test_a_target_that_works_again_gets_its_requests_in_all_processes(
    api: Api, reaching: Api, targets: Targets
) -> None:
    first, second = targets.add().then(WRONG_KEY).always(HELLO), targets.add().always(HELLO)
    ok(post(api, "/responses", targets.name))
    eventually(lambda: states(targets) == ["half_open", "closed"])
    ok(post(api, "/responses", targets.name))
    assert (asked(first), asked(second)) == (2, 1)
    eventually(lambda: states(targets) == ["closed", "closed"])
    for client in (reaching, api):
        ok(post(client, "/responses", targets.name))
    assert (asked(first), asked(second)) == (4, 1)


def test_another_process_does_not_ask_an_open_target(api: Api, reaching: Api, targets: Targets) -> None:
    first, second = targets.add().then(NO_MONEY), targets.add().always(HELLO)
    ok(post(api, "/responses", targets.name))
    eventually(lambda: states(targets) == ["open", "closed"])
    ok(post(reaching, "/responses", targets.name))
    assert (asked(first), asked(second)) == (1, 2)


@both_forms
@endpoints
def test_a_request_fails_with_the_time_of_the_next_probe_if_all_targets_are_open(
    api: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    scripts = [targets.add().then(NO_MONEY) for _ in range(2)]
    assert post(api, path, targets.name).status_code == 429
    answer = post(api, path, targets.name, stream=is_streamed)
    # Anthropic's status of an overloaded server is 529.
    assert (answer.status_code, "quota" in answer.text) == (529 if path == "/messages" else 503, True)
    assert 590 < int(answer.headers["retry-after"]) <= 600
    assert [asked(script) for script in scripts] == [1, 1]


@pytest.mark.slow
@both_forms
@endpoints
def test_a_request_waits_for_the_next_probe_if_all_targets_are_open(
    api: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    first, second = targets.add().then(WRONG_KEY), targets.add().then(WRONG_KEY)
    first.always(HELLO)
    second.always(HELLO)
    assert post(api, path, targets.name).status_code == 500
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)
    assert asked(first) + asked(second) == 3


@pytest.mark.slow
@endpoints
def test_a_failure_of_all_targets_is_overcome_within_the_time_for_retries(
    api: Api, targets: Targets, path: str
) -> None:
    first, second = targets.add().then(DOWN, DOWN, DOWN).always(HELLO), targets.add().then(WRONG_KEY).always(WRONG_KEY)
    assert post(api, path, targets.name).status_code == 500
    # Its third failure opens the first target, while the second is open or fails.
    assert "Hello" in str(ok(post(api, path, targets.name)))
    assert asked(first) == 4
    assert asked(second) <= 2


def test_the_metrics_show_an_open_target(api: Api, web: WebProcess, targets: Targets) -> None:
    first, _ = targets.add().then(NO_MONEY), targets.add().always(HELLO)
    ok(post(api, "/responses", targets.name))
    samples = Samples(f"{web.url}/metrics")
    # Not by model: only the first 200 models of a process have labels, and other tests add many.
    eventually(lambda: samples.now("ors_target_open", upstream=f"up-{first.model}") == 1)

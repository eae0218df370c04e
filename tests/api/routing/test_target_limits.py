"""A target at one of its limits gets no requests: the next one does, or the request waits for room."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from tests.support.api import Api, MakeCaller, error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import completion, text
from tests.support.metrics import Samples
from tests.support.targets import PATHS, Targets, body_of, post
from tests.support.upstream import Answer, Cut, Gate, Script, refusal, stream, whole
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import WorkerProcess

# A lease is renewed four times in this period, by a process that may wait for a processor.
LEASE_SECONDS = 6
HELLO = stream(*text("Hello"))
# One of these limits leaves no room for a second request.
LIMITS: tuple[dict[str, Any], ...] = ({"requests_per_minute": 1}, {"tokens_per_minute": 10})

endpoints = pytest.mark.parametrize("path", PATHS)
both_forms = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def counts(*scripts: Script) -> list[int]:
    """Return the numbers of requests."""
    return [len(script.received) for script in scripts]


def held(gate: Gate) -> Answer:
    """Return an answer that stops at a gate in the middle."""
    first, *rest = text("Hel", "lo")
    return stream(first, gate, *rest)


@both_forms
@endpoints
@pytest.mark.parametrize("limits", LIMITS, ids=["requests", "tokens"])
def test_the_next_target_gets_what_exceeds_a_limit(
    api: Api, targets: Targets, path: str, is_streamed: bool, limits: dict[str, Any]
) -> None:
    first, second = targets.add(**limits).say("Hello"), targets.add().always(HELLO)
    for _ in range(3):
        answer = post(api, path, targets.name, stream=is_streamed)
        assert (answer.status_code, "Hello" in answer.text) == (200, True)
    assert counts(first, second) == [1, 2]


@endpoints
def test_the_next_target_gets_requests_while_one_has_as_many_as_it_may(api: Api, targets: Targets, path: str) -> None:
    gate = Gate()
    first, second = targets.add(concurrent_requests=1).then(held(gate)), targets.add().always(HELLO)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(post, api, path, targets.name, stream=True)
        gate.wait_until_reached()
        ok(post(api, path, targets.name))
        assert counts(first, second) == [1, 1]
        gate.open()
        assert "lo" in running.result().text
    first.say("Hello")
    ok(post(api, path, targets.name))
    assert counts(first, second) == [2, 1]


@endpoints
@pytest.mark.parametrize("limits", LIMITS, ids=["requests", "tokens"])
def test_processes_share_the_limits_of_a_target(
    api: Api, reaching: Api, targets: Targets, path: str, limits: dict[str, Any]
) -> None:
    first, second = targets.add(**limits).say("Hello"), targets.add().always(HELLO)
    ok(post(api, path, targets.name))
    # The tokens that were used are reported after the answer.
    time.sleep(0.2)
    ok(post(reaching, path, targets.name))
    assert counts(first, second) == [1, 1]


def test_processes_share_the_number_of_concurrent_requests(api: Api, reaching: Api, targets: Targets) -> None:
    gate = Gate()
    first, second = targets.add(concurrent_requests=1).then(held(gate)), targets.add().say("Hello")
    with api.stream(model=targets.name, input="Hi") as live:
        gate.wait_until_reached()
        ok(post(reaching, "/responses", targets.name))
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"
    assert counts(first, second) == [1, 1]


@both_forms
@endpoints
def test_a_request_fails_if_all_targets_are_at_their_limits(
    api: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    first, second = targets.add(requests_per_minute=1).say("A"), targets.add(requests_per_minute=1).say("B")
    for _ in range(2):
        ok(post(api, path, targets.name))
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "limit of requests" in answer.text) == (429, True)
    assert 50 < int(answer.headers["retry-after"]) <= 60
    assert counts(first, second) == [1, 1]


@both_forms
@endpoints
def test_the_limit_of_a_single_target_applies(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    script = targets.add(requests_per_minute=1).say("Hello")
    ok(post(api, path, targets.name))
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, int(answer.headers["retry-after"]) > 50) == (429, True)
    assert counts(script) == [1]


@endpoints
@pytest.mark.parametrize("number", [1, 2])
def test_a_request_waits_for_the_end_of_another_one(api: Api, targets: Targets, path: str, number: int) -> None:
    gates = [Gate() for _ in range(number)]
    scripts = [targets.add(concurrent_requests=1).then(held(gate)) for gate in gates]
    scripts[-1].say("Bye")
    with ThreadPoolExecutor(number + 1) as threads:
        running = []
        for gate in gates:
            running.append(threads.submit(post, api, path, targets.name, stream=True))
            gate.wait_until_reached()
        waiting = threads.submit(post, api, path, targets.name)
        time.sleep(0.5)
        assert counts(*scripts) == [1] * number
        gates[-1].open()
        assert "Bye" in str(ok(waiting.result()))
        for gate in gates:
            gate.open()
        assert {answer.result().status_code for answer in running} == {200}


@pytest.mark.slow
def test_a_background_response_waits_for_room(api: Api, targets: Targets, worker: WorkerProcess) -> None:
    gate = Gate()
    targets.add(concurrent_requests=1).then(held(gate)).say("Hello")
    first = api.create(model=targets.name, input="Hi", background=True)
    gate.wait_until_reached()
    second = api.create(model=targets.name, input="Hi", background=True)
    time.sleep(0.5)
    assert api.retrieve(second["id"])["status"] in {"queued", "in_progress"}
    gate.open()
    assert [text_of(ended(api, made["id"])) for made in (first, second)] == [["Hello"], ["Hello"]]


def is_free(api: Api, targets: Targets, script: Script) -> bool:
    """Return whether a target gets the next request, which waits for room at most until the time for retries."""
    before = len(script.received)
    script.always(HELLO)
    ok(post(api, "/chat/completions", targets.name))
    return len(script.received) > before


@endpoints
def test_a_client_that_disconnects_makes_room(api: Api, targets: Targets, path: str) -> None:
    gate = Gate()
    script = targets.add(concurrent_requests=1).then(held(gate))
    body = body_of(path, targets.name, stream=True, **({"store": False} if path == "/responses" else {}))
    with api.open(path, body):
        gate.wait_until_reached()
    assert script.received[0].was_closed()
    assert is_free(api, targets, script)


def test_a_cancelled_response_makes_room(api: Api, targets: Targets, worker: WorkerProcess) -> None:
    gate = Gate()
    script = targets.add(concurrent_requests=1).then(held(gate))
    made = api.create(model=targets.name, input="Hi", background=True)
    gate.wait_until_reached()
    ok(api.post(f"/responses/{made['id']}/cancel", {}))
    assert script.received[0].was_closed()
    assert is_free(api, targets, script)


@endpoints
@pytest.mark.parametrize("broken", [stream(*text("Hel")[:2], Cut()), refusal(400)], ids=["cut", "refused"])
def test_a_failed_answer_makes_room(api: Api, targets: Targets, path: str, broken: Answer) -> None:
    script = targets.add(concurrent_requests=1).then(broken)
    post(api, path, targets.name, stream=True)
    assert is_free(api, targets, script)


@endpoints
def test_the_reported_tokens_count_instead_of_the_estimate(api: Api, targets: Targets, path: str) -> None:
    """Each answer uses 10 tokens, and "Hi" counts as one."""
    first, second = targets.add(tokens_per_minute=21).always(HELLO), targets.add().always(HELLO)
    for _ in range(3):
        ok(post(api, path, targets.name))
        time.sleep(0.1)
    # After 20 tokens there is room for another estimate.
    assert counts(first, second) == [3, 0]
    ok(post(api, path, targets.name))
    assert counts(first, second) == [3, 1]


@endpoints
def test_a_refused_request_uses_no_tokens(api: Api, targets: Targets, path: str) -> None:
    script = targets.add(tokens_per_minute=2).then(refusal(400), refusal(400), refusal(400))
    for _ in range(3):
        assert post(api, path, targets.name).status_code == 400
        time.sleep(0.1)
    assert counts(script) == [3]


def test_a_repeated_request_counts_as_a_further_one(api: Api, targets: Targets) -> None:
    down = whole({"error": {"message": "Down.", "type": "server_error"}}, status=503)
    first, second = targets.add(requests_per_minute=1).then(down), targets.add().say("Hello")
    ok(post(api, "/responses", targets.name))
    assert counts(first, second) == [1, 1]


def test_a_limit_does_not_open_the_public_targets_to_a_team_with_its_own(api: Api, targets: Targets) -> None:
    own = targets.add(requests_per_minute=1, teams=[api.caller.team]).say("Hello")
    shared = targets.add(requests_per_minute=1)
    ok(post(api, "/responses", targets.name))
    assert post(api, "/responses", targets.name).status_code == 429
    assert counts(own, shared) == [1, 0]


def test_a_limit_applies_to_all_teams_together(api: Api, outsider: Api, targets: Targets) -> None:
    script = targets.add(requests_per_minute=1).say("Hello")
    ok(post(api, "/responses", targets.name))
    assert error(post(outsider, "/responses", targets.name)) == (429, None, "rate_limit_exceeded")
    assert counts(script) == [1]


def test_the_metric_counts_requests_that_a_limit_has_kept_from_a_target(
    api: Api, web: WebProcess, targets: Targets
) -> None:
    first, _ = targets.add(requests_per_minute=1).say("Hello"), targets.add().say("Hello")
    samples = Samples(f"{web.url}/metrics")
    for _ in range(2):
        ok(post(api, "/responses", targets.name))
    # A process that has seen very many models counts the further ones together.
    labels = {"upstream": f"up-{first.model}", "limit": "requests_per_minute"}
    eventually(lambda: samples.added("ors_target_limited_total", **labels) == 1)


def test_many_requests_take_turns(api: Api, targets: Targets) -> None:
    document = replace(whole(completion("Hello")), delayed_head=True)
    script = targets.add(concurrent_requests=2).always(document)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: ok(post(api, "/chat/completions", targets.name)), range(6)))
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["Hello"] * 6
    assert counts(script) == [6]


@pytest.mark.slow
def test_the_leases_of_a_killed_process_expire(
    api: Api, http: httpx2.Client, targets: Targets, make_caller: MakeCaller
) -> None:
    gate = Gate()
    script = targets.add(concurrent_requests=1).then(held(gate))
    with running_web(LEASE_SECONDS=str(LEASE_SECONDS)) as process:
        doomed = Api(http, url=process.url, caller=make_caller())
        with doomed.open("/chat/completions", body_of("/chat/completions", targets.name, stream=True)):
            gate.wait_until_reached()
            assert post(api, "/chat/completions", targets.name).status_code == 429
            process.stop(signal.SIGKILL)
        script.always(HELLO)

        def is_answered() -> bool:
            return post(api, "/chat/completions", targets.name).status_code == 200

        eventually(is_answered, seconds=5 * LEASE_SECONDS)


@pytest.mark.slow
def test_the_lease_of_a_long_answer_is_renewed(
    api: Api, http: httpx2.Client, targets: Targets, make_caller: MakeCaller
) -> None:
    gate = Gate()
    script = targets.add(concurrent_requests=1).then(held(gate))
    with running_web(LEASE_SECONDS=str(LEASE_SECONDS)) as process:
        patient = Api(http, url=process.url, caller=make_caller())
        with patient.stream(model=targets.name, input="Hi") as live:
            gate.wait_until_reached()
            began = time.monotonic()
            while time.monotonic() - began < 1.5 * LEASE_SECONDS:
                assert post(api, "/chat/completions", targets.name).status_code == 429
            gate.open()
            live.rest()
    assert counts(script) == [1]

"""A request that a target of its model fails is answered by the next target, if the client has received nothing yet."""

from typing import Any

import httpx2
import pytest

from tests.support.api import Api, Caller, ok
from tests.support.background import ended, text_of
from tests.support.machine_clock import machine_time
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import mcp_server
from tests.support.responses_upstream import answer as responses_answer
from tests.support.responses_upstream import message_events
from tests.support.targets import PATHS, Targets, post, several_targets
from tests.support.upstream import Answer, Cut, Gate, ScriptedUpstream, stream, whole
from tests.support.web import WebProcess
from tests.support.workers import WorkerProcess

BUSY = whole({"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}, status=429)
LATER = whole({"error": {"message": "Slow down."}}, status=429, headers={"retry-after": "40"})
SOON = whole({"error": {"message": "Slow down."}}, status=429, headers={"retry-after-ms": "50"})
BROKEN = whole({"error": {"message": "Oops.", "type": "server_error"}}, status=500)
DOWN = whole({"error": {"message": "Down.", "type": "server_error"}}, status=503)
WRONG_KEY = whole({"error": {"message": "Wrong key.", "code": "invalid_api_key"}}, status=401)
FORBIDDEN = whole({"error": {"message": "Not allowed."}}, status=403)
NO_MONEY = whole({"error": {"message": "No money.", "code": "insufficient_quota"}}, status=402)
UNKNOWN_MODEL = whole({"error": {"message": "No such model.", "code": "model_not_found"}}, status=404)
TOO_LONG = whole({"error": {"message": "Too long.", "code": "context_length_exceeded"}}, status=400)
FLAGGED = whole({"error": {"message": "Flagged.", "code": "content_policy_violation"}}, status=400)
INVALID = whole({"error": {"message": "Bad value.", "type": "invalid_request_error"}}, status=400)
RESET = Answer(pieces=[Cut()], delayed_head=True)
# The status line arrives, but no event.
CUT = Answer(pieces=[b": waiting\n\n", Cut()])
EMPTY = Answer(pieces=[b": waiting\n\n"], done=False)
EVENT = stream({"error": {"message": "Down.", "code": 503}})

endpoints = pytest.mark.parametrize("path", PATHS)
both_forms = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@pytest.mark.slow
@both_forms
@endpoints
def test_a_target_that_cannot_be_reached_is_replaced(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    targets.unreachable()
    targets.add().say("Hello")
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)


@pytest.mark.slow
@both_forms
@endpoints
@pytest.mark.parametrize("failure", [BROKEN, DOWN, RESET], ids=["500", "503", "reset"])
def test_a_target_that_fails_twice_is_replaced(
    api: Api, targets: Targets, path: str, is_streamed: bool, failure: Answer
) -> None:
    first, second = targets.two()
    first.then(failure, failure)
    second.say("Hello")
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)


@pytest.mark.slow
@endpoints
def test_a_target_that_fails_once_is_asked_again(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(DOWN).say("Hello")
    assert "Hello" in str(ok(post(api, path, targets.name)))
    assert second.received == []


def assert_the_second_target_answers(
    api: Api, targets: Targets, path: str, *, after: Answer, is_streamed: bool
) -> None:
    first, second = targets.two()
    first.then(after)
    second.say("Hello")
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)


@both_forms
@endpoints
@pytest.mark.parametrize(
    "failure",
    [BUSY, LATER, WRONG_KEY, FORBIDDEN, NO_MONEY, UNKNOWN_MODEL],
    ids=["429", "429 with a long wait", "401", "403", "402", "unknown model"],
)
def test_a_target_that_refuses_is_replaced_at_once(
    api: Api, targets: Targets, path: str, is_streamed: bool, failure: Answer
) -> None:
    assert_the_second_target_answers(api, targets, path, after=failure, is_streamed=is_streamed)


@endpoints
def test_a_short_wait_is_spent_at_the_same_target(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(SOON).say("Hello")
    assert "Hello" in str(ok(post(api, path, targets.name)))
    assert second.received == []


def test_a_second_short_wait_is_not_spent(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(SOON, SOON)
    second.say("Hello")
    assert text_of(api.create(model=targets.name, input="Hi")) == ["Hello"]


def test_a_target_that_asked_for_a_long_wait_is_not_asked_first(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(LATER)
    second.say("Hello").say("Hello")
    for _ in range(2):
        api.create(model=targets.name, input="Hi")
    assert (len(first.received), len(second.received)) == (1, 2)


@both_forms
@endpoints
@pytest.mark.parametrize("failure", [CUT, EMPTY, EVENT], ids=["cut", "empty", "error event"])
def test_an_answer_that_fails_before_its_first_event_is_replaced(
    api: Api, targets: Targets, path: str, is_streamed: bool, failure: Answer
) -> None:
    assert_the_second_target_answers(api, targets, path, after=failure, is_streamed=is_streamed)


@both_forms
@endpoints
def test_an_input_that_is_too_long_goes_to_a_larger_target(
    api: Api, targets: Targets, path: str, is_streamed: bool
) -> None:
    targets.add(context_window=1000).then(TOO_LONG)
    same = targets.add(context_window=1000)
    targets.add(context_window=100_000).say("Hello")
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "Hello" in answer.text) == (200, True)
    assert same.received == []


@endpoints
def test_an_input_that_is_too_long_for_the_largest_target_fails(api: Api, targets: Targets, path: str) -> None:
    targets.add(context_window=1000).then(TOO_LONG)
    unknown = targets.add()
    assert post(api, path, targets.name).status_code == 400
    assert unknown.received == []


@both_forms
@endpoints
@pytest.mark.parametrize("failure", [FLAGGED, INVALID], ids=["content policy", "invalid"])
def test_a_rejected_request_is_not_sent_to_another_target(
    api: Api, targets: Targets, path: str, is_streamed: bool, failure: Answer
) -> None:
    first, second = targets.two()
    first.then(failure)
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, second.received) == (400, [])


@pytest.mark.slow
@both_forms
@endpoints
def test_the_client_gets_the_error_of_the_last_target(api: Api, targets: Targets, path: str, is_streamed: bool) -> None:
    targets.add().then(DOWN, DOWN)
    targets.add().then(WRONG_KEY)
    answer = post(api, path, targets.name, stream=is_streamed)
    assert (answer.status_code, "credentials" in answer.text) == (500, True)


@pytest.mark.slow
@endpoints
def test_all_targets_share_one_deadline(api: Api, targets: Targets, path: str) -> None:
    for script in (*targets.two(), targets.add()):
        script.always(DOWN)
    began = machine_time()
    answer = post(api, path, targets.name)
    # UPSTREAM_RETRY_SECONDS is 2 in tests.
    assert machine_time() - began < 3
    assert answer.status_code in {503, 529}
    assert [len(script.received) for script in targets.scripts[:2]] == [2, 2]


def test_a_turn_at_another_target_is_numbered_as_usual(api: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(CUT)
    second.say("Hel", "lo")
    events = api.events(model=targets.name, input="Hi")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    assert events[-1]["response"]["model"] == targets.name


@pytest.mark.slow
def test_later_turns_stay_with_the_target_that_answered(reaching: Api, targets: Targets) -> None:
    first, second = targets.two()
    first.then(WRONG_KEY)
    second.call(box__add='{"a":2,"b":3}').say("It is 5.")
    with mcp_server() as server:
        made = reaching.create(model=targets.name, input="2+3?", tools=[tool(server)])
    assert (made["status"], len(first.received)) == ("completed", 1)


@pytest.mark.parametrize("path", ["/responses", "/messages"])
def test_a_target_with_the_other_api_answers(
    api: Api, targets: Targets, responses_upstream: ScriptedUpstream, path: str
) -> None:
    targets.add().then(WRONG_KEY)
    with several_targets(responses_upstream, name=targets.name) as others:
        others.add(priority=1, wire_api="responses").then(responses_answer(message_events("Hel", "lo")))
        assert "Hello" in str(ok(post(api, path, targets.name)))


@pytest.mark.slow
def test_a_silent_target_is_asked_once(
    short_timeout_web: WebProcess, http: httpx2.Client, caller: Caller, targets: Targets
) -> None:
    first, second = targets.two()
    gate = Gate()
    first.then(Answer(pieces=[gate], delayed_head=True))
    second.say("Hello")
    made = Api(http, url=short_timeout_web.url, caller=caller).create(model=targets.name, input="Hi")
    gate.open()
    assert text_of(made) == ["Hello"]


@pytest.mark.slow
def test_a_background_response_is_answered_by_the_next_target(
    api: Api, targets: Targets, worker: WorkerProcess
) -> None:
    first, second = targets.two()
    first.then(WRONG_KEY)
    second.say("Hello")
    response = ended(api, api.create(model=targets.name, input="Hi", background=True)["id"])
    assert (response["status"], text_of(response)) == ("completed", ["Hello"])


def test_a_format_is_validated_unless_every_target_enforces_it(api: Api, targets: Targets) -> None:
    first = targets.add(structured_output="native")
    second = targets.add(structured_output="checked")
    first.then(WRONG_KEY)
    second.say("no JSON").say('{"a": 1}')
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    text_format = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    assert text_of(api.create(model=targets.name, input="Hi", text=text_format)) == ['{"a": 1}']

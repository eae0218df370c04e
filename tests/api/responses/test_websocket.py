"""WebSocket mode of `GET /v1/responses`: events over one connection, several streams, and responses that are not
stored."""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import httpx2
import orjson
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from core.clock import now
from responses.models import Response, Status
from tenants import scope, services
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, MakeCaller
from tests.support.chunks import calls, chunk, text
from tests.support.streams import assert_stream_equals_stored, assert_well_formed, types
from tests.support.upstream import Answer, Cut, Gate, Script, refusal, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess
from tests.support.websocket_client import Event, Socket, open_socket, short_lived_server

Connect = Callable[[], AbstractContextManager[Socket]]
_ID = re.compile(rb'_[0-9a-v]{28}\b|"(created_at|completed_at)":\d+|"(obfuscation|encrypted_content)":"[^"]*"')
ANSWERS: dict[str, Answer] = {
    "text": stream(*text("Hel", "lo")),
    "text and calls": stream(chunk(content="Let me see."), *calls(look="{}", listen='{"to": "it"}')),
    "reasoning": stream(chunk(reasoning_content="Hm. "), *text("Yes")),
    "a refusal": stream(chunk(refusal="I "), chunk(refusal="won't."), chunk(finish="stop")),
    "truncated by length": stream(*text("Hel", finish="length")),
    "a failure": stream(chunk(content="Hel"), Cut()),
    "an error instead of chunks": stream({"error": {"message": "No.", "code": 400}}),
    "unicode": stream(*text("Grüße", " 👋🏽", "\u2028", '"\\\n\n')),
}


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    """The API server, once with each of the two ASGI servers."""
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.fixture
def connect(server: WebProcess, caller: Caller) -> Connect:
    """Open another connection of `caller`."""
    return lambda: open_socket(server.url, secret=caller.secret)


@pytest.fixture
def socket(connect: Connect) -> Iterator[Socket]:
    """The connection of a test."""
    with connect() as socket:
        yield socket


@pytest.fixture
def api(server: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    """The HTTP API of the same server."""
    return Api(http, url=server.url, caller=caller)


def error_event(code: str | None, param: str | None, **more: Any) -> Event:
    """Return the error event that a refused message gets, without the text."""
    error = {"type": "invalid_request_error", "code": code, "param": param}
    return {"type": "error", "status": 400, **more, "error": error}


def create(**body: Any) -> Event:
    """Return a `response.create` message."""
    return {"type": "response.create", **body}


def context_of(script: Script, call: int = -1) -> list[str]:
    """Return the contents of the messages the model read in a call."""
    return [message["content"] for message in script.messages[call]]


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ANSWERS)
def test_events_equal_those_of_an_sse_stream(socket: Socket, api: Api, script: Script, what: str) -> None:
    script.then(ANSWERS[what], ANSWERS[what])
    body = {"model": script.model, "input": "Hi", "metadata": {"a": "b"}, "temperature": 0.5}
    over_http, over_socket = api.events(**body), socket.create(**body)
    assert _ID.sub(b"", orjson.dumps(over_socket)) == _ID.sub(b"", orjson.dumps(over_http))
    assert_stream_equals_stored(over_socket, api.retrieve(over_socket[0]["response"]["id"]))


def test_deltas_are_sent_immediately(socket: Socket, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    socket.ask(model=script.model, input="Hi")
    assert "Hel" in [socket.next().get("delta") for _ in range(5)]
    gate.open()
    assert socket.rest()[-1]["type"] == "response.completed"


def test_completed_is_sent_after_it_is_stored(socket: Socket, api: Api, script: Script) -> None:
    response = socket.respond(model=script.say("Hello").model, input="Hi")
    assert api.retrieve(response["id"]) == response


def test_events_of_a_named_stream_have_its_stream_id(socket: Socket, script: Script) -> None:
    events = socket.create(model=script.say("Hel", "lo").model, input="Hi", stream_id="a.B_c-1")
    assert {event["stream_id"] for event in events} == {"a.B_c-1"}
    assert_well_formed(events)


def test_events_of_the_default_stream_have_no_stream_id(socket: Socket, script: Script) -> None:
    events = socket.create(model=script.say("Hello").model, input="Hi", stream_id=None)
    assert all("stream_id" not in event for event in events)


def test_obfuscation_can_be_disabled(socket: Socket, script: Script) -> None:
    script.say("a").say("a")
    padded = socket.create(model=script.model, input="Hi")
    plain = socket.create(model=script.model, input="Hi", stream_options={"include_obfuscation": False})
    assert any("obfuscation" in event for event in padded)
    assert all("obfuscation" not in event for event in plain)


def test_a_run_ended_elsewhere_is_reported_as_an_error(
    socket: Socket, script: Script, caller: Caller, database: None
) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo"))).say("Hello")
    socket.ask(model=script.model, input="Hi", stream_id="a")
    gate.wait_until_reached()
    with scope.team(caller.team.pk):
        Response.objects.update(status=Status.CANCELLED, ended_at=now())
    gate.open()
    error = socket.rest()[-1]
    assert (error["type"], error["status"], error["stream_id"]) == ("error", 500, "a")
    assert socket.respond(model=script.model, input="Hi", stream_id="a")["status"] == "completed"


# -- streams -----------------------------------------------------------------------------------------------------------


def test_requests_of_one_stream_run_one_after_the_other(socket: Socket, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1"))).say("2")
    socket.ask(model=script.model, input="a")
    socket.ask(model=script.model, input="b")
    gate.wait_until_reached()
    assert len(script.received) == 1
    gate.open()
    first, second = socket.rest(), socket.rest()
    assert [events[-1]["response"]["output"][0]["content"][0]["text"] for events in (first, second)] == ["1", "2"]
    assert_well_formed(first)
    assert_well_formed(second)


def test_errors_of_waiting_requests_are_sent_in_order(socket: Socket, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1")))
    socket.ask(model=script.model, input="a", stream_id="x")
    socket.ask(model=script.model, stream_id="x")
    gate.open()
    assert socket.rest()[-1]["type"] == "response.completed"
    assert socket.next()["error"]["param"] == "input"


def test_streams_run_concurrently(socket: Socket, script: Script, other_script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    socket.ask(model=script.model, input="Hi", stream_id="slow")
    gate.wait_until_reached()
    socket.ask(model=other_script.say("Hello").model, input="Hi")
    events = socket.rest()
    gate.open()
    events += socket.rest()
    for stream_id in ("slow", None):
        assert_well_formed([event for event in events if event.get("stream_id") == stream_id])


@pytest.mark.slow
def test_at_most_sixteen_responses_run_at_a_time(socket: Socket, script: Script) -> None:
    gates = [Gate() for _ in range(17)]
    script.then(*(stream(gate, *text("Hello")) for gate in gates))
    for number in range(17):
        socket.ask(model=script.model, input="Hi", stream_id=f"lane-{number}")
    for gate in gates[:16]:
        gate.wait_until_reached()
    assert len(script.received) == 16
    gates[0].open()
    gates[16].wait_until_reached()
    for gate in gates:
        gate.open()
    assert {socket.rest()[-1]["type"] for _ in gates} == {"response.completed"}


def test_a_connection_may_use_thirty_two_stream_ids(socket: Socket, script: Script) -> None:
    for number in range(32):
        error = socket.refuse(create(model=script.model, stream_id=f"lane-{number}"))
        assert error == error_event("missing_required_parameter", "input", stream_id=f"lane-{number}")
    error = socket.refuse(create(model=script.model, input="Hi", stream_id="lane-32"))
    assert error == error_event("websocket_stream_limit_reached", "stream_id", stream_id="lane-32")
    script.say("Hello").say("Hello")
    assert socket.respond(model=script.model, input="Hi", stream_id="lane-0")["status"] == "completed"
    assert socket.respond(model=script.model, input="Hi")["status"] == "completed"


@pytest.mark.parametrize("stream_id", ["", "a b", "ä", "a/b", "a\n", "a" * 257])
def test_invalid_stream_ids_are_refused(socket: Socket, stream_id: str) -> None:
    assert socket.refuse(create(input="Hi", stream_id=stream_id)) == error_event("invalid_stream_id", "stream_id")


def test_a_stream_id_must_be_a_string(socket: Socket) -> None:
    assert socket.refuse(create(input="Hi", stream_id=1)) == error_event("invalid_type", "stream_id")


def test_the_number_of_waiting_requests_is_limited(socket: Socket, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    socket.ask(model=script.model, input="Hi")
    gate.wait_until_reached()
    assert types([socket.next(), socket.next()]) == ["response.created", "response.in_progress"]
    for _ in range(256):
        socket.ask()
    refused = socket.refuse(create())
    assert (refused["status"], refused["error"]["code"]) == (429, "slow_down")
    gate.open()
    assert socket.rest()[-1]["type"] == "response.completed"
    assert {socket.next()["error"]["code"] for _ in range(256)} == {"missing_required_parameter"}


# -- errors ------------------------------------------------------------------------------------------------------------

INVALID_MESSAGES: dict[str, tuple[Any, Event]] = {
    "invalid JSON": ("{", error_event("invalid_json", None)),
    "not an object": ("[]", error_event("invalid_type", None)),
    "nothing": ("", error_event("invalid_json", None)),
    "a binary frame": (b"{}", error_event("invalid_type", None)),
    "an empty binary frame": (b"", error_event("invalid_type", None)),
    "too deep": ("[" * 200 + "]" * 200, error_event("invalid_type", None)),
    "no type": ({}, error_event("missing_required_parameter", "type")),
    "an unknown type": ({"type": "response.cancel"}, error_event("invalid_value", "type")),
    "a type that is not a string": ({"type": ["response.create"]}, error_event("invalid_value", "type")),
    "no input": (create(), error_event("missing_required_parameter", "input")),
    "no stream": (create(input="Hi", stream=False), error_event("unsupported_parameter", "stream")),
    "an invalid stream": (create(input="Hi", stream=1), error_event("unsupported_parameter", "stream")),
    "background": (create(input="Hi", background=True), error_event("unsupported_parameter", "background")),
    "no background": (create(input="Hi", background=False), error_event("unsupported_parameter", "background")),
    "an invalid generate": (create(input="Hi", generate=1), error_event("invalid_type", "generate")),
    "an unknown parameter": (create(input="Hi", inptu="Hi"), error_event("unknown_parameter", "inptu")),
    "an unknown model": (create(input="Hi", model=""), error_event("empty_string", "model")),
    "an unknown stream option": (
        create(input="Hi", model="m", stream_options={"include_usage": True}),
        error_event("unknown_parameter", "stream_options.include_usage"),
    ),
    "a lone surrogate": (
        '{"type": "response.create", "model": "m", "input": "\\ud800"}',
        error_event("invalid_json", None),
    ),
}


@pytest.mark.parametrize("what", INVALID_MESSAGES)
def test_an_invalid_message_does_not_close_the_connection(socket: Socket, script: Script, what: str) -> None:
    event, error = INVALID_MESSAGES[what]
    assert socket.refuse(event) == error
    assert socket.respond(model=script.say("Hello").model, input="Hi")["status"] == "completed"


def test_stream_true_is_accepted(socket: Socket, script: Script) -> None:
    response = socket.respond(model=script.say("Hello").model, input="Hi", stream=True, background=None, generate=None)
    assert response["status"] == "completed"


def test_a_model_outside_the_keys_models_is_refused(server: WebProcess, make_caller: MakeCaller) -> None:
    caller = make_caller(allowed_models=["another"])
    with open_socket(server.url, secret=caller.secret) as socket:
        assert socket.refuse(create(input="Hi", model="m")) == error_event("model_not_found", "model")


# -- steering ----------------------------------------------------------------------------------------------------------


def test_steering_is_refused_and_the_input_returned(socket: Socket, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    socket.ask(model=script.model, input="Hi", stream_id="a")
    target = socket.next()["response"]["id"]
    socket.next()
    steer = {"previous_response_id": target, "input": [{"type": "message", "role": "user", "content": "Stop."}]}
    socket.send({"type": "response.steer", **steer})
    failed = socket.next()
    assert failed["error"].pop("message")
    assert failed == {
        "type": "response.steer.failed",
        "sequence_number": 0,
        "stream_id": "a",
        "error": {"type": "invalid_request_error", "code": "steering_not_supported"},
        "steer": steer,
    }
    gate.open()
    assert socket.rest()[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("steer", "code", "param"),
    [
        ({"input": "Stop."}, "missing_required_parameter", "previous_response_id"),
        ({"previous_response_id": "resp_1"}, "missing_required_parameter", "input"),
        ({"previous_response_id": 1, "input": "Stop."}, "invalid_type", "previous_response_id"),
        ({"previous_response_id": "resp_1", "input": {}}, "invalid_type", "input"),
        ({"previous_response_id": "resp_1", "input": "Stop.", "stream_id": "a"}, "unknown_parameter", "stream_id"),
    ],
)
def test_an_invalid_steer_names_the_parameter(socket: Socket, steer: Event, code: str, param: str) -> None:
    assert socket.refuse({"type": "response.steer", **steer}) == error_event(code, param)


# -- continuation ------------------------------------------------------------------------------------------------------

UNKNOWN = error_event("previous_response_not_found", "previous_response_id")


def test_an_unstored_response_can_be_continued_on_its_connection(socket: Socket, script: Script) -> None:
    script.say("1").say("2").say("3")
    last = None
    for words in "abc":
        last = socket.respond(model=script.model, input=words, store=False, previous_response_id=last)["id"]
    assert context_of(script) == ["a", "1", "b", "2", "c"]


def test_an_unstored_response_is_unknown_elsewhere(connect: Connect, socket: Socket, api: Api, script: Script) -> None:
    first = socket.respond(model=script.say("1").model, input="a", store=False)["id"]
    follow = {"model": script.model, "input": "b", "previous_response_id": first}
    with connect() as other:
        assert other.refuse(create(**follow)) == UNKNOWN
    assert api.post("/responses", follow).json()["error"]["code"] == "previous_response_not_found"
    assert api.get(f"/responses/{first}").status_code == 404


def test_a_stream_remembers_only_its_last_response(socket: Socket, script: Script) -> None:
    script.say("1").say("2")
    first = socket.respond(model=script.model, input="a", store=False)["id"]
    socket.respond(model=script.model, input="b", store=False, previous_response_id=first)
    assert socket.refuse(create(model=script.model, input="c", previous_response_id=first)) == UNKNOWN


def test_a_stored_response_replaces_the_remembered_one(socket: Socket, script: Script) -> None:
    script.say("1").say("2")
    first = socket.respond(model=script.model, input="a", store=False)["id"]
    socket.respond(model=script.model, input="b")
    assert socket.refuse(create(model=script.model, input="c", previous_response_id=first)) == UNKNOWN


def test_another_stream_can_fork_a_remembered_response(socket: Socket, script: Script) -> None:
    script.say("1").say("2").say("3")
    first = socket.respond(model=script.model, input="a", store=False)["id"]
    fork = {"model": script.model, "store": False, "previous_response_id": first}
    socket.respond(input="b", stream_id="fork", **fork)
    socket.respond(input="c", **fork)
    assert (context_of(script, 1), context_of(script, 2)) == (["a", "1", "b"], ["a", "1", "c"])


def test_function_calls_work_without_stored_responses(socket: Socket, script: Script) -> None:
    script.call(look="{}").say("A cat.")
    first = socket.respond(model=script.model, input="Hi", store=False)
    output = {"type": "function_call_output", "call_id": "call_look", "output": "a cat"}
    second = socket.respond(model=script.model, input=[output], store=False, previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "A cat."
    assert [message["role"] for message in script.messages[1]] == ["user", "assistant", "tool"]


def test_a_remembered_call_without_its_output_is_refused(socket: Socket, script: Script) -> None:
    first = socket.respond(model=script.call(look="{}").model, input="Hi", store=False)["id"]
    error = socket.refuse(create(model=script.model, input="b", previous_response_id=first))
    assert error == error_event(None, "input")


def test_a_refused_continuation_forgets_the_parent(socket: Socket, script: Script) -> None:
    first = socket.respond(model=script.say("1").model, input="a", store=False)["id"]
    follow = create(model=script.model, input="b", previous_response_id=first)
    assert socket.refuse({**follow, "temperature": 9})["error"]["param"] == "temperature"
    assert socket.refuse(follow) == UNKNOWN


def test_a_failed_continuation_forgets_the_parent(socket: Socket, script: Script) -> None:
    script.say("1").then(refusal(400))
    first = socket.respond(model=script.model, input="a", store=False)["id"]
    follow = create(model=script.model, input="b", previous_response_id=first, store=False)
    socket.send(follow)
    failed = socket.rest_of_failed(socket.rest())[-1]["response"]
    assert socket.refuse(follow) == UNKNOWN
    assert socket.refuse({**follow, "previous_response_id": failed["id"]}) == UNKNOWN


def test_a_refused_fork_keeps_the_other_streams_parent(socket: Socket, script: Script) -> None:
    script.say("1").say("2")
    first = socket.respond(model=script.model, input="a", store=False)["id"]
    fork = create(model=script.model, input="b", previous_response_id=first, temperature=9, stream_id="fork")
    assert socket.refuse(fork)["error"]["param"] == "temperature"
    assert socket.respond(model=script.model, input="b", store=False, previous_response_id=first)["id"]


def test_a_refused_request_keeps_an_unrelated_parent(socket: Socket, script: Script) -> None:
    script.say("1").say("2")
    first = socket.respond(model=script.model, input="a", store=False)["id"]
    assert socket.refuse(create(model=script.model))["error"]["param"] == "input"
    assert socket.respond(model=script.model, input="b", store=False, previous_response_id=first)["id"]


def test_any_stored_response_of_the_team_can_be_continued(
    connect: Connect, socket: Socket, api: Api, script: Script
) -> None:
    script.say("1").say("2").say("3").say("4")
    first = api.create(model=script.model, input="a")["id"]
    second = socket.respond(model=script.model, input="b", previous_response_id=first)["id"]
    with connect() as other:
        third = other.respond(model=script.model, input="c", previous_response_id=second)["id"]
    api.create(model=script.model, input="d", previous_response_id=third)
    assert context_of(script) == ["a", "1", "b", "2", "c", "3", "d"]


def test_a_deleted_response_cannot_be_continued(socket: Socket, api: Api, script: Script) -> None:
    first = socket.respond(model=script.say("1").model, input="a")["id"]
    api.delete(f"/responses/{first}")
    assert socket.refuse(create(model=script.model, input="b", previous_response_id=first)) == UNKNOWN


@pytest.mark.slow
def test_a_stored_response_includes_its_unstored_context(socket: Socket, api: Api, script: Script) -> None:
    stored = (True, False, False, True, False, True)
    last: Any = None
    for number, store in enumerate(stored):
        script.say(f"{number}!")
        body = {"input": f"{number}?", "store": store, "previous_response_id": last}
        response = socket.respond(model=script.model, **body)
        assert response["previous_response_id"] == last
        last = response["id"]
    api.create(model=script.say("done").model, input="now", previous_response_id=last)
    messages = [f"{number}{mark}" for number in range(len(stored)) for mark in "?!"]
    assert context_of(script) == [*messages, "now"]
    assert [item["content"][0]["text"] for item in api.input_items(last)] == messages[:-1]


def test_another_teams_response_is_not_found(
    socket: Socket, server: WebProcess, make_caller: MakeCaller, script: Script
) -> None:
    script.say("1").say("2")
    kept = [socket.respond(model=script.model, input="a", store=store)["id"] for store in (True, False)]
    with open_socket(server.url, secret=make_caller().secret) as outsider:
        for response_id in [*kept, "resp_unknown"]:
            event = create(model=script.model, input="b", previous_response_id=response_id)
            assert outsider.refuse(event) == UNKNOWN


# -- generate: false ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False])
def test_generate_false_completes_without_output_and_can_be_continued(
    socket: Socket, script: Script, store: bool
) -> None:
    warm = socket.create(model=script.model, input="a", generate=False, store=store)
    assert types(warm) == ["response.created", "response.in_progress", "response.completed"]
    assert (warm[-1]["response"]["output"], warm[-1]["response"]["usage"]) == ([], None)
    assert script.received == []
    script.say("1")
    socket.respond(model=script.model, input="b", previous_response_id=warm[-1]["response"]["id"], store=store)
    assert context_of(script) == ["a", "b"]


def test_generate_false_is_stored_without_usage(socket: Socket, api: Api, script: Script, database: None) -> None:
    warm = socket.create(model=script.model, input="a", generate=False)
    assert_stream_equals_stored(warm, api.retrieve(warm[0]["response"]["id"]))
    with scope.team(api.caller.team.pk):
        assert not UsageRecord.objects.exists()


# -- upgrade -----------------------------------------------------------------------------------------------------------


def refusal_of(server: WebProcess, *, path: str = "/v1/responses", secret: str = "", **headers: str) -> InvalidStatus:
    """Return the response to an upgrade that must be refused."""
    with pytest.raises(InvalidStatus) as caught, open_socket(server.url, path=path, secret=secret, **headers):
        pass
    return caught.value


@pytest.mark.parametrize("secret", ["", "sk-wrong"])
def test_an_upgrade_without_a_key_is_refused(server: WebProcess, secret: str) -> None:
    assert refusal_of(server, secret=secret).response.status_code in (401, 403)


def test_a_refused_upgrade_has_a_full_error_body_if_supported(web: WebProcess) -> None:
    answer = refusal_of(web, secret="sk-wrong").response
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert orjson.loads(answer.body or b"")["error"]["code"] == "invalid_api_key"


def test_an_upgrade_without_the_write_scope_is_refused(server: WebProcess, make_caller: MakeCaller) -> None:
    reader = make_caller(scopes=["responses.read"])
    assert refusal_of(server, secret=reader.secret).response.status_code == 403


def test_an_upgrade_at_another_path_is_refused(server: WebProcess, caller: Caller) -> None:
    assert refusal_of(server, secret=caller.secret, path="/v1/models").response.status_code in (403, 404)


def test_an_invalid_client_request_id_is_refused(server: WebProcess, caller: Caller) -> None:
    answer = refusal_of(server, secret=caller.secret, X_Client_Request_Id="x" * 513).response
    assert answer.status_code in (400, 403)


def test_key_and_request_ids_are_stored(server: WebProcess, caller: Caller, script: Script) -> None:
    with open_socket(server.url, secret=caller.secret, X_Client_Request_Id="mine") as socket:
        socket.respond(model=script.say("Hello").model, input="Hi", safety_identifier="them")
    with scope.team(caller.team.pk):
        row = Response.objects.get()
    assert (row.client_request_id, row.end_user, row.request_id[:4]) == ("mine", "them", "req_")


@pytest.mark.slow
def test_a_revoked_key_is_refused_on_open_connections(socket: Socket, caller: Caller) -> None:
    assert socket.refuse(create())["status"] == 400
    services.revoke_key(key=caller.key)
    eventually(lambda: socket.refuse(create())["error"]["code"] == "api_key_revoked")


# -- end of a connection -----------------------------------------------------------------------------------------------


def start_response(socket: Socket, script: Script, **more: Any) -> Gate:
    """Request a response whose upstream pauses in the middle."""
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")[1:]))
    socket.ask(model=script.model, input="Hi", **more)
    gate.wait_until_reached()
    return gate


leave = pytest.mark.parametrize("leave", [Socket.vanish, Socket.close], ids=["vanished", "closed"])


@leave
def test_a_disconnect_cancels_an_unstored_response(
    connect: Connect, script: Script, caller: Caller, leave: Callable[[Socket], None]
) -> None:
    with connect() as socket:
        for stream_id in ("a", "b"):
            start_response(socket, script, store=False, stream_id=stream_id)
        leave(socket)
        assert all(received.was_closed() for received in script.received)
    with scope.team(caller.team.pk):
        eventually(lambda: set(Response.objects.values_list("status", flat=True)) == {"cancelled"})


@leave
def test_a_stored_response_continues_after_a_disconnect(
    connect: Connect, api: Api, script: Script, leave: Callable[[Socket], None]
) -> None:
    with connect() as socket:
        gate = start_response(socket, script)
        response_id = socket.next()["response"]["id"]
        leave(socket)
    with api.follow(response_id) as live:
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"


def test_a_disconnect_drops_waiting_requests(connect: Connect, script: Script, caller: Caller) -> None:
    with connect() as socket:
        gate = start_response(socket, script, store=False)
        socket.ask(model=script.model, input="never")
        socket.vanish()
        assert script.received[0].was_closed()
    gate.open()
    with scope.team(caller.team.pk):
        assert Response.objects.count() == 1


def test_connections_are_isolated_from_each_other(connect: Connect, script: Script, other_script: Script) -> None:
    with connect() as first, connect() as second:
        gate = start_response(first, script, stream_id="a")
        response = second.respond(model=other_script.say("Hello").model, input="Hi", stream_id="a")
        gate.open()
        events = first.rest()
    assert_well_formed(events)
    assert events[0]["response"]["id"] != response["id"]


@pytest.mark.slow
def test_a_connection_ends_after_its_maximum_duration(caller: Caller, script: Script) -> None:
    began = time.monotonic()
    with short_lived_server(seconds=600) as url, open_socket(url, secret=caller.secret) as socket:
        start_response(socket, script, store=False).open()
        socket.rest()
    # Long enough for a response to begin, however slow the machine is.
    seconds = 0.5 + 3 * (time.monotonic() - began)
    with short_lived_server(seconds=seconds) as url, open_socket(url, secret=caller.secret) as socket:
        start_response(socket, script, store=False)
        error = socket.rest()[-1]
        assert (error["status"], error["error"]["code"]) == (400, "websocket_connection_limit_reached")
        with pytest.raises(ConnectionClosed) as closed:
            socket.next()
        assert script.received[1].was_closed()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


@pytest.mark.slow
@pytest.mark.nightly
def test_an_idle_connection_stays_open(web: WebProcess, daphne_web: WebProcess, caller: Caller, script: Script) -> None:
    with ExitStack() as stack:
        servers = (web, daphne_web)
        sockets = [stack.enter_context(open_socket(server.url, secret=caller.secret)) for server in servers]
        # Longer than the ping timeout of either server.
        for socket in sockets:
            socket.stay_silent(60 / len(sockets))
        for socket in sockets:
            assert socket.respond(model=script.say("Hello").model, input="Hi")["status"] == "completed"


# -- idempotency keys --------------------------------------------------------------------------------------------------


def test_a_request_with_the_same_idempotency_key_gets_the_same_events(
    connect: Connect, script: Script, api: Api
) -> None:
    script.say("Hel", "lo")
    body = {"model": script.model, "input": "Hi", "idempotency_key": uuid.uuid4().hex}
    with connect() as first, connect() as second:
        events = first.create(**body)
        assert second.create(**body) == events
        assert first.create(**body) == events
    assert len(script.received) == 1


def test_a_request_joins_a_running_one_with_the_same_idempotency_key(connect: Connect, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), gate := Gate(), chunk(content="lo"), chunk(finish="stop")))
    body = {"model": script.model, "input": "Hi", "idempotency_key": uuid.uuid4().hex}
    with connect() as first, connect() as second:
        first.ask(**body)
        gate.wait_until_reached()
        second.ask(**body)
        gate.open()
        assert first.rest() == second.rest()
    assert len(script.received) == 1


def test_another_request_with_the_same_idempotency_key_is_refused(socket: Socket, script: Script) -> None:
    script.say("Hello")
    key = uuid.uuid4().hex
    socket.create(model=script.model, input="Hi", idempotency_key=key)
    socket.ask(model=script.model, input="Bye", idempotency_key=key)
    event = socket.next()
    assert (event["status"], event["error"]["code"]) == (409, "idempotency_key_reused")
    socket.ask(model=script.model, input="Hi", idempotency_key=7)
    assert socket.next()["error"]["param"] == "idempotency_key"


def test_an_invalid_request_with_an_idempotency_key_gets_the_same_error(socket: Socket, script: Script) -> None:
    key = uuid.uuid4().hex
    errors = []
    for _ in range(2):
        socket.ask(model=script.model, input=7, idempotency_key=key)
        errors.append(socket.next())
    assert errors[0]["status"] == 400
    assert errors[0]["error"] == errors[1]["error"]

"""POST requests with an idempotency key: they are executed once, and repetitions get the same answer."""

import copy
import signal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import httpx2
import openai
import orjson
import pytest
from openai import OpenAI

from core.clock import now
from idempotency import store
from idempotency.models import AnswerChunk, IdempotentRequest
from responses.lifecycle import sweeper
from responses.models import Response
from tenants import scope
from tests.support.api import Api, Caller, MakeCaller, error, ok
from tests.support.chunks import chunk, completion, text
from tests.support.limits import limit
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Answer, Gate, Script, stream, whole
from tests.support.usage_records import usage_records
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web

PATHS = ("/responses", "/chat/completions", "/messages")
modes = pytest.mark.parametrize("streamed", [False, True], ids=["JSON", "stream"])
endpoints = pytest.mark.parametrize("path", PATHS)


def new_key() -> str:
    return uuid.uuid4().hex


def body_of(path: str, script: Script, **more: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"input": "Hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    return {"model": script.model, **own, **({"max_tokens": 64} if path == "/messages" else {}), **more}


def send(api: Api, path: str, body: Any, key: str) -> httpx2.Response:
    return api.post(path, body, headers={"Idempotency-Key": key})


def with_key(api: Api, key: str) -> Api:
    """Return a client that sends a key with each request."""
    client = copy.copy(api)
    client.headers = {**api.headers, "Idempotency-Key": key}
    return client


def gated(gate: Gate, *, streamed: bool) -> Answer:
    """Return an answer that ends when the gate opens."""
    if streamed:
        return stream(chunk(content="Hel"), gate, chunk(content="lo"), chunk(finish="stop"))
    raw = orjson.dumps(completion("Hello"))
    return Answer(pieces=[gate, raw], content_type="application/json", done=False)


def rows(caller: Caller) -> list[IdempotentRequest]:
    with scope.team(caller.team.pk):
        return [*IdempotentRequest.objects.filter(team_id=caller.team.pk)]


@endpoints
@modes
def test_a_repetition_gets_the_same_bytes_without_a_call_of_the_model(
    api: Api, script: Script, path: str, *, streamed: bool
) -> None:
    script.say("Hello")
    body, key = body_of(path, script, stream=streamed), new_key()
    first, second = send(api, path, body, key), send(api, path, body, key)
    assert first.status_code == second.status_code == HTTPStatus.OK
    assert first.content == second.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["content-type"] == first.headers["content-type"]
    assert len(script.received) == 1
    assert len(usage_records(api.caller, 1)) == 1


def test_the_order_of_keys_in_the_body_makes_no_difference(api: Api, script: Script) -> None:
    script.say("Hello")
    key = new_key()
    body = body_of("/responses", script)
    first = send(api, "/responses", body, key)
    assert send(api, "/responses", dict(reversed(body.items())), key).content == first.content


@endpoints
def test_another_body_with_the_same_key_is_refused(api: Api, script: Script, path: str) -> None:
    script.say("Hello")
    key = new_key()
    ok(send(api, path, body_of(path, script), key))
    refused = send(api, path, body_of(path, script, temperature=0.5), key)
    assert refused.status_code == HTTPStatus.CONFLICT
    assert refused.headers["x-should-retry"] == "false"
    if path != "/messages":
        assert error(refused)[2] == "idempotency_key_reused"
    assert len(script.received) == 1


def test_a_remembered_4xx_is_repeated(api: Api, script: Script) -> None:
    key, body = new_key(), {"model": script.model, "input": 7}
    first, second = send(api, "/responses", body, key), send(api, "/responses", body, key)
    assert first.status_code == second.status_code == HTTPStatus.BAD_REQUEST
    assert first.content == second.content
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_forgotten_error_is_tried_again(api: Api, script: Script, status: int) -> None:
    headers = {"x-should-retry": "false"}
    script.then(whole({"error": {"message": "Not now.", "code": "scripted"}}, status=status, headers=headers))
    script.say("Hello")
    key, body = new_key(), body_of("/chat/completions", script)
    assert send(api, "/chat/completions", body, key).status_code >= HTTPStatus.BAD_REQUEST
    answer = send(api, "/chat/completions", body, key)
    assert answer.status_code == HTTPStatus.OK
    assert "idempotent-replayed" not in answer.headers


def test_a_refusal_by_a_limit_is_tried_again(api: Api, script: Script) -> None:
    limit(api.caller, budget="0.0000001")
    key, body = new_key(), body_of("/responses", script)
    first = send(api, "/responses", body, key)
    assert first.status_code in {HTTPStatus.BAD_REQUEST, HTTPStatus.TOO_MANY_REQUESTS}
    if first.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        assert "idempotent-replayed" not in send(api, "/responses", body, key).headers


@endpoints
@modes
def test_a_repetition_joins_the_running_request(api: Api, script: Script, path: str, *, streamed: bool) -> None:
    script.then(gated(gate := Gate(), streamed=streamed))
    body, key = body_of(path, script, stream=streamed), new_key()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(send, api, path, body, key)
        gate.wait_until_reached()
        others = [pool.submit(send, api, path, body, key) for _ in range(3)]
        gate.open()
        answers = [first.result(), *(other.result() for other in others)]
    assert {answer.status_code for answer in answers} == {HTTPStatus.OK}
    assert len({answer.content for answer in answers}) == 1
    assert len(script.received) == 1


def test_requests_at_the_same_time_are_executed_once(api: Api, script: Script) -> None:
    script.say("Hello")
    body, key, start = body_of("/responses", script), new_key(), threading.Barrier(16)

    def post(_: int) -> bytes:
        start.wait()
        return send(api, "/responses", body, key).content

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(post, range(16)))) == 1
    assert len(script.received) == 1


@modes
def test_a_repetition_at_another_process_joins_the_running_request(
    api: Api, http: httpx2.Client, script: Script, *, streamed: bool
) -> None:
    script.then(gated(gate := Gate(), streamed=streamed))
    body, key = body_of("/chat/completions", script, stream=streamed), new_key()
    with running_web() as other, ThreadPoolExecutor(2) as pool:
        there = Api(http, url=other.url, caller=api.caller)
        first = pool.submit(send, api, "/chat/completions", body, key)
        gate.wait_until_reached()
        second = pool.submit(send, there, "/chat/completions", body, key)
        gate.open()
        assert first.result().content == second.result().content
        assert send(there, "/chat/completions", body, key).content == first.result().content
    assert len(script.received) == 1


@endpoints
def test_a_request_goes_on_when_its_client_has_left(api: Api, script: Script, path: str) -> None:
    script.then(stream(chunk(content="Hel"), gate := Gate(), chunk(content="lo"), chunk(finish="stop")))
    body, key = body_of(path, script, stream=True), new_key()
    with with_key(api, key).stream(path, **body) as live:
        while "Hel" not in str(live.next()):
            pass
    gate.open()
    answer = send(api, path, body, key)
    assert "lo" in answer.text
    assert len(script.received) == 1


def test_another_team_and_another_key_of_the_team_are_other_callers(
    api: Api, script: Script, make_caller: MakeCaller, http: httpx2.Client, web: WebProcess
) -> None:
    script.say("One").say("Two").say("Three")
    key = new_key()
    of_team = make_caller(team=api.caller.team)
    others = [Api(http, url=web.url, caller=caller) for caller in (of_team, make_caller())]
    answers = [send(client, "/responses", body_of("/responses", script), key).json()["id"] for client in (api, *others)]
    assert len(set(answers)) == 3


def test_the_same_key_on_another_path_is_another_request(api: Api, script: Script) -> None:
    script.say("One").say("Two")
    key = new_key()
    ok(send(api, "/responses", body_of("/responses", script), key))
    ok(send(api, "/chat/completions", body_of("/chat/completions", script), key))
    assert len(script.received) == 2


def test_an_expired_key_can_be_used_again(api: Api, script: Script) -> None:
    script.say("One").say("Two")
    key, body = new_key(), body_of("/responses", script)
    first = ok(send(api, "/responses", body, key))["id"]
    with scope.team(api.caller.team.pk):
        IdempotentRequest.objects.update(expires_at=now() - timedelta(minutes=1))
    assert ok(send(api, "/responses", body, key))["id"] != first


def test_a_key_is_valid_for_24_hours(api: Api, script: Script) -> None:
    script.say("Hello")
    send(api, "/responses", body_of("/responses", script), new_key())
    (row,) = rows(api.caller)
    assert timedelta(hours=23, minutes=59) < row.expires_at - row.created_at <= timedelta(hours=24, minutes=1)


@modes
def test_an_answer_that_must_not_be_stored_is_not_repeated(api: Api, script: Script, *, streamed: bool) -> None:
    script.say("Secret")
    body, key = body_of("/responses", script, stream=streamed, store=False), new_key()
    assert "Secret" in send(api, "/responses", body, key).text
    refused = send(api, "/responses", body, key)
    assert refused.status_code == HTTPStatus.CONFLICT
    assert error(refused)[2] == "idempotent_answer_not_stored"
    assert refused.headers["x-should-retry"] == "false"


def test_an_answer_that_must_not_be_stored_is_shared_while_it_runs(api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Sec"), gate := Gate(), chunk(content="ret"), chunk(finish="stop")))
    body, key = body_of("/responses", script, store=False), new_key()
    clients = [with_key(api, key) for _ in range(2)]
    with clients[0].stream(**body) as first, clients[1].stream(**body) as second:
        for live in (first, second):
            while "Sec" not in str(live.next()):
                pass
        gate.open()
        assert "ret" in str(first.rest())
        assert "ret" in str(second.rest())
        assert first.raw == second.raw
    with scope.team(api.caller.team.pk):
        IdempotentRequest.objects.update(answered_at=now() - timedelta(minutes=1))
    store.sweep()
    with scope.team(api.caller.team.pk):
        assert not AnswerChunk.objects.exists()


def test_expired_rows_are_deleted(api: Api, script: Script) -> None:
    script.say("Hello")
    send(api, "/responses", body_of("/responses", script), new_key())
    with scope.team(api.caller.team.pk):
        IdempotentRequest.objects.update(expires_at=now() - timedelta(minutes=1))
    store.sweep()
    assert rows(api.caller) == []


@pytest.mark.parametrize("key", ["", "k" * 256, "schlüssel", "a\tb"])
def test_an_invalid_key_is_refused(api: Api, script: Script, key: str) -> None:
    answer = api.post("/responses", body_of("/responses", script), headers={"Idempotency-Key": key.encode("latin-1")})
    assert error(answer)[1] == "Idempotency-Key"
    assert script.received == []


@pytest.mark.usefixtures("no_worker")
def test_a_background_response_is_created_once(api: Api, script: Script) -> None:
    body, key = body_of("/responses", script, background=True), new_key()
    first, second = (send(api, "/responses", body, key) for _ in range(2))
    assert first.content == second.content
    with scope.team(api.caller.team.pk):
        assert Response.objects.count() == 1
    api.post(f"/responses/{first.json()['id']}/cancel", {})


def test_an_object_is_created_once(api: Api) -> None:
    key, body = new_key(), {"metadata": {"topic": "boats"}}
    ids = {ok(send(api, "/conversations", body, key))["id"] for _ in range(2)}
    assert len(ids) == 1


def test_an_upload_is_stored_once(client: OpenAI) -> None:
    headers = {"Idempotency-Key": new_key()}
    made = [
        client.files.create(file=("a.txt", b"x" * 3_000_000), purpose="user_data", extra_headers=headers)
        for _ in range(2)
    ]
    assert made[0].id == made[1].id
    with pytest.raises(openai.ConflictError):
        client.files.create(file=("a.txt", b"y" * 3_000_000), purpose="user_data", extra_headers=headers)


def test_a_joined_request_is_counted_once_by_limits(api: Api, script: Script) -> None:
    limit(api.caller, requests_per_minute=2)
    script.say("Hello")
    key, body = new_key(), body_of("/responses", script)
    assert [send(api, "/responses", body, key).status_code for _ in range(5)] == [HTTPStatus.OK] * 5


def test_the_sdk_repeats_a_request_whose_connection_was_lost(api: Api, script: Script, client: OpenAI) -> None:
    script.then(gated(gate := Gate(), streamed=False))
    impatient = client.with_options(timeout=1.0, max_retries=5)
    opener = threading.Timer(2.5, gate.open)
    opener.start()
    response = impatient.responses.create(model=script.model, input="Hi", extra_headers={"Idempotency-Key": new_key()})
    assert response.output_text == "Hello"
    assert len(script.received) == 1


def ended(api: Api) -> Callable[[], bool]:
    def has_ended() -> bool:
        sweeper.sweep_dead_runs()
        with scope.team(api.caller.team.pk):
            return not Response.objects.filter(ended_at=None).exists()

    return has_ended


@pytest.mark.slow
@endpoints
@modes
def test_a_request_of_a_killed_process_is_executed_again(
    api: Api, http: httpx2.Client, script: Script, path: str, *, streamed: bool
) -> None:
    script.then(gated(gate := Gate(), streamed=streamed)).then(stream(*text("Hello")))
    body, key = body_of(path, script, stream=streamed), new_key()
    with running_web(LEASE_SECONDS="3") as doomed, ThreadPoolExecutor(1) as pool:
        pool.submit(send, Api(http, url=doomed.url, caller=api.caller), path, body, key)
        gate.wait_until_reached()
        doomed.stop(signal.SIGKILL)
    with running_web(LEASE_SECONDS="3") as other, ThreadPoolExecutor(1) as pool:
        there = Api(http, url=other.url, caller=api.caller)
        answer = pool.submit(send, there, path, body, key)
        eventually(ended(api))
        assert "Hello" in answer.result().text
        assert send(there, path, body, key).content == answer.result().content
    assert len(script.received) == 2


@pytest.mark.slow
def test_a_completed_response_whose_answer_was_lost_is_returned(api: Api, http: httpx2.Client, script: Script) -> None:
    """The process dies after the response was committed, before its answer was stored."""
    script.say("Hello")
    body, key = body_of("/responses", script), new_key()
    made = ok(send(api, "/responses", body, key))
    with scope.team(api.caller.team.pk):
        AnswerChunk.objects.all().delete()
        IdempotentRequest.objects.update(state="running", lease_until=now() - timedelta(hours=1))
    assert ok(send(api, "/responses", body, key))["id"] == made["id"]
    with scope.team(api.caller.team.pk):
        AnswerChunk.objects.all().delete()
        IdempotentRequest.objects.update(state="running", lease_until=now() - timedelta(hours=1))
    assert len(script.received) == 1


def test_a_message_whose_answer_was_lost_is_written_again(api: Api, script: Script) -> None:
    """The response that it has left is not in the format of Messages."""
    script.say("Hello").say("Hello")
    body, key = body_of("/messages", script), new_key()
    send(api, "/messages", body, key)
    with scope.team(api.caller.team.pk):
        AnswerChunk.objects.all().delete()
        IdempotentRequest.objects.update(state="running", lease_until=now() - timedelta(hours=1))
    assert send(api, "/messages", body, key).json()["type"] == "message"
    assert len(script.received) == 2


def test_a_broken_answer_of_a_form_is_not_confused_with_another(api: Api, script: Script) -> None:
    """Bodies that are not JSON are compared by their bytes."""
    key = new_key()
    first = send(api, "/responses", b'{"model": ', key)
    assert first.status_code == HTTPStatus.BAD_REQUEST
    assert send(api, "/responses", b'{"model": ', key).content == first.content
    assert send(api, "/responses", b'{"mode": ', key).status_code == HTTPStatus.CONFLICT


@pytest.mark.parametrize("is_called", [False, True], ids=["before a call", "after a call"])
@modes
def test_a_failure_is_remembered_once_a_hosted_tool_was_called(
    reaching: Api, script: Script, served: McpServer, *, streamed: bool, is_called: bool
) -> None:
    if is_called:
        script.call(box__add='{"a":2,"b":3}')
    failure = whole({"error": {"message": "Down."}}, status=500, headers={"x-should-retry": "false"})
    script.then(failure)
    key = new_key()
    body = {"model": script.model, "input": "2+3?", "tools": [tool(served)], "stream": streamed}
    first = send(reaching, "/responses", body, key)
    if not is_called:
        script.then(failure)
    second = send(reaching, "/responses", body, key)
    assert first.status_code == second.status_code
    assert ("idempotent-replayed" in second.headers) is is_called
    assert len(served.calls) == is_called
    if is_called:
        assert first.content == second.content


def test_the_answer_is_deleted_with_its_response(api: Api, script: Script) -> None:
    script.say("Secret")
    key, body = new_key(), body_of("/responses", script)
    made = ok(send(api, "/responses", body, key))
    ok(api.delete(f"/responses/{made['id']}"))
    with scope.team(api.caller.team.pk):
        assert not AnswerChunk.objects.exists()
    assert error(send(api, "/responses", body, key))[2] == "idempotent_answer_not_stored"

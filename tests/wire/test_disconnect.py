"""Clients that disconnect: their runs continue or stop as configured, on both servers, for streams and for JSON."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from responses.models import RUNNING, Response
from tenants import scope
from tenants.models import Team, UsageRecord
from tests.support.api import Api, MakeCaller
from tests.support.chunks import chunk, text
from tests.support.upstream import Answer, Gate, Received, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess

MakeApiWithGrace = Callable[[int | None], Api]


pytestmark = pytest.mark.slow


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    """Both web servers: each reports a disconnect in its own way."""
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.fixture
def with_grace_period(server: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> MakeApiWithGrace:
    """Create a team with this grace period in seconds; None lets runs continue to their end."""

    def make(grace: int | None) -> Api:
        caller = make_caller()
        with scope.every_team():
            Team.objects.filter(pk=caller.team.pk).update(disconnect_grace_seconds=grace)
        return Api(http, url=server.url, caller=caller)

    return make


streamed_or_not = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])


@contextmanager
def running_request(api: Api, script: Script, gate: Gate, *, streamed: bool, **more: Any) -> Iterator[Received]:
    """A run whose upstream has sent "Hel" and waits at the gate. The client disconnects when the block ends."""
    script.then(stream(chunk(content="Hel"), gate, *text("lo")[1:]))
    with api.open("/responses", {"model": script.model, "input": "Hi", "stream": streamed, **more}):
        received = script.wait_for_call()
        gate.wait_until_reached()
        yield received


def only_response(api: Api) -> Response:
    """Return the only response of the team."""
    with scope.team(api.caller.team.pk):
        return Response.objects.get()


def ended_response(api: Api) -> Response:
    """Return the only response of the team when its run has ended."""
    eventually(lambda: only_response(api).ended_at)
    return only_response(api)


@streamed_or_not
def test_an_unstored_run_is_aborted_within_a_second(
    with_grace_period: MakeApiWithGrace, script: Script, streamed: bool
) -> None:
    api = with_grace_period(None)
    with running_request(api, script, Gate(), streamed=streamed, store=False) as received:
        pass
    assert received.was_closed()
    assert (ended_response(api).status, ended_response(api).parameters) == ("cancelled", {})


@streamed_or_not
def test_a_run_is_aborted_immediately_without_a_grace_period(
    with_grace_period: MakeApiWithGrace, script: Script, streamed: bool
) -> None:
    api = with_grace_period(0)
    with running_request(api, script, Gate(), streamed=streamed) as received:
        pass
    assert received.was_closed()
    response = api.retrieve(ended_response(api).pk)
    (message,) = response["output"]
    assert (response["status"], response["error"], response["incomplete_details"]) == ("cancelled", None, None)
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hel")


@streamed_or_not
def test_a_disconnect_after_a_large_request_is_noticed(
    with_grace_period: MakeApiWithGrace, script: Script, streamed: bool
) -> None:
    # A server pauses the reading of a body that is larger than its buffer.
    api = with_grace_period(0)
    with running_request(api, script, Gate(), streamed=streamed, input="Hi " * 1_000_000) as received:
        pass
    assert received.was_closed()
    assert ended_response(api).status == "cancelled"


@streamed_or_not
def test_a_stored_run_continues_for_the_grace_period(
    with_grace_period: MakeApiWithGrace, script: Script, streamed: bool
) -> None:
    api = with_grace_period(3)
    with running_request(api, script, Gate(), streamed=streamed) as received:
        left = time.monotonic()
    assert not received.was_closed(within=0.7)
    assert only_response(api).status == "in_progress"
    assert received.was_closed()
    assert time.monotonic() - left >= 3.0
    assert ended_response(api).status == "cancelled"


@streamed_or_not
@pytest.mark.parametrize("grace", [30, None])
def test_a_run_that_ends_within_the_grace_period_is_complete(
    with_grace_period: MakeApiWithGrace, script: Script, streamed: bool, grace: int | None
) -> None:
    api, gate = with_grace_period(grace), Gate()
    with running_request(api, script, gate, streamed=streamed):
        pass
    gate.open()
    response = api.retrieve(ended_response(api).pk)
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", "Hello")


def test_a_cancelled_run_has_a_usage_record(with_grace_period: MakeApiWithGrace, script: Script) -> None:
    api = with_grace_period(0)
    with running_request(api, script, Gate(), streamed=True):
        pass
    response = ended_response(api)
    with scope.team(api.caller.team.pk):
        ledger = UsageRecord.objects.get()
    assert (ledger.object_id, ledger.outcome, ledger.estimated) == (response.pk, "interrupted", True)
    assert ledger.output_tokens == response.output_tokens > 0


def test_a_cancelled_response_can_be_continued(with_grace_period: MakeApiWithGrace, script: Script) -> None:
    api = with_grace_period(0)
    with running_request(api, script, Gate(), streamed=True):
        pass
    script.say("Again")
    api.create(model=script.model, input="?", previous_response_id=ended_response(api).pk)
    assert [message["content"] for message in script.messages[1]] == ["Hi", "Hel", "?"]


def test_a_disconnect_before_the_upstream_answers_is_noticed(
    with_grace_period: MakeApiWithGrace, script: Script
) -> None:
    api = with_grace_period(0)
    script.then(Answer(pieces=[Gate()], delayed_head=True))
    with api.open("/responses", {"model": script.model, "input": "Hi", "stream": True}):
        received = script.wait_for_call()
    assert received.was_closed()
    assert (ended_response(api).status, ended_response(api).output_tokens) == ("cancelled", 0)


@streamed_or_not
def test_an_immediate_disconnect_leaves_no_run(
    with_grace_period: MakeApiWithGrace, script: Script, streamed: bool
) -> None:
    api = with_grace_period(0)
    script.always(stream(Gate()))
    for number in range(30):
        with api.open("/responses", {"model": script.model, "input": "Hi", "stream": streamed}):
            time.sleep(number / 4000)
    api.get("/responses")
    eventually(lambda: not running(api))
    assert all(received.was_closed() for received in script.received)


def running(api: Api) -> int:
    with scope.team(api.caller.team.pk):
        return Response.objects.filter(status__in=RUNNING).count()


def test_a_disconnect_during_the_request_leaves_nothing(
    with_grace_period: MakeApiWithGrace, server: WebProcess
) -> None:
    api = with_grace_period(0)
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /v1/responses HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api.caller.secret}\r\n"
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(head.encode() + b'Content-Length: 100\r\n\r\n{"model": "m", "inp')
    assert api.get("/responses").json()["data"] == []


def test_other_streams_are_not_affected(
    with_grace_period: MakeApiWithGrace, script: Script, other_script: Script
) -> None:
    api, gate = with_grace_period(0), Gate()
    other_script.then(stream(chunk(content="Hel"), gate, chunk(content="lo"), chunk(finish="stop")))
    with api.stream(model=other_script.model, input="Hi") as live:
        with running_request(api, script, Gate(), streamed=True) as received:
            pass
        assert received.was_closed()
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"

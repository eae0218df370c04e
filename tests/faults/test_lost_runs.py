"""A run whose response was ended or deleted by another process stops: its client is released and its usage recorded."""

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest

from core.clock import now
from responses.lifecycle import sweeper
from responses.lifecycle.cancel import cancel_run
from responses.models import EventBatch, Response, Status
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, ok
from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Pause, Script, stream
from tests.support.waiting import eventually


def slow_answer(script: Script) -> Gate:
    """Return an answer that takes seconds after the gate, in chunks that are stored one by one."""
    gate = Gate()
    script.then(
        stream(chunk(content="Hel"), gate, *[piece for _ in range(20) for piece in (chunk(content="."), Pause(0.2))])
    )
    return gate


def ledger(api: Api) -> list[UsageRecord]:
    """Return the usage records of the team."""
    with scope.team(api.caller.team.pk):
        return list(UsageRecord.objects.filter(team=api.caller.team))


def test_deleting_a_running_response_stops_the_run(api: Api, script: Script, database: None) -> None:
    gate = slow_answer(script)
    with api.stream(model=script.model, input="Hi") as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
        ok(api.delete(f"/responses/{response_id}"))
        gate.open()
        live.rest()
    assert live.raw[-2] == "data: [DONE]"
    assert script.received[0].was_closed()
    eventually(lambda: len(ledger(api)) == 1)


def test_a_run_resumed_by_another_process_stops_and_writes_nothing(api: Api, script: Script, database: None) -> None:
    gate = slow_answer(script)
    with api.stream(model=script.model, input="Hi") as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
        with scope.team(api.caller.team.pk):
            taken = Response.objects.filter(pk=response_id)
            taken.update(lease_token=2, lease_owner=uuid.uuid4().hex, status=Status.IN_PROGRESS)
            batches = EventBatch.objects.filter(response_id=response_id).count()
        gate.open()
        live.rest()
    assert script.received[0].was_closed()
    with scope.team(api.caller.team.pk):
        assert EventBatch.objects.filter(response_id=response_id).count() <= batches + 1
    # The process that has taken the run records an estimate of the call.
    assert ledger(api) == []


REQUESTS: list[dict[str, Any]] = [
    {},
    {
        "instructions": "Be brief. Ünï<>&\u2028",
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}],
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "metadata": {"b": "1", "a": "2"},
        "temperature": 0.5,
        "max_output_tokens": 100,
        "service_tier": "default",
        "stream_options": {"include_obfuscation": False},
    },
]


@pytest.mark.parametrize("body", REQUESTS, ids=["plain", "with parameters"])
@pytest.mark.parametrize("ends", ["swept", "cancelled"])
def test_first_events_that_were_sent_but_not_stored_are_rebuilt(
    api: Api, script: Script, database: None, body: dict[str, Any], ends: str
) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    with api.stream(model=script.model, input="Hi", **body) as live:
        response_id = live.next()["response"]["id"]
        live.next()
        gate.wait_until_reached()
        with scope.team(api.caller.team.pk):
            assert not EventBatch.objects.filter(response_id=response_id).exists()
            expired = now() - timedelta(minutes=1)
            Response.objects.filter(pk=response_id).update(lease_until=expired)
            running = Response.objects.get(pk=response_id)
        if ends == "swept":
            sweeper.end_dead_run(response_id=response_id)
        else:
            request = RequestInfo(request_id="req_test", client_request_id="")
            assert cancel_run(team_id=running.team_id, actor="test", response_id=response_id, request=request)
        gate.open()
        sent = "\n".join(live.raw)
    log = api.get(f"/responses/{response_id}", stream="true").text
    assert "response.in_progress" in sent
    assert log.startswith(sent)
    numbers = [int(number) for number in re.findall(r'"sequence_number":(\d+)', log)]
    assert numbers == list(range(len(numbers)))
    assert ("response.failed" in log) == (ends == "swept")


@pytest.mark.parametrize("usage", [[1], "many", 5])
def test_a_chat_stream_with_malformed_usage_ends(api: Api, script: Script, usage: object) -> None:
    script.then(stream(*text("Hi")[:-1], {"choices": [], "usage": usage}))
    with api.stream("/chat/completions", model=script.model, messages=[{"role": "user", "content": "Hi"}]) as live:
        assert live.rest()

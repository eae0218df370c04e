"""`POST /v1/messages/count_tokens`: the number of input tokens of a message."""

from typing import Any

import pytest

from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, ok
from tests.support.upstream import Script

HI = [{"role": "user", "content": "Hi"}]
LOOK = {"name": "look", "description": "Looks for a cat.", "input_schema": {"type": "object"}}


def count(api: Api, script: Script, **body: Any) -> int:
    counted: int = ok(api.post("/messages/count_tokens", {"model": script.model, "messages": HI, **body}))[
        "input_tokens"
    ]
    return counted


def test_all_parts_of_the_input_are_counted(api: Api, script: Script) -> None:
    least = count(api, script)
    assert least > 0
    assert count(api, script, system="You are a cat.") > least
    assert count(api, script, tools=[LOOK], tool_choice={"type": "auto"}) > least
    assert count(api, script, messages=[*HI, {"role": "assistant", "content": "Hello!"}, *HI]) > least
    assert count(api, script, thinking={"type": "enabled", "budget_tokens": 2048}) == least


def test_a_count_equals_that_of_the_response(api: Api, script: Script) -> None:
    body = {"model": script.model, "input": "Hi", "instructions": "Purr."}
    assert count(api, script, system="Purr.") == ok(api.post("/responses/input_tokens", body))["input_tokens"]


def test_counting_stores_nothing_and_calls_no_model(api: Api, script: Script) -> None:
    count(api, script)
    with scope.team(api.caller.team.pk):
        assert (Response.objects.count(), UsageRecord.objects.count()) == (0, 0)
    assert script.bodies == []


@pytest.mark.parametrize(
    ("change", "mentioned"),
    [({"messages": []}, "messages"), ({"max_tokens": 5}, "max_tokens"), ({"model": 1}, "model")],
)
def test_invalid_requests_are_rejected(api: Api, script: Script, change: dict[str, Any], mentioned: str) -> None:
    answer = api.post("/messages/count_tokens", {"model": script.model, "messages": HI, **change})
    assert answer.status_code == 400
    assert mentioned in answer.json()["error"]["message"]


def test_a_forged_signature_is_rejected(api: Api, script: Script) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "forged"}
    messages = [*HI, {"role": "assistant", "content": [thinking]}, *HI]
    answer = api.post("/messages/count_tokens", {"model": script.model, "messages": messages})
    assert answer.status_code == 400

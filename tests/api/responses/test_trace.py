"""`GET /v1/responses/{id}/attempts` and `/timeline`."""

import pytest

from tenants.models import Scope
from tests.support.api import Api, MakeApi, error, ok
from tests.support.chunks import calls
from tests.support.upstream import Script, refusal, stream


def failed_response(api: Api, script: Script) -> str:
    """Return the id of a response whose upstream has failed."""
    script.then(refusal(500, "CUDA failed on 10.1.2.3"))
    api.post("/responses", {"model": script.model, "input": "Hi"})
    return str(ok(api.get("/responses"))["data"][0]["id"])


def test_attempts_have_the_cause_of_a_failure_and_no_address_or_text(api: Api, script: Script) -> None:
    answer = api.get(f"/responses/{failed_response(api, script)}/attempts")
    (attempt,) = ok(answer)["data"]
    assert (attempt["status"], attempt["cause"], attempt["http_status"]) == ("failed", "HTTP 500", 500)
    assert (attempt["model"], attempt["turn"], attempt["object"]) == (script.model, 0, "response.attempt")
    assert not any(part in answer.text for part in ("10.1.2.3", "CUDA", "127.0.0.1"))


def test_a_repeated_request_is_an_attempt_of_its_own(api: Api, script: Script) -> None:
    script.then(refusal(500, headers={"x-should-retry": "true"})).say("Hello")
    response = api.create(model=script.model, input="Hi")
    attempts = ok(api.get(f"/responses/{response['id']}/attempts"))["data"]
    assert [(attempt["status"], attempt["cause"]) for attempt in attempts] == [("failed", "HTTP 500"), ("stop", None)]


def test_the_timeline_has_model_calls_and_tool_calls_in_order(api: Api, script: Script) -> None:
    script.then(stream(*calls(add="{}")))
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]
    response = api.create(model=script.model, input="Hi", tools=tools)
    entries = ok(api.get(f"/responses/{response['id']}/timeline"))["data"]
    steps = [(entry["type"], entry["name"]) for entry in entries if entry["type"].endswith("_call")]
    assert steps == [("model_call", "turn 1"), ("tool_call", "add")]
    assert [entry["began_ms"] for entry in entries] == sorted(entry["began_ms"] for entry in entries)


@pytest.mark.parametrize("path", ["attempts", "timeline"])
def test_another_team_gets_the_answer_of_an_unknown_id(api: Api, script: Script, make_api: MakeApi, path: str) -> None:
    response_id = failed_response(api, script)
    other = make_api()
    refused = other.get(f"/responses/{response_id}/{path}")
    unknown = other.get(f"/responses/resp_unknown/{path}")
    assert error(refused) == error(unknown) == (404, None, None)
    assert refused.text.replace(response_id, "") == unknown.text.replace("resp_unknown", "")


@pytest.mark.parametrize("path", ["attempts", "timeline"])
def test_an_unstored_response_has_none(api: Api, script: Script, path: str) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi", store=False)
    assert error(api.get(f"/responses/{response['id']}/{path}")) == (404, None, None)


def test_a_key_without_the_scope_is_refused(api: Api, script: Script, make_api: MakeApi) -> None:
    response_id = failed_response(api, script)
    refused = make_api(team=api.caller.team, scopes=[Scope.USAGE_READ]).get(f"/responses/{response_id}/attempts")
    assert error(refused)[0] == 403

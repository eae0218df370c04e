"""`POST /v1/conversations/{id}/cancel`: cancels the active run of a conversation, whichever process executes it."""

import pytest

from tests.support.api import Api, error, ok
from tests.support.chunks import text
from tests.support.conversations import begin, words
from tests.support.upstream import Gate, Script, stream
from tests.support.web import WebProcess


@pytest.mark.slow
def test_a_run_of_the_same_process_is_cancelled_without_items(api: Api, script: Script, database: None) -> None:
    script.then(stream(Gate(), *text("1"))).say("2")
    name = begin(api, "a")
    with api.stream(model=script.model, input="b", conversation=name) as live:
        response_id = live.next()["response"]["id"]
        script.wait_for_call()
        assert ok(api.post(f"/conversations/{name}/cancel", {}))["id"] == name
        assert api.retrieve(response_id)["status"] == "cancelled"
        api.create(model=script.model, input="c", conversation=name)
        live.rest()
    assert live.raw[-2] == "data: [DONE]"
    assert script.received[0].was_closed()
    assert words(api, name) == ["a", "c", "2"]


@pytest.fixture
def other_process(api: Api, daphne_web: WebProcess) -> Api:
    """Return the API of another web process, for the same team."""
    return Api(api._http, url=daphne_web.url, caller=api.caller)


def test_a_run_of_another_process_is_cancelled(api: Api, other_process: Api, script: Script, database: None) -> None:
    script.then(stream(Gate(), *text("1"))).say("2")
    name = begin(api, "a")
    with api.stream(model=script.model, input="b", conversation=name) as live:
        script.wait_for_call()
        ok(other_process.post(f"/conversations/{name}/cancel", {}))
        other_process.create(model=script.model, input="c", conversation=name)
        live.rest()
    assert live.raw[-2] == "data: [DONE]"
    assert script.received[0].was_closed()
    assert words(api, name) == ["a", "c", "2"]


def test_cancelling_without_an_active_run_succeeds(api: Api, script: Script, database: None) -> None:
    script.say("1")
    name = begin(api, "a")
    response = api.create(model=script.model, input="b", conversation=name)
    for _ in range(2):
        assert ok(api.post(f"/conversations/{name}/cancel", {}))["id"] == name
    assert api.retrieve(response["id"])["status"] == "completed"
    assert words(api, name) == ["a", "b", "1"]


@pytest.mark.slow
def test_another_teams_conversation_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("1")))
    name = begin(api)
    with api.stream(model=script.model, input="a", conversation=name) as live:
        gate.wait_until_reached()
        assert error(outsider.post(f"/conversations/{name}/cancel", {})) == (404, None, None)
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"


def test_parameters_are_rejected(api: Api) -> None:
    name = begin(api)
    answer = api.post(f"/conversations/{name}/cancel", {"response": "resp_1"})
    assert error(answer) == (400, "response", "unknown_parameter")
    assert error(api.post(f"/conversations/{name}/cancel?now=true", {}))[1] == "now"

"""`POST /v1/responses` with `background`: queued immediately, executed by a worker, retrieved by its id."""

import pytest
from openai import OpenAI

from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, error
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import mcp_server
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_background_response_is_queued_and_executed_by_a_worker(api: Api, script: Script, database: None) -> None:
    queued = api.create(model=script.say("Hello").model, input="Hi", background=True)
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    done = ended(api, queued["id"])
    assert (done["status"], done["background"], text_of(done)) == ("completed", True, ["Hello"])
    with scope.team(api.caller.team.pk):
        assert [row.outcome for row in UsageRecord.objects.filter(team=api.caller.team)] == ["stop"]


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_stream_follows_a_background_response_from_the_queue_to_its_end(api: Api, script: Script) -> None:
    events = api.events(model=script.say("Hello").model, input="Hi", background=True)
    assert types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_background_run_continues_after_its_client_disconnects(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with api.stream(model=script.model, input="Hi", background=True) as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
    gate.open()
    assert text_of(ended(api, response_id)) == ["Hello"]


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_mcp_credentials_are_available_to_the_worker(reaching: Api, script: Script) -> None:
    script.call(box__tell="{}").say("Told.")
    with mcp_server(token="token-of-the-box") as served:
        asked = tool(served, authorization="token-of-the-box")
        queued = reaching.create(model=script.model, input="Tell.", tools=[asked], background=True)
        done = ended(reaching, queued["id"])
    assert (of(done, "mcp_call")[0]["status"], text_of(done)) == ("completed", ["Told."])
    assert {headers["authorization"] for headers in served.headers} == {"Bearer token-of-the-box"}


@pytest.mark.usefixtures("worker")
def test_a_response_can_continue_a_background_response(api: Api, script: Script) -> None:
    queued = api.create(model=script.say("Ada.").model, input="Who?", background=True)
    ended(api, queued["id"])
    following = api.create(
        model=script.say("Yes.").model, input="Sure?", previous_response_id=queued["id"], background=True
    )
    assert text_of(ended(api, following["id"])) == ["Yes."]
    assert [message["content"] for message in script.messages[1]] == ["Who?", "Ada.", "Sure?"]


@pytest.mark.usefixtures("worker")
def test_the_sdk_can_poll_a_background_response(client: OpenAI, script: Script) -> None:
    queued = client.responses.create(model=script.say("Hello").model, input="Hi", background=True)
    eventually(lambda: client.responses.retrieve(queued.id).status == "completed")
    assert client.responses.retrieve(queued.id).output_text == "Hello"


@pytest.mark.usefixtures("worker")
def test_a_run_is_found_when_its_notification_is_lost(api: Api, script: Script, worker: WorkerProcess) -> None:
    """The queue is in the database; here the worker receives no notification for the run."""
    script.say("Found.")
    with worker.suspended():
        queued = api.create(model=script.model, input="Hi", background=True)
        assert api.retrieve(queued["id"])["status"] == "queued"
    assert text_of(ended(api, queued["id"])) == ["Found."]


@pytest.mark.parametrize("without", ["store", "generate"])
def test_background_without_a_required_option_is_rejected(api: Api, script: Script, without: str) -> None:
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "background": True, without: False})
    assert error(answer) == (400, "background", "invalid_value")


def test_an_invalid_request_is_rejected_before_it_is_queued(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "background": True, "previous_response_id": "resp_0"})
    assert error(answer) == (400, "previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_must_be_stored(api: Api, *, stream: bool) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "background": True, "store": False, "stream": stream})
    assert error(answer) == (400, "background", "invalid_value")
    expected = "Background sampling requires `store=true`; stateless requests are rejected."
    assert answer.json()["error"]["message"] == expected

"""`POST /v1/responses/{id}/cancel`: the stored state, wherever the run is executed, and the end of the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from tenants import scope
from tenants.models import AuditEvent, UsageRecord
from tests.support.api import Api, MakeApi, error, ok
from tests.support.background import ended
from tests.support.chunks import chunk, text
from tests.support.streams import types
from tests.support.upstream import Gate, Received, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess


def cancel(api: Api, response_id: str) -> dict[str, Any]:
    """Cancel a response and return it."""
    return ok(api.post(f"/responses/{response_id}/cancel", b""))


@contextmanager
def running(api: Api, script: Script) -> Iterator[tuple[str, Received]]:
    """Return a background run whose upstream has sent "Hel" and then waits."""
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")[1:]))
    response_id = api.create(model=script.model, input="Hi", background=True)["id"]
    received = script.wait_for_call()
    gate.wait_until_reached()
    try:
        yield response_id, received
    finally:
        gate.open()


@pytest.mark.usefixtures("worker", "database")
def test_cancelling_ends_an_active_run_and_keeps_its_output(api: Api, script: Script) -> None:
    with running(api, script) as (response_id, received), api.follow(response_id) as live:
        while live.next()["type"] != "response.output_text.delta":
            pass
        cancelled = cancel(api, response_id)
        assert received.was_closed()
        assert types(live.rest())[-1] == "response.output_item.done"
    (message,) = cancelled["output"]
    assert (cancelled["status"], cancelled["error"], message["status"]) == ("cancelled", None, "incomplete")
    assert message["content"][0]["text"] == "Hel"
    assert [line for line in live.raw if line.startswith("data: ")][-1] == "data: [DONE]"
    # Null until the worker has recorded the interrupted call.
    usage = eventually(lambda: api.retrieve(response_id)["usage"])
    assert cancelled["usage"] in (None, usage)
    assert cancel(api, response_id) == {**cancelled, "usage": usage} == api.retrieve(response_id)


@pytest.mark.usefixtures("worker", "database")
def test_a_cancelled_run_has_a_usage_record_and_an_audit_event(api: Api, script: Script) -> None:
    with running(api, script) as (response_id, received):
        cancel(api, response_id)
        cancel(api, response_id)
        # Otherwise the upstream may end its answer before the worker notices.
        assert received.was_closed()
    with scope.team(api.caller.team.pk):
        ledger = eventually(lambda: list(UsageRecord.objects.filter(object_id=response_id)))
        audited = AuditEvent.objects.get(target=response_id)
    assert [(row.outcome, row.estimated) for row in ledger] == [("interrupted", True)]
    assert (audited.action, audited.actor) == ("response.cancelled", f"key:{api.caller.key.pk}")


@pytest.mark.usefixtures("database")
def test_a_queued_response_can_be_cancelled(api: Api, script: Script, worker: WorkerProcess) -> None:
    with worker.suspended():
        response_id = api.create(model=script.model, input="Hi", background=True)["id"]
        cancelled = cancel(api, response_id)
        assert (cancelled["status"], cancelled["output"], cancelled["usage"]) == ("cancelled", [], None)
        with api.follow(response_id) as live:
            assert types(live.rest()) == ["response.created", "response.queued"]
    api.create(model=script.say("Next").model, input="Hi")
    assert api.retrieve(response_id) == cancelled


@pytest.mark.usefixtures("worker")
def test_cancelling_an_ended_response_returns_it_unchanged(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi", background=True)["id"]
    completed = ended(api, response_id)
    assert cancel(api, response_id) == completed
    assert completed["status"] == "completed"


def test_a_synchronous_response_cannot_be_cancelled(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    answer = api.post(f"/responses/{response_id}/cancel", {})
    assert error(answer) == (400, None, None)
    assert answer.json()["error"]["message"] == "Cannot cancel a synchronous response."


@pytest.mark.usefixtures("worker")
def test_deleting_an_active_response_cancels_it_first(api: Api, script: Script) -> None:
    with running(api, script) as (response_id, received), api.follow(response_id) as live:
        live.next()
        assert api.delete(f"/responses/{response_id}").status_code == 200
        assert received.was_closed()
        assert live.rest()[-1]["type"] not in {"response.completed", "error"}
    assert api.get(f"/responses/{response_id}").status_code == 404


@pytest.mark.usefixtures("worker")
def test_another_teams_response_gets_the_404_of_an_unknown_id(api: Api, outsider: Api, script: Script) -> None:
    with running(api, script) as (response_id, received):
        foreign = outsider.post(f"/responses/{response_id}/cancel", {})
        unknown = outsider.post("/responses/resp_unknown/cancel", {})
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.text.replace(response_id, "ID") == unknown.text.replace("resp_unknown", "ID")
        assert not received.closed.is_set()
    assert ended(api, response_id)["status"] == "completed"


def test_cancelling_requires_the_write_scope(api: Api, make_api: MakeApi) -> None:
    reader = make_api(team=api.caller.team, scopes=["responses.read"])
    assert reader.post("/responses/resp_x/cancel", {}).status_code == 403


def test_parameters_are_rejected(api: Api) -> None:
    answer = api.post("/responses/resp_x/cancel", {"reason": "tired"})
    assert error(answer) == (400, "reason", "unknown_parameter")


@pytest.mark.usefixtures("worker")
def test_the_sdk_can_cancel_a_response(api: Api, client: OpenAI, script: Script) -> None:
    with running(api, script) as (response_id, _):
        assert client.responses.cancel(response_id).status == "cancelled"

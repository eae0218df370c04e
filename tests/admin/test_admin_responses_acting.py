"""What people do to responses: cancel, ask again, delete, take away."""

import asyncio
from typing import Any

import orjson
import pytest
from django.test import Client

from conversations.models import Section
from responses.models import Response
from tenants import scope, services
from tenants.models import AuditEvent, UsageRecord
from tests.admin.rows import add_response, model_says, page_of, say, text, user_says
from tests.support.api import Api, Caller
from tests.support.chunks import chunk
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

LIST = "/admin/responses/response/"


def acting_on(response: Response, what: str) -> str:
    return page_of(response).replace("change/", f"{what}/")


def fresh(response: Response) -> Response | None:
    with scope.team(response.team_id):
        return Response.objects.filter(pk=response.pk).first()


def audited(caller: Caller, action: str) -> list[AuditEvent]:
    with scope.team(caller.team.pk):
        return list(AuditEvent.objects.filter(action=action))


def running(api: Api, script: Script, caller: Caller) -> Response:
    """A background response that a worker has begun; its model says no more."""
    script.then(stream(chunk(content="Hel"), Gate()))
    made = api.create(model=script.model, input="Hi", background=True)
    script.wait_for_call()
    with scope.team(caller.team.pk):
        return Response.objects.get(pk=made["id"])


@pytest.mark.slow
def test_a_run_is_cancelled_by_a_developer(
    developer: Client, api: Api, script: Script, caller: Caller, worker: WorkerProcess
) -> None:
    response = running(api, script, caller)
    assert "Stops the run." in text(developer.get(acting_on(response, "cancel")))
    assert developer.post(acting_on(response, "cancel")).status_code == 302
    assert api.retrieve(response.pk)["status"] == "cancelled"
    (event,) = audited(caller, "response.cancelled")
    assert event.actor.startswith("user:")


def test_an_operator_cancels(operator: Client, api: Api, script: Script, caller: Caller, worker: WorkerProcess) -> None:
    response = running(api, script, caller)
    operator.post(acting_on(response, "cancel"))
    assert api.retrieve(response.pk)["status"] == "cancelled"


def test_what_has_ended_is_not_cancelled(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    page = developer.post(acting_on(response, "cancel"), follow=True)
    assert "The response has already ended." in text(page)


def test_asking_again_makes_another_response_of_the_same_key(
    developer: Client, api: Api, script: Script, caller: Caller, worker: WorkerProcess
) -> None:
    script.say("One")
    first = api.create(model=script.model, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    script.say("Two")
    answer = developer.post(f"{LIST}{first['id']}/retry/")
    second = answer["location"].split("/")[-3]
    done = eventually(lambda: (found := api.retrieve(second))["status"] == "completed" and found)
    assert isinstance(done, dict)
    assert (done["output"][0]["content"][0]["text"], done["instructions"], done["metadata"]) == (
        "Two",
        "Be brief.",
        {"a": "b"},
    )
    (event,) = audited(caller, "response.retried")
    assert (event.target, event.after) == (first["id"], {"response": second})
    with scope.team(caller.team.pk):
        assert UsageRecord.objects.get(object_id=second).api_key_id == caller.key.pk


def test_nothing_is_asked_in_the_name_of_a_revoked_key(
    developer: Client, api: Api, script: Script, caller: Caller
) -> None:
    script.say("One")
    first = api.create(model=script.model, input="Hi")
    services.revoke_key(key=caller.key, actor="test")
    page = text(developer.post(f"{LIST}{first['id']}/retry/", follow=True))
    assert "This API key has been revoked." in page
    assert not audited(caller, "response.retried")


def test_what_was_not_stored_is_not_asked_again(developer: Client, caller: Caller) -> None:
    page = developer.post(acting_on(add_response(caller, stored=False), "retry"), follow=True)
    assert "was not stored" in text(page)


def test_deleting_wants_a_reason(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    for reason in ({}, {"reason": " x "}):
        page = developer.post(acting_on(response, "delete"), {"post": "yes", **reason})
        assert page.status_code == 200
        assert fresh(response) is not None
    assert "at least 5 characters" in text(page)


def test_what_is_deleted_is_gone_and_the_reason_stays(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    say(response, Section.INPUT, user_says("Forget me"))
    developer.post(acting_on(response, "delete"), {"reason": "asked by its user"})
    assert fresh(response) is None
    (event,) = audited(caller, "response.deleted")
    assert (event.target, event.after) == (response.pk, {"reason": "asked by its user"})
    assert event.actor.startswith("user:")


@pytest.mark.parametrize("what", ["cancel", "retry", "delete"])
def test_only_makers_act(
    what: str, auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller, admin: Client
) -> None:
    response = add_response(caller)
    for client, status in ((auditor, 403), (platform_auditor, 403), (stranger, 404)):
        for ask in (client.get, client.post):
            assert ask(acting_on(response, what), {"reason": "because I can"}).status_code == status
    assert admin.get(acting_on(response, what)).status_code == 200
    assert fresh(response) is not None


@pytest.mark.parametrize("what", ["retry", "delete"])
def test_operators_ask_and_delete_nothing(what: str, operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert operator.post(acting_on(response, what), {"reason": "because I can"}).status_code == 403
    assert fresh(response) is not None


def chosen(action: str, *rows: Response, **more: Any) -> dict[str, Any]:
    return {"action": action, "_selected_action": [row.pk for row in rows], **more}


def test_a_selection_is_deleted_after_it_was_shown(developer: Client, caller: Caller) -> None:
    rows = [add_response(caller) for _ in range(3)]
    page = text(developer.post(LIST, chosen("erase_selected", *rows[:2])))
    assert [row.pk in page for row in rows] == [True, True, False]
    assert fresh(rows[0]) is not None
    developer.post(LIST, chosen("erase_selected", *rows[:2], confirmed="yes", reason="a whole batch"))
    assert [fresh(row) is None for row in rows] == [True, True, False]
    assert len(audited(caller, "response.deleted")) == 2


def test_a_selection_leaves_out_what_does_not_fit(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller), add_response(caller, stored=False)]
    page = text(lead.post(LIST, chosen("retry_selected", *rows)))
    assert "1 of the selected responses will be skipped" in page


def test_the_actions_are_offered_by_role(
    developer: Client, operator: Client, platform_auditor: Client, caller: Caller
) -> None:
    add_response(caller)
    offered = {"export_selected", "cancel_selected", "retry_selected", "erase_selected"}
    for client, names in (
        (developer, offered),
        (operator, {"export_selected", "cancel_selected"}),
        (platform_auditor, set()),
    ):
        page = text(client.get(LIST, {"team__id__exact": caller.team.pk}))
        assert {name for name in offered if f'value="{name}"' in page} == names


# -- taking away ------------------------------------------------------------------------------------------------------


def lines(answer: Any) -> list[dict[str, Any]]:
    """What is streamed."""

    async def read() -> bytes:
        return b"".join([part async for part in answer])

    return [orjson.loads(line) for line in asyncio.run(read()).splitlines()]


def test_what_the_filters_choose_is_exported(lead: Client, caller: Caller) -> None:
    response = add_response(caller, model="wanted")
    add_response(caller, model="other")
    say(response, Section.INPUT, user_says("The question"))
    say(response, Section.OUTPUT, model_says("The answer"))
    (line,) = lines(lead.get(f"{LIST}export/", {"model": "wanted"}))
    assert (line["id"], line["model"]) == (response.pk, "wanted")
    assert line["input"][0]["content"][0]["text"] == "The question"
    assert line["response"]["output"][0]["content"][0]["text"] == "The answer"
    (event,) = audited(caller, "responses.exported")
    assert (event.after["rows"], event.after["filters"]) == (1, "model=wanted")


def test_an_operator_exports_numbers_only(operator: Client, caller: Caller) -> None:
    response = add_response(caller, input_preview="secret")
    say(response, Section.INPUT, user_says("secret"))
    (line,) = lines(operator.get(f"{LIST}export/", {"team__id__exact": caller.team.pk}))
    assert line["id"] == response.pk
    assert line.keys().isdisjoint({"input", "response", "metadata"})


def test_a_selection_is_exported(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller) for _ in range(3)]
    found = lines(lead.post(LIST, chosen("export_selected", *rows[1:])))
    assert {line["id"] for line in found} == {row.pk for row in rows[1:]}


def test_others_take_nothing_away(auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert auditor.get(f"{LIST}export/").status_code == 403
    assert platform_auditor.get(f"{LIST}export/").status_code == 403
    assert lines(stranger.get(f"{LIST}export/", {"q": response.pk})) == []

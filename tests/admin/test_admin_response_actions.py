"""Actions on responses: cancel, retry, delete and export."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.test import Client

from conversations.models import Section
from core.clock import now
from core.ids import new_id
from responses.models import Response
from tenants import scope, services
from tenants.models import AuditEvent, UsageRecord
from tests.admin.rows import add_items, add_response, assistant_message, page_url, streamed, text, user_message
from tests.support.api import Api, Caller
from tests.support.chunks import chunk
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

LIST = "/admin/responses/response/"


def action_url(response: Response, what: str) -> str:
    return page_url(response).replace("change/", f"{what}/")


def reload(response: Response) -> Response | None:
    with scope.team(response.team_id):
        return Response.objects.filter(pk=response.pk).first()


def audited(caller: Caller, action: str) -> list[AuditEvent]:
    with scope.team(caller.team.pk):
        return list(AuditEvent.objects.filter(action=action))


def running(api: Api, script: Script, caller: Caller) -> Response:
    """Create a background response that a worker runs; its model then pauses."""
    script.then(stream(chunk(content="Hel"), Gate()))
    made = api.create(model=script.model, input="Hi", background=True)
    script.wait_for_call()
    with scope.team(caller.team.pk):
        return Response.objects.get(pk=made["id"])


@pytest.mark.slow
def test_a_developer_can_cancel_a_run(
    developer: Client, api: Api, script: Script, caller: Caller, worker: WorkerProcess
) -> None:
    response = running(api, script, caller)
    assert "Stops the run." in text(developer.get(action_url(response, "cancel")))
    assert developer.post(action_url(response, "cancel")).status_code == 302
    assert api.retrieve(response.pk)["status"] == "cancelled"
    (event,) = audited(caller, "response.cancelled")
    assert event.actor.startswith("user:")


def test_an_operator_can_cancel_a_run(
    operator: Client, api: Api, script: Script, caller: Caller, worker: WorkerProcess
) -> None:
    response = running(api, script, caller)
    operator.post(action_url(response, "cancel"))
    assert api.retrieve(response.pk)["status"] == "cancelled"


def test_an_ended_response_cannot_be_cancelled(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    page = developer.post(action_url(response, "cancel"), follow=True)
    assert "The response has already ended." in text(page)


def test_a_retry_creates_a_response_of_the_same_key(
    developer: Client, api: Api, script: Script, caller: Caller, worker: WorkerProcess
) -> None:
    script.say("One")
    first = api.create(model=script.model, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    script.say("Two")
    answer = developer.post(f"{LIST}{first['id']}/retry/")
    second = answer["location"].split("/")[-3]
    done = eventually(lambda: (body := api.retrieve(second))["status"] == "completed" and body)
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


def test_a_retry_with_a_revoked_key_is_refused(developer: Client, api: Api, script: Script, caller: Caller) -> None:
    script.say("One")
    first = api.create(model=script.model, input="Hi")
    services.revoke_key(key=caller.key, actor="test")
    page = text(developer.post(f"{LIST}{first['id']}/retry/", follow=True))
    assert "This API key has been revoked." in page
    assert not audited(caller, "response.retried")


def test_an_unstored_response_cannot_be_retried(developer: Client, caller: Caller) -> None:
    page = developer.post(action_url(add_response(caller, stored=False), "retry"), follow=True)
    assert "was not stored" in text(page)


def test_deleting_requires_a_reason(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    for reason in ({}, {"reason": " x "}):
        page = developer.post(action_url(response, "delete"), {"post": "yes", **reason})
        assert page.status_code == 200
        assert reload(response) is not None
    assert "at least 5 characters" in text(page)


def test_the_reason_for_a_deletion_is_audited(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_items(response, Section.INPUT, user_message("Forget me"))
    developer.post(action_url(response, "delete"), {"reason": "asked by its user"})
    assert reload(response) is None
    (event,) = audited(caller, "response.deleted")
    assert (event.target, event.after) == (response.pk, {"reason": "asked by its user"})
    assert event.actor.startswith("user:")


@pytest.mark.parametrize("what", ["cancel", "retry", "delete"])
def test_actions_require_a_role_that_permits_them(
    what: str, auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller, admin: Client
) -> None:
    response = add_response(caller)
    for client, status in ((auditor, 403), (platform_auditor, 403), (stranger, 404)):
        for ask in (client.get, client.post):
            assert ask(action_url(response, what), {"reason": "because I can"}).status_code == status
    assert admin.get(action_url(response, what)).status_code == 200
    assert reload(response) is not None


@pytest.mark.parametrize("what", ["retry", "delete"])
def test_operators_cannot_retry_or_delete(what: str, operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert operator.post(action_url(response, what), {"reason": "because I can"}).status_code == 403
    assert reload(response) is not None


def bulk_form(action: str, *rows: Response, **more: Any) -> dict[str, Any]:
    return {"action": action, "_selected_action": [row.pk for row in rows], **more}


def test_a_selection_is_deleted_after_confirmation(developer: Client, caller: Caller) -> None:
    rows = [add_response(caller) for _ in range(3)]
    page = text(developer.post(LIST, bulk_form("erase_selected", *rows[:2])))
    assert [row.pk in page for row in rows] == [True, True, False]
    assert reload(rows[0]) is not None
    developer.post(LIST, bulk_form("erase_selected", *rows[:2], confirmed="yes", reason="a whole batch"))
    assert [reload(row) is None for row in rows] == [True, True, False]
    assert len(audited(caller, "response.deleted")) == 2


def test_a_bulk_action_skips_responses_it_does_not_apply_to(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller), add_response(caller, stored=False)]
    page = text(lead.post(LIST, bulk_form("retry_selected", *rows)))
    assert "1 of the selected responses will be skipped" in page


def test_bulk_actions_depend_on_the_role(
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


# -- export ------------------------------------------------------------------------------------------------------


def exported_lines(answer: Any) -> list[dict[str, Any]]:
    """Return the lines of a streamed export."""
    return [orjson.loads(line) for line in streamed(answer).splitlines()]


def test_an_export_contains_the_filtered_responses(lead: Client, caller: Caller) -> None:
    response = add_response(caller, model="wanted")
    add_response(caller, model="other")
    add_items(response, Section.INPUT, user_message("The question"))
    add_items(response, Section.OUTPUT, assistant_message("The answer"))
    (line,) = exported_lines(lead.get(f"{LIST}export/", {"model": "wanted"}))
    assert (line["id"], line["model"]) == (response.pk, "wanted")
    assert line["input"][0]["content"][0]["text"] == "The question"
    assert line["response"]["output"][0]["content"][0]["text"] == "The answer"
    (event,) = audited(caller, "responses.exported")
    assert (event.after["rows"], event.after["filters"]) == (1, "model=wanted")


@pytest.mark.slow
def test_an_export_has_no_maximum_number_of_responses(lead: Client, caller: Caller) -> None:
    number, at = 10_100, now() - timedelta(hours=1)
    first = add_response(caller, model="other")
    columns = {field.attname: getattr(first, field.attname) for field in Response._meta.concrete_fields}
    with scope.team(caller.team.pk):
        # Many have the same time, so that parts of the export begin among them.
        Response.objects.bulk_create(
            [
                Response(**columns | {"id": new_id("resp"), "model": "many", "created_at": at + timedelta(seconds=nth)})
                for nth in (index // 300 for index in range(number))
            ],
            batch_size=1000,
        )
    lines = exported_lines(lead.get(f"{LIST}export/", {"model": "many"}))
    assert len({line["id"] for line in lines}) == len(lines) == number
    assert lines == sorted(lines, key=lambda line: (line["created_at"], line["id"]), reverse=True)
    (event,) = audited(caller, "responses.exported")
    assert event.after["rows"] == number


def test_an_export_without_content_access_has_metrics_only(operator: Client, caller: Caller) -> None:
    response = add_response(caller, input_preview="secret")
    add_items(response, Section.INPUT, user_message("secret"))
    (line,) = exported_lines(operator.get(f"{LIST}export/", {"team__id__exact": caller.team.pk}))
    assert line["id"] == response.pk
    assert line.keys().isdisjoint({"input", "response", "metadata"})


def test_a_selection_is_exported(lead: Client, caller: Caller) -> None:
    rows = [add_response(caller) for _ in range(3)]
    body = exported_lines(lead.post(LIST, bulk_form("export_selected", *rows[1:])))
    assert {line["id"] for line in body} == {row.pk for row in rows[1:]}


def test_an_export_requires_a_role_that_permits_it(
    auditor: Client, platform_auditor: Client, stranger: Client, caller: Caller
) -> None:
    response = add_response(caller)
    assert auditor.get(f"{LIST}export/").status_code == 403
    assert platform_auditor.get(f"{LIST}export/").status_code == 403
    assert exported_lines(stranger.get(f"{LIST}export/", {"q": response.pk})) == []

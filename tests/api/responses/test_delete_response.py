"""`DELETE /v1/responses/{id}`."""

from django.db.models import Model

from conversations.models import Item, Placement
from responses.models import EventBatch, Response, ToolCall, Turn
from tenants import scope
from tenants.models import AuditEvent, UsageRecord
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.chunks import text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

TABLES: tuple[type[Model], ...] = (Response, Turn, ToolCall, EventBatch, Item, Placement)


def counts(caller: Caller) -> list[int]:
    """Return the number of the team's rows in each table."""
    with scope.team(caller.team.pk):
        return [table._default_manager.count() for table in TABLES]


def test_the_deletion_is_confirmed(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    deleted = ok(api.delete(f"/responses/{response['id']}"))
    assert deleted == {"id": response["id"], "object": "response", "deleted": True}


def test_a_deleted_response_is_not_found(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    api.delete(f"/responses/{response['id']}")
    assert error(api.get(f"/responses/{response['id']}")) == (404, None, None)
    assert error(api.get(f"/responses/{response['id']}/input_items")) == (404, None, None)
    assert error(api.delete(f"/responses/{response['id']}")) == (404, None, None)
    assert ok(api.get("/responses"))["data"] == []


def test_a_deletion_leaves_no_rows(api: Api, script: Script, caller: Caller) -> None:
    script.call(look="{}")
    tool = {"type": "function", "name": "look"}
    response = api.create(model=script.model, input="Hi", tools=[tool])
    assert all(counts(caller))
    api.delete(f"/responses/{response['id']}")
    assert counts(caller) == [0] * len(TABLES)


def test_usage_is_kept_and_the_deletion_is_audited(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    answer = api.delete(f"/responses/{response['id']}")
    with scope.team(caller.team.pk):
        assert UsageRecord.objects.filter(object_id=response["id"]).count() == 1
        event = AuditEvent.objects.get(action="response.deleted")
    assert (event.target, event.actor) == (response["id"], f"key:{caller.key.pk}")
    assert event.request_id == answer.headers["x-request-id"]


def test_other_responses_keep_their_items(api: Api, script: Script) -> None:
    script.say("1").say("2")
    first, second = (api.create(model=script.model, input="a") for _ in range(2))
    api.delete(f"/responses/{first['id']}")
    assert api.retrieve(second["id"]) == second
    assert len(api.input_items(second["id"])) == 1


def test_deleting_a_running_response_leaves_no_rows(api: Api, script: Script, caller: Caller) -> None:
    gate = Gate()
    script.then(stream(*text("Hel")[:2], gate, *text("lo")))
    with api.stream(model=script.model, input="Hi") as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
        ok(api.delete(f"/responses/{response_id}"))
        gate.open()
        live.rest()
    eventually(lambda: counts(caller) == [0] * len(TABLES))
    assert error(api.get(f"/responses/{response_id}")) == (404, None, None)


def test_another_teams_response_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    foreign, unknown = outsider.delete(f"/responses/{response['id']}"), outsider.delete("/responses/resp_unknown")
    assert error(foreign) == error(unknown) == (404, None, None)
    assert foreign.text.replace(response["id"], "resp_unknown") == unknown.text
    assert api.retrieve(response["id"]) == response


def test_deleting_requires_its_scope(make_api: MakeApi) -> None:
    reader = make_api(scopes=["responses.read", "responses.write"])
    assert error(reader.delete("/responses/resp_unknown")) == (403, None, "insufficient_scope")

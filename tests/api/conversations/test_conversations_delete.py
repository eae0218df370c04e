"""`DELETE /v1/conversations/{id}`."""

from typing import Any

import pytest

from conversations.models import Item, Placement
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import begin, ids, items, user_message, words
from tests.support.upstream import Script


def item_count(api: Api) -> int:
    """Return the number of items that the team has."""
    with scope.team(api.caller.team.pk):
        return Item.objects.count()


def test_the_deletion_is_confirmed(api: Api) -> None:
    mine = begin(api, "Hi")
    assert ok(api.delete(f"/conversations/{mine}")) == {"id": mine, "object": "conversation.deleted", "deleted": True}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("GET", "/items"),
        ("POST", "/items"),
        ("GET", "/items/msg_1"),
        ("DELETE", "/items/msg_1"),
        ("POST", "/fork"),
        ("GET", "/export"),
    ],
)
def test_a_deleted_conversation_is_not_found(api: Api, method: str, path: str) -> None:
    mine = begin(api, "Hi")
    ok(api.delete(f"/conversations/{mine}"))
    bodies: dict[str, dict[str, Any]] = {"": {"metadata": {}}, "/items": {"items": [user_message("Hi")]}}
    later = api.request(method, f"/conversations/{mine}{path}", json=bodies.get(path, {}) if method == "POST" else None)
    assert error(later) == (404, None, None)
    assert mine in later.json()["error"]["message"]


def test_items_of_the_conversation_alone_are_deleted(api: Api) -> None:
    mine = begin(api, "one", "two")
    (first, _) = ids(api, mine)
    ok(api.delete(f"/conversations/{mine}"))
    assert item_count(api) == 0
    again = api.post("/conversations", {"items": [{"type": "item_reference", "id": first}]})
    assert error(again) == (404, "items", None)


def test_items_of_a_response_are_kept(api: Api, script: Script) -> None:
    script.say("So it is.")
    mine = begin(api, "one", "two")
    (first, _) = ids(api, mine)
    response = api.create(model=script.model, input=[{"type": "item_reference", "id": first}])
    ok(api.delete(f"/conversations/{mine}"))
    assert [item["id"] for item in api.input_items(response["id"])] == [first]
    assert api.retrieve(response["id"])["output"] == response["output"]
    assert item_count(api) == 2


def test_items_of_a_fork_are_kept(api: Api) -> None:
    mine = begin(api, "one", "two")
    fork = ok(api.post(f"/conversations/{mine}/fork", {}))["id"]
    before = items(api, mine)
    ok(api.delete(f"/conversations/{mine}"))
    assert items(api, fork) == before


def test_items_remain_in_a_conversation_when_their_response_is_deleted(api: Api, script: Script) -> None:
    script.say("So it is.")
    response = api.create(model=script.model, input="Well?")
    created = ok(api.post("/conversations", {"items": [{"id": response["output"][0]["id"]}]}))
    ok(api.delete(f"/responses/{response['id']}"))
    assert words(api, created["id"]) == ["So it is."]
    ok(api.delete(f"/conversations/{created['id']}"))
    with scope.team(api.caller.team.pk):
        assert not Placement.objects.exists()
        assert not Item.objects.exists()


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = outsider.delete(f"/conversations/{mine}"), outsider.delete("/conversations/conv_unknown")
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content
    assert words(api, mine) == ["secret"]


def test_deleting_requires_its_scope(api: Api, make_api: MakeApi) -> None:
    mine = begin(api)
    writer = make_api(team=api.caller.team, scopes=["conversations.read", "conversations.write"])
    assert error(writer.delete(f"/conversations/{mine}")) == (403, None, "insufficient_scope")


def test_a_deletion_is_audited(api: Api) -> None:
    mine = begin(api, "one", "two")
    answer = api.delete(f"/conversations/{mine}")
    with scope.team(api.caller.team.pk):
        event = AuditEvent.objects.get(target=mine)
    assert (event.action, event.actor) == ("conversation.deleted", f"key:{api.caller.key.pk}")
    assert (event.before, event.request_id) == ({"items": 2}, answer.headers["x-request-id"])

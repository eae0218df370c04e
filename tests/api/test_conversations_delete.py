"""`DELETE /v1/conversations/{id}`."""

from typing import Any

import pytest

from conversations.models import Item, Placement
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import begin, ids, items, said, words
from tests.support.upstream import Script


def kept(api: Api) -> int:
    """How many items the team still has."""
    with scope.team(api.caller.team.pk):
        return Item.objects.count()


def test_it_says_what_it_did(api: Api) -> None:
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
def test_later_use_is_that_of_an_unknown_id(api: Api, method: str, path: str) -> None:
    mine = begin(api, "Hi")
    ok(api.delete(f"/conversations/{mine}"))
    bodies: dict[str, dict[str, Any]] = {"": {"metadata": {}}, "/items": {"items": [said("Hi")]}}
    later = api.request(method, f"/conversations/{mine}{path}", json=bodies.get(path, {}) if method == "POST" else None)
    assert error(later) == (404, None, None)
    assert mine in later.json()["error"]["message"]


def test_what_only_it_showed_goes_with_it(api: Api) -> None:
    mine = begin(api, "one", "two")
    (first, _) = ids(api, mine)
    ok(api.delete(f"/conversations/{mine}"))
    assert kept(api) == 0
    again = api.post("/conversations", {"items": [{"type": "item_reference", "id": first}]})
    assert error(again) == (404, "items", None)


def test_items_stay_where_a_response_shows_them(api: Api, script: Script) -> None:
    script.say("So it is.")
    mine = begin(api, "one", "two")
    (first, _) = ids(api, mine)
    response = api.create(model=script.model, input=[{"type": "item_reference", "id": first}])
    ok(api.delete(f"/conversations/{mine}"))
    assert [item["id"] for item in api.input_items(response["id"])] == [first]
    assert api.retrieve(response["id"])["output"] == response["output"]
    assert kept(api) == 2


def test_items_stay_where_a_fork_shows_them(api: Api) -> None:
    mine = begin(api, "one", "two")
    fork = ok(api.post(f"/conversations/{mine}/fork", {}))["id"]
    before = items(api, mine)
    ok(api.delete(f"/conversations/{mine}"))
    assert items(api, fork) == before


def test_items_outlive_the_response_that_made_them(api: Api, script: Script) -> None:
    script.say("So it is.")
    response = api.create(model=script.model, input="Well?")
    made = ok(api.post("/conversations", {"items": [{"id": response["output"][0]["id"]}]}))
    ok(api.delete(f"/responses/{response['id']}"))
    assert words(api, made["id"]) == ["So it is."]
    ok(api.delete(f"/conversations/{made['id']}"))
    with scope.team(api.caller.team.pk):
        assert not Placement.objects.exists()
        assert not Item.objects.exists()


def test_another_team_gets_the_answer_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = outsider.delete(f"/conversations/{mine}"), outsider.delete("/conversations/conv_unknown")
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content
    assert words(api, mine) == ["secret"]


def test_deleting_needs_its_scope(api: Api, make_api: MakeApi) -> None:
    mine = begin(api)
    writer = make_api(team=api.caller.team, scopes=["conversations.read", "conversations.write"])
    assert error(writer.delete(f"/conversations/{mine}")) == (403, None, "insufficient_scope")


def test_it_is_audited(api: Api) -> None:
    mine = begin(api, "one", "two")
    answer = api.delete(f"/conversations/{mine}")
    with scope.team(api.caller.team.pk):
        event = AuditEvent.objects.get(target=mine)
    assert (event.action, event.actor) == ("conversation.deleted", f"key:{api.caller.key.pk}")
    assert (event.before, event.request_id) == ({"items": 2}, answer.headers["x-request-id"])

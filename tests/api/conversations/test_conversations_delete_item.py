"""`DELETE /v1/conversations/{id}/items/{item_id}`."""

from conversations.models import Item
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import add, begin, ids, words
from tests.support.upstream import Script


def test_the_conversation_is_returned(api: Api) -> None:
    mine = begin(api, "one", "two", topic="cats")
    answer = ok(api.delete(f"/conversations/{mine}/items/{ids(api, mine)[0]}"))
    assert answer == ok(api.get(f"/conversations/{mine}"))
    assert words(api, mine) == ["two"]


def test_a_deleted_item_is_not_found(api: Api) -> None:
    mine = begin(api, "one", "two")
    path = f"/conversations/{mine}/items/{ids(api, mine)[0]}"
    ok(api.delete(path))
    assert error(api.get(path)) == (404, None, None)
    assert error(api.delete(path)) == (404, None, None)
    with scope.team(api.caller.team.pk):
        assert Item.objects.count() == 1


def test_the_other_items_keep_their_order(api: Api) -> None:
    mine = begin(api, *"abcd")
    for name in ids(api, mine)[1:3]:
        ok(api.delete(f"/conversations/{mine}/items/{name}"))
    add(api, mine, "e")
    assert words(api, mine) == ["a", "d", "e"]


def test_the_position_of_a_deleted_last_item_is_not_reused(api: Api) -> None:
    mine = begin(api, "a", "b")
    first, last = ids(api, mine)
    ok(api.delete(f"/conversations/{mine}/items/{last}"))
    assert words(api, mine, after=first) == []
    add(api, mine, "c")
    assert words(api, mine, after=first) == ["c"]


def test_a_fork_keeps_a_deleted_item(api: Api) -> None:
    mine = begin(api, "one", "two")
    fork = ok(api.post(f"/conversations/{mine}/fork", {}))["id"]
    ok(api.delete(f"/conversations/{mine}/items/{ids(api, mine)[0]}"))
    assert (words(api, mine), words(api, fork)) == (["two"], ["one", "two"])


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    (item,) = ids(api, mine)
    theirs, unknown = (outsider.delete(f"/conversations/{name}/items/{item}") for name in (mine, "conv_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content
    assert words(api, mine) == ["secret"]


def test_an_item_of_another_conversation_is_not_found(api: Api) -> None:
    other = begin(api, "two")
    (elsewhere,) = ids(api, other)
    assert error(api.delete(f"/conversations/{begin(api, 'one')}/items/{elsewhere}")) == (404, None, None)
    assert words(api, other) == ["two"]


def test_deleting_an_item_requires_the_write_scope(api: Api, make_api: MakeApi) -> None:
    mine = begin(api, "one", "two")
    first, _ = ids(api, mine)
    reader = make_api(team=api.caller.team, scopes=["conversations.read", "conversations.delete"])
    assert error(reader.delete(f"/conversations/{mine}/items/{first}")) == (403, None, "insufficient_scope")
    ok(make_api(team=api.caller.team, scopes=["conversations.write"]).delete(f"/conversations/{mine}/items/{first}"))
    assert words(api, mine) == ["two"]


def test_a_deletion_is_audited(api: Api) -> None:
    mine = begin(api, "one")
    (item,) = ids(api, mine)
    answer = api.delete(f"/conversations/{mine}/items/{item}")
    with scope.team(api.caller.team.pk):
        event = AuditEvent.objects.get(target=mine)
    assert (event.action, event.before) == ("conversation.item_deleted", {"item": item})
    assert event.request_id == answer.headers["x-request-id"]


def test_a_call_is_refused_after_its_output_was_deleted(api: Api, script: Script) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "It rains."}
    mine = ok(api.post("/conversations", {"items": [call, output]}))["id"]
    first, second = ids(api, mine)
    body = {"model": script.say("Hello").model, "input": "Hi", "conversation": mine}
    ok(api.delete(f"/conversations/{mine}/items/{second}"))
    assert api.post("/responses", body).status_code == 400
    ok(api.delete(f"/conversations/{mine}/items/{first}"))
    assert ok(api.post("/responses", body))["status"] == "completed"

"""`POST /v1/conversations/{id}/items`."""

from typing import Any

import pytest

from conversations.models import Item
from tenants import scope
from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import add, begin, ids, items, user_message, words
from tests.support.items import PIXEL
from tests.support.upstream import Script


def post(api: Api, conversation_id: str, *given: Any) -> Any:
    return api.post(f"/conversations/{conversation_id}/items", {"items": list(given)})


def test_items_are_appended(api: Api) -> None:
    mine = begin(api, "one")
    add(api, mine, "two", "three")
    add(api, mine, "four")
    assert words(api, mine) == ["one", "two", "three", "four"]


def test_the_new_items_are_returned_in_order(api: Api) -> None:
    mine = begin(api, "one")
    answer = ok(post(api, mine, user_message("two"), user_message("three", id="msg_3")))
    assert answer["data"] == items(api, mine)[1:]
    assert (answer["first_id"], answer["last_id"]) == (answer["data"][0]["id"], "msg_3")
    assert (answer["object"], answer["has_more"]) == ("list", False)


def test_fields_are_included_on_request(api: Api) -> None:
    body = {"items": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]}]}
    plain, full = (
        ok(api.request("POST", f"/conversations/{begin(api)}/items{query}", json=body))["data"][0]["content"][0]
        for query in ("", "?include[]=message.input_image.image_url")
    )
    assert (plain["image_url"], full["image_url"]) == (None, PIXEL)


def test_a_reference_shares_a_stored_item(api: Api, script: Script) -> None:
    script.say("So it is.")
    output = api.create(model=script.model, input="Well?")["output"]
    mine = begin(api, "one")
    answer = ok(post(api, mine, {"type": "item_reference", "id": output[0]["id"]}, user_message("two")))
    assert answer["data"][0] == output[0]
    with scope.team(api.caller.team.pk):
        assert Item.objects.filter(id=output[0]["id"]).count() == 1


def test_an_unknown_reference_adds_nothing(api: Api) -> None:
    mine = begin(api, "one")
    assert error(post(api, mine, user_message("two"), {"id": "msg_unknown"})) == (404, "items", None)
    assert words(api, mine) == ["one"]


def test_an_id_that_is_in_use_is_rejected(api: Api) -> None:
    mine = begin(api, "one")
    (first,) = ids(api, mine)
    for double in (user_message("two", id=first), {"type": "item_reference", "id": first}):
        answer = post(api, mine, double)
        assert error(answer) == (400, "items", None)
        assert first in answer.json()["error"]["message"]
    assert words(api, mine) == ["one"]


def test_a_deleted_id_can_be_added_again(api: Api) -> None:
    mine = begin(api, "one")
    (first,) = ids(api, mine)
    ok(api.delete(f"/conversations/{mine}/items/{first}"))
    ok(post(api, mine, user_message("one, again", id=first)))
    assert words(api, mine) == ["one, again"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "items", "missing_required_parameter"),
        ({"items": None}, "items", "invalid_type"),
        ({"items": []}, "items", "empty_array"),
        ({"items": [user_message("Hi")] * 21}, "items", "array_above_max_length"),
        ({"items": [user_message("Hi")], "metadata": {}}, "metadata", "unknown_parameter"),
        ({"items": [{"type": "compaction_trigger"}]}, "items[0].type", "unsupported_value"),
        (
            {"items": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "items",
            "invalid_encrypted_content",
        ),
    ],
)
def test_an_invalid_body_is_rejected_with_param_and_code(api: Api, body: Any, param: str, code: str) -> None:
    mine = begin(api, "one")
    assert error(api.post(f"/conversations/{mine}/items", body)) == (400, param, code)
    assert words(api, mine) == ["one"]


def test_an_unknown_include_is_rejected(api: Api) -> None:
    answer = api.request("POST", f"/conversations/{begin(api)}/items?include=all", json={"items": [user_message("Hi")]})
    assert error(answer) == (400, "include", "invalid_value")


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = post(outsider, mine, user_message("Hi")), post(outsider, "conv_unknown", user_message("Hi"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content
    assert words(api, mine) == ["secret"]


def test_adding_items_requires_the_write_scope(api: Api, make_api: MakeApi) -> None:
    reader = make_api(team=api.caller.team, scopes=["conversations.read"])
    assert error(post(reader, begin(api), user_message("Hi"))) == (403, None, "insufficient_scope")

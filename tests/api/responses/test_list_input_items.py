"""`GET /v1/responses/{id}/input_items`."""

from typing import Any

import pytest

from tests.support.api import Api, MakeApi, error, ok
from tests.support.upstream import Script


def texts(page: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"]]


def respond(api: Api, script: Script, *words: str, **more: Any) -> str:
    """Create a response to these user messages and return its id."""
    script.say("Hello")
    items = [{"role": "user", "content": word} for word in words]
    response_id: str = api.create(model=script.model, input=items, **more)["id"]
    return response_id


def page(api: Api, response_id: str, **query: Any) -> dict[str, Any]:
    return ok(api.get(f"/responses/{response_id}/input_items", **query))


def test_a_string_input_is_listed_as_one_message(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    (item,) = page(api, response["id"])["data"]
    assert item.pop("id").startswith("msg_")
    content = [{"type": "input_text", "text": "Hi"}]
    assert item == {"type": "message", "status": "completed", "role": "user", "content": content}


def test_items_are_listed_newest_first(api: Api, script: Script) -> None:
    found = page(api, respond(api, script, "a", "b", "c"))
    assert texts(found) == ["c", "b", "a"]
    assert (found["object"], found["has_more"]) == ("list", False)
    assert (found["first_id"], found["last_id"]) == (found["data"][0]["id"], found["data"][-1]["id"])


def test_order_asc_lists_the_oldest_first(api: Api, script: Script) -> None:
    assert texts(page(api, respond(api, script, "a", "b", "c"), order="asc")) == ["a", "b", "c"]


def test_items_of_previous_responses_are_included(api: Api, script: Script) -> None:
    first = respond(api, script, "a")
    second = respond(api, script, "b", previous_response_id=first)
    third = respond(api, script, "c", previous_response_id=second)
    assert texts(page(api, third, order="asc")) == ["a", "Hello", "b", "Hello", "c"]
    assert texts(page(api, first)) == ["a"]


def test_instructions_are_not_listed(api: Api, script: Script) -> None:
    assert texts(page(api, respond(api, script, "a", instructions="Be kind."))) == ["a"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_cover_the_whole_list(api: Api, script: Script, order: str) -> None:
    first = respond(api, script, "a", "b")
    response_id = respond(api, script, "c", "d", previous_response_id=first)
    whole = texts(page(api, response_id, order=order))
    one = page(api, response_id, order=order, limit=2)
    two = page(api, response_id, order=order, limit=2, after=one["last_id"])
    three = page(api, response_id, order=order, limit=2, after=two["last_id"])
    assert [texts(one), texts(two), texts(three)] == [whole[:2], whole[2:4], whole[4:]]
    assert [one["has_more"], two["has_more"], three["has_more"]] == [True, True, False]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_after_and_before_enclose_a_range(api: Api, script: Script, order: str) -> None:
    first = respond(api, script, "a", "b")
    response_id = respond(api, script, "c", "d", previous_response_id=first)
    whole = page(api, response_id, order=order)["data"]
    ends = {"after": whole[0]["id"], "before": whole[4]["id"]}
    found = page(api, response_id, order=order, **ends)
    assert (found["data"], found["has_more"]) == (whole[1:4], False)
    assert page(api, response_id, order=order, limit=2, **ends)["data"] == whole[1:3]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_before_a_cursor_ends_right_before_it(api: Api, script: Script, order: str) -> None:
    response_id = respond(api, script, "a", "b", "c", "d")
    whole = page(api, response_id, order=order)["data"]
    found = page(api, response_id, order=order, limit=2, before=whole[3]["id"])
    assert (found["data"], found["has_more"]) == (whole[1:3], True)


def test_a_repeated_item_is_listed_once(api: Api, script: Script) -> None:
    """A reference repeats an item. Ids are cursors, so it is listed once, at its last position."""
    script.say("Hello").say("Hello")
    item = {"type": "message", "id": "msg_same", "role": "user", "content": "a"}
    first = api.create(model=script.model, input=[item, {"role": "user", "content": "b"}])
    again = [{"type": "item_reference", "id": "msg_same"}, {"role": "user", "content": "c"}]
    second = api.create(model=script.model, input=again, previous_response_id=first["id"])
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(10):
        found = page(api, second["id"], order="asc", limit=1, **cursor)
        seen += texts(found)
        cursor = {"after": found["last_id"]}
        if not found["has_more"]:
            break
    assert seen == ["b", "Hello", "a", "c"]


@pytest.mark.parametrize(
    ("query", "status", "param", "code"),
    [
        ({"limit": 0}, 400, "limit", "integer_below_min_value"),
        ({"limit": 101}, 400, "limit", "integer_above_max_value"),
        ({"limit": "ten"}, 400, "limit", "invalid_type"),
        ({"order": "up"}, 400, "order", "invalid_value"),
        ({"after": "msg_unknown"}, 404, "after", None),
        ({"before": "msg_unknown"}, 404, "before", None),
        ({"nonsense": "1"}, 400, "nonsense", "unknown_parameter"),
    ],
)
def test_an_invalid_query_names_the_parameter(
    api: Api, script: Script, query: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    response_id = respond(api, script, "a")
    assert error(api.get(f"/responses/{response_id}/input_items", **query)) == (status, param, code)


def test_another_teams_response_is_not_found(api: Api, outsider: Api, script: Script) -> None:
    response_id = respond(api, script, "a")
    foreign, unknown = (outsider.get(f"/responses/{name}/input_items") for name in (response_id, "resp_unknown"))
    assert error(foreign) == (404, None, None)
    assert foreign.text.replace(response_id, "resp_unknown") == unknown.text


def test_listing_requires_the_read_scope(make_api: MakeApi) -> None:
    writer = make_api(scopes=["responses.write"])
    assert error(writer.get("/responses/resp_unknown/input_items")) == (403, None, "insufficient_scope")

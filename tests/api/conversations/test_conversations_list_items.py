"""`GET /v1/conversations/{id}/items`."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import add, begin, ids, items, user_message, words


def page(api: Api, conversation_id: str, **query: Any) -> dict[str, Any]:
    """Return a page."""
    return ok(api.get(f"/conversations/{conversation_id}/items", **query))


def walk(api: Api, conversation_id: str, order: str, limit: int) -> Iterator[list[str]]:
    """Yield the ids of all pages, following them like the SDK."""
    after: dict[str, str] = {}
    while True:
        found = page(api, conversation_id, order=order, limit=limit, **after)
        yield [item["id"] for item in found["data"]]
        if not found["has_more"]:
            return
        after = {"after": found["last_id"]}


def test_items_are_listed_newest_first(api: Api) -> None:
    mine = begin(api, "one", "two", "three")
    assert [item["content"][0]["text"] for item in page(api, mine)["data"]] == ["three", "two", "one"]
    assert words(api, mine, order="asc") == ["one", "two", "three"]


def test_a_page_names_its_first_and_last(api: Api) -> None:
    mine = begin(api, "one", "two", "three")
    found = page(api, mine, limit=2)
    named = [item["id"] for item in found["data"]]
    assert (found["object"], found["first_id"], found["last_id"], found["has_more"]) == ("list", *named, True)


def test_an_empty_conversation_is_an_empty_page(api: Api) -> None:
    assert page(api, begin(api)) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_the_default_page_has_20_items(api: Api) -> None:
    mine = begin(api, *map(str, range(25)))
    assert (len(page(api, mine)["data"]), len(page(api, mine, limit=100)["data"])) == (20, 25)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_can_be_read_forwards_and_backwards(api: Api, order: str) -> None:
    mine = begin(api, *"abcde")
    whole = words(api, mine, order=order)
    (_, second, _, fourth, fifth) = ids(api, mine, order=order)
    assert words(api, mine, order=order, limit=2, after=second) == whole[2:4]
    assert words(api, mine, order=order, limit=2, after=fourth) == whole[4:]
    assert words(api, mine, order=order, limit=2, before=fifth) == whole[2:4]
    assert words(api, mine, order=order, after=second, before=fifth) == whole[2:4]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_remaining_items_are_listed_once_during_concurrent_changes(api: Api, order: str) -> None:
    mine = begin(api, *map(str, range(100)))
    before = ids(api, mine, order=order)
    seen: list[str] = []
    gone: set[str] = set()
    for found in walk(api, mine, order, limit=9):
        seen += found
        behind = [name for name in before if name not in seen and name not in gone]
        for name in (found[0], *behind[4:5]):
            ok(api.delete(f"/conversations/{mine}/items/{name}"))
            gone.add(name)
        add(api, mine, "more") if len(seen) < 100 else None
    assert len(seen) == len(set(seen))
    assert [name for name in before if name not in gone] == [
        name for name in seen if name in before and name not in gone
    ]


@pytest.mark.parametrize(("order", "rest"), [("asc", ["c", "d"]), ("desc", ["a"])])
def test_a_deleted_item_remains_a_valid_cursor(api: Api, order: str, rest: list[str]) -> None:
    name = begin(api, "a", "b", "c")
    _, deleted, _ = ids(api, name)
    ok(api.delete(f"/conversations/{name}/items/{deleted}"))
    add(api, name, "d") if order == "asc" else None
    assert words(api, name, order=order, after=deleted) == rest
    ok(api.post(f"/conversations/{name}/items", {"items": [user_message("b", id=deleted)]}))
    assert words(api, name, after=deleted) == []


def test_an_unknown_cursor_is_not_found(api: Api, outsider: Api) -> None:
    mine, (elsewhere,) = begin(api, "one"), ids(api, begin(api, "two"))
    (theirs,) = ids(outsider, begin(outsider, "secret"))
    for name in ("msg_unknown", elsewhere, theirs):
        for cursor in ("after", "before"):
            assert error(api.get(f"/conversations/{mine}/items", **{cursor: name})) == (404, cursor, None)


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"limit": 0}, "limit", "integer_below_min_value"),
        ({"limit": 101}, "limit", "integer_above_max_value"),
        ({"limit": "many"}, "limit", "invalid_type"),
        ({"order": "up"}, "order", "invalid_value"),
        ({"include": "all"}, "include", "invalid_value"),
        ({"metadata[a]": "b"}, "metadata[a]", "unknown_parameter"),
    ],
)
def test_invalid_query_parameters_are_rejected(api: Api, query: dict[str, Any], param: str, code: str) -> None:
    assert error(api.get(f"/conversations/{begin(api)}/items", **query)) == (400, param, code)


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = (outsider.get(f"/conversations/{name}/items") for name in (mine, "conv_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


def test_a_response_id_is_not_a_conversation_id(api: Api) -> None:
    assert error(api.get("/conversations/resp_1/items")) == (400, "conversation_id", "invalid_value")


def test_listing_items_requires_the_read_scope(api: Api, make_api: MakeApi) -> None:
    mine = begin(api)
    writer = make_api(team=api.caller.team, scopes=["conversations.write"])
    assert error(writer.get(f"/conversations/{mine}/items")) == (403, None, "insufficient_scope")
    assert items(api, mine) == []

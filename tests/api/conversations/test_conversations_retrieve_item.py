"""`GET /v1/conversations/{id}/items/{item_id}`."""

import pytest

from tests.support.api import Api, error, ok
from tests.support.conversations import begin, ids, items, user_message
from tests.support.items import SAMPLES

SHOWN_BY_REQUEST = {
    "fs_1": ("file_search_call.results", "results"),
    "ci_1": ("code_interpreter_call.outputs", "outputs"),
}


def test_an_item_is_the_same_as_in_the_list(api: Api) -> None:
    mine = begin(api, "one", "two")
    for item in items(api, mine):
        assert ok(api.get(f"/conversations/{mine}/items/{item['id']}")) == item


@pytest.mark.parametrize("name", SHOWN_BY_REQUEST)
def test_fields_are_included_on_request(api: Api, name: str) -> None:
    include, key = SHOWN_BY_REQUEST[name]
    mine = ok(api.post("/conversations", {"items": [SAMPLES[name]]}))["id"]
    assert ok(api.get(f"/conversations/{mine}/items/{name}"))[key] is None
    for query in ({"include": include}, {"include[]": [include]}):
        assert ok(api.get(f"/conversations/{mine}/items/{name}", **query)) == SAMPLES[name]


def test_a_shared_id_refers_to_the_item_of_each_conversation(api: Api) -> None:
    one, two = (
        ok(api.post("/conversations", {"items": [user_message(text, id="msg_1")]}))["id"] for text in ("one", "two")
    )
    texts = [ok(api.get(f"/conversations/{mine}/items/msg_1"))["content"][0]["text"] for mine in (one, two)]
    assert texts == ["one", "two"]


@pytest.mark.parametrize("name", ["msg_unknown", "01JH-other", "%20"])
def test_unknown_ids_are_not_found(api: Api, name: str) -> None:
    assert error(api.get(f"/conversations/{begin(api, 'Hi')}/items/{name}")) == (404, None, None)


def test_an_item_of_another_conversation_is_not_found(api: Api) -> None:
    (elsewhere,) = ids(api, begin(api, "two"))
    assert error(api.get(f"/conversations/{begin(api, 'one')}/items/{elsewhere}")) == (404, None, None)


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    (item,) = ids(api, mine)
    theirs, unknown = (outsider.get(f"/conversations/{name}/items/{item}") for name in (mine, "conv_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


def test_another_teams_item_is_not_found(api: Api, outsider: Api) -> None:
    (item,) = ids(api, begin(api, "secret"))
    own = begin(outsider, "Hi")
    theirs, unknown = (outsider.get(f"/conversations/{own}/items/{name}") for name in (item, "msg_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(item.encode(), b"msg_unknown") == unknown.content


def test_unknown_query_parameters_are_rejected(api: Api) -> None:
    mine = begin(api, "Hi")
    (item,) = ids(api, mine)
    path = f"/conversations/{mine}/items/{item}"
    assert error(api.get(path, include="all")) == (400, "include", "invalid_value")
    assert error(api.get(path, limit=1)) == (400, "limit", "unknown_parameter")

"""`POST /v1/conversations/{id}/fork`, an extension of ours."""

from typing import Any

import pytest

from conversations.models import Item
from tenants import scope
from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import add, begin, ids, items, words


def fork(api: Api, conversation_id: str, **body: Any) -> dict[str, Any]:
    """A fork, as the answer has it."""
    return ok(api.post(f"/conversations/{conversation_id}/fork", body))


def test_it_is_a_new_conversation_with_the_same_metadata(api: Api) -> None:
    mine = begin(api, "one", topic="cats")
    made = fork(api, mine)
    assert made == ok(api.get(f"/conversations/{made['id']}"))
    assert (made["id"] != mine, made["metadata"]) == (True, {"topic": "cats"})


@pytest.mark.parametrize("body", [b"", {}, {"after": None}])
def test_without_an_item_it_has_all_of_them(api: Api, body: Any) -> None:
    mine = begin(api, "one", "two")
    made = ok(api.post(f"/conversations/{mine}/fork", body))
    assert items(api, made["id"]) == items(api, mine)


def test_with_an_item_it_ends_there(api: Api) -> None:
    mine = begin(api, "one", "two", "three")
    made = fork(api, mine, after=ids(api, mine)[1])
    assert words(api, made["id"]) == ["one", "two"]


def test_nothing_is_copied(api: Api) -> None:
    mine = begin(api, *map(str, range(50)))
    made = fork(api, mine)
    assert ids(api, made["id"]) == ids(api, mine)
    with scope.team(api.caller.team.pk):
        assert Item.objects.count() == 50


def test_each_goes_its_own_way(api: Api) -> None:
    mine = begin(api, "one", "two")
    made = fork(api, mine, after=ids(api, mine)[0])["id"]
    add(api, mine, "three")
    add(api, made, "other")
    ok(api.post(f"/conversations/{made}", {"metadata": {"topic": "dogs"}}))
    assert (words(api, mine), words(api, made)) == (["one", "two", "three"], ["one", "other"])
    assert ok(api.get(f"/conversations/{mine}"))["metadata"] == {}


def test_a_fork_of_a_fork_has_what_both_share(api: Api) -> None:
    mine = begin(api, "one", "two")
    ok(api.delete(f"/conversations/{mine}/items/{ids(api, mine)[0]}"))
    middle = fork(api, mine)["id"]
    add(api, middle, "three")
    assert words(api, fork(api, middle)["id"]) == ["two", "three"]


def test_an_empty_conversation_has_an_empty_fork(api: Api) -> None:
    made = fork(api, begin(api))["id"]
    add(api, made, "one")
    assert words(api, made) == ["one"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"after": "msg_unknown"}, (404, "after", None)),
        ({"after": "a\u0000b"}, (404, "after", None)),
        ({"after": 1}, (400, "after", "invalid_type")),
        ({"metadata": {}}, (400, "metadata", "unknown_parameter")),
    ],
)
def test_it_says_what_is_wrong(api: Api, body: Any, expected: tuple[int, str, str | None]) -> None:
    assert error(api.post(f"/conversations/{begin(api, 'one')}/fork", body)) == expected
    assert len(ok(api.get("/conversations"))["data"]) == 1


def test_another_team_gets_the_answer_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = (outsider.post(f"/conversations/{name}/fork", {}) for name in (mine, "conv_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


def test_forking_needs_the_scope_of_writing(api: Api, make_api: MakeApi) -> None:
    reader = make_api(team=api.caller.team, scopes=["conversations.read"])
    assert error(reader.post(f"/conversations/{begin(api)}/fork", {})) == (403, None, "insufficient_scope")

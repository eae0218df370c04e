"""`POST /v1/conversations/{id}/fork`, an extension of the API."""

from typing import Any

import pytest

from conversations.models import Item
from tenants import scope
from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import add, begin, ids, items, words


def fork(api: Api, conversation_id: str, **body: Any) -> dict[str, Any]:
    """Fork a conversation and return the fork."""
    return ok(api.post(f"/conversations/{conversation_id}/fork", body))


def test_a_fork_is_a_new_conversation_with_the_same_metadata(api: Api) -> None:
    mine = begin(api, "one", topic="cats")
    created = fork(api, mine)
    assert created == ok(api.get(f"/conversations/{created['id']}"))
    assert (created["id"] != mine, created["metadata"]) == (True, {"topic": "cats"})


@pytest.mark.parametrize("body", [b"", {}, {"after": None}])
def test_a_fork_without_after_has_all_items(api: Api, body: Any) -> None:
    mine = begin(api, "one", "two")
    created = ok(api.post(f"/conversations/{mine}/fork", body))
    assert items(api, created["id"]) == items(api, mine)


def test_a_fork_ends_at_the_item_after_which_it_was_made(api: Api) -> None:
    mine = begin(api, "one", "two", "three")
    created = fork(api, mine, after=ids(api, mine)[1])
    assert words(api, created["id"]) == ["one", "two"]


def test_a_fork_shares_items_instead_of_copying_them(api: Api) -> None:
    mine = begin(api, *map(str, range(50)))
    created = fork(api, mine)
    assert ids(api, created["id"]) == ids(api, mine)
    with scope.team(api.caller.team.pk):
        assert Item.objects.count() == 50


def test_changes_after_a_fork_affect_one_conversation_only(api: Api) -> None:
    mine = begin(api, "one", "two")
    created = fork(api, mine, after=ids(api, mine)[0])["id"]
    add(api, mine, "three")
    add(api, created, "other")
    ok(api.post(f"/conversations/{created}", {"metadata": {"topic": "dogs"}}))
    assert (words(api, mine), words(api, created)) == (["one", "two", "three"], ["one", "other"])
    assert ok(api.get(f"/conversations/{mine}"))["metadata"] == {}


def test_a_fork_of_a_fork_has_the_shared_items(api: Api) -> None:
    mine = begin(api, "one", "two")
    ok(api.delete(f"/conversations/{mine}/items/{ids(api, mine)[0]}"))
    middle = fork(api, mine)["id"]
    add(api, middle, "three")
    assert words(api, fork(api, middle)["id"]) == ["two", "three"]


def test_an_empty_conversation_can_be_forked(api: Api) -> None:
    created = fork(api, begin(api))["id"]
    add(api, created, "one")
    assert words(api, created) == ["one"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"after": "msg_unknown"}, (404, "after", None)),
        ({"after": "a\u0000b"}, (404, "after", None)),
        ({"after": 1}, (400, "after", "invalid_type")),
        ({"metadata": {}}, (400, "metadata", "unknown_parameter")),
    ],
)
def test_an_invalid_body_is_rejected_with_param_and_code(
    api: Api, body: Any, expected: tuple[int, str, str | None]
) -> None:
    assert error(api.post(f"/conversations/{begin(api, 'one')}/fork", body)) == expected
    assert len(ok(api.get("/conversations"))["data"]) == 1


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = (outsider.post(f"/conversations/{name}/fork", {}) for name in (mine, "conv_unknown"))
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


def test_forking_requires_the_write_scope(api: Api, make_api: MakeApi) -> None:
    reader = make_api(team=api.caller.team, scopes=["conversations.read"])
    assert error(reader.post(f"/conversations/{begin(api)}/fork", {})) == (403, None, "insufficient_scope")

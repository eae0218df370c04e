"""`GET /v1/conversations`."""

from datetime import timedelta
from typing import Any

import pytest

from conversations.models import Conversation
from core.clock import now, unix
from tenants import scope
from tests.support.api import Api, error, ok
from tests.support.conversations import begin


def listed(api: Api, **query: Any) -> list[str]:
    """Return the ids on a page."""
    return [row["id"] for row in ok(api.get("/conversations", **query))["data"]]


def test_conversations_are_listed_newest_first(api: Api) -> None:
    created = [begin(api) for _ in range(3)]
    assert listed(api) == created[::-1]
    assert listed(api, order="asc") == created


def test_a_page_has_exactly_the_fields_of_the_api(api: Api) -> None:
    begin(api)
    created = ok(api.get(f"/conversations/{begin(api, 'Hi', topic='cats')}"))
    assert ok(api.get("/conversations", limit=1)) == {
        "object": "list",
        "data": [created],
        "first_id": created["id"],
        "last_id": created["id"],
        "has_more": True,
    }


def test_a_team_without_conversations_gets_an_empty_page(api: Api) -> None:
    page = ok(api.get("/conversations"))
    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_can_be_read_forwards_and_backwards(api: Api, order: str) -> None:
    created = [begin(api) for _ in range(5)]
    whole = created if order == "asc" else created[::-1]
    assert listed(api, order=order, limit=2, after=whole[1]) == whole[2:4]
    assert listed(api, order=order, limit=2, after=whole[3]) == whole[4:]
    assert listed(api, order=order, limit=2, before=whole[4]) == whole[2:4]


def test_conversations_can_be_filtered_by_metadata(api: Api) -> None:
    begin(api, topic="cats")
    mine = begin(api, topic="dogs", owner="ada")
    assert listed(api, **{"metadata[topic]": "dogs"}) == [mine]
    assert listed(api, **{"metadata[topic]": "dogs", "metadata[owner]": "ada"}) == [mine]
    assert listed(api, **{"metadata[topic]": "birds"}) == []


def test_conversations_can_be_filtered_by_time(api: Api) -> None:
    old, new = begin(api), begin(api)
    with scope.team(api.caller.team.pk):
        assert Conversation.objects.filter(pk=old).update(created_at=now() - timedelta(hours=2)) == 1
    assert listed(api, created_after=unix(now() - timedelta(hours=1))) == [new]


def test_a_team_sees_only_its_own_conversations(api: Api, outsider: Api) -> None:
    mine, theirs = begin(api), begin(outsider)
    assert (listed(api), listed(outsider)) == ([mine], [theirs])
    assert error(api.get("/conversations", after=theirs)) == (404, "after", None)
    assert error(api.get("/conversations", before="conv_unknown")) == (404, "before", None)


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"limit": 0}, "limit", "integer_below_min_value"),
        ({"limit": 101}, "limit", "integer_above_max_value"),
        ({"order": "up"}, "order", "invalid_value"),
        ({"created_after": "today"}, "created_after", "invalid_type"),
        ({"created_afte": "1"}, "created_afte", "unknown_parameter"),
    ],
)
def test_invalid_query_parameters_are_rejected(api: Api, query: dict[str, Any], param: str, code: str) -> None:
    assert error(api.get("/conversations", **query)) == (400, param, code)

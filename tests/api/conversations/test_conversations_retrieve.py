"""`GET /v1/conversations/{id}`."""

import pytest

from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import begin


def test_a_created_conversation_can_be_retrieved(api: Api) -> None:
    created = ok(api.post("/conversations", {"metadata": {"topic": "cats"}}))
    assert ok(api.get(f"/conversations/{created['id']}")) == created


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = outsider.get(f"/conversations/{mine}"), outsider.get("/conversations/conv_unknown")
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


@pytest.mark.parametrize("name", ["conv_unknown", "conv", "conv-1"])
def test_unknown_ids_are_not_found(api: Api, name: str) -> None:
    assert error(api.get(f"/conversations/{name}")) == (404, None, None)


def test_retrieving_requires_the_read_scope(api: Api, make_api: MakeApi) -> None:
    mine = begin(api)
    writer = make_api(team=api.caller.team, scopes=["conversations.write", "conversations.delete"])
    assert error(writer.get(f"/conversations/{mine}")) == (403, None, "insufficient_scope")


def test_unknown_query_parameters_are_rejected(api: Api) -> None:
    assert error(api.get(f"/conversations/{begin(api)}", limit=1)) == (400, "limit", "unknown_parameter")

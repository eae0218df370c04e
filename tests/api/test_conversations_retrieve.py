"""`GET /v1/conversations/{id}`."""

import pytest

from tests.support.api import Api, MakeApi, error, ok
from tests.support.conversations import begin


def test_it_is_what_was_created(api: Api) -> None:
    made = ok(api.post("/conversations", {"metadata": {"topic": "cats"}}))
    assert ok(api.get(f"/conversations/{made['id']}")) == made


def test_another_team_gets_the_answer_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine = begin(api, "secret")
    theirs, unknown = outsider.get(f"/conversations/{mine}"), outsider.get("/conversations/conv_unknown")
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content


@pytest.mark.parametrize("name", ["conv_%00", "conv_unknown", "resp_1", "%20"])
def test_any_other_id_is_unknown(api: Api, name: str) -> None:
    assert error(api.get(f"/conversations/{name}")) == (404, None, None)


def test_reading_needs_its_scope(api: Api, make_api: MakeApi) -> None:
    mine = begin(api)
    writer = make_api(team=api.caller.team, scopes=["conversations.write", "conversations.delete"])
    assert error(writer.get(f"/conversations/{mine}")) == (403, None, "insufficient_scope")


def test_unknown_names_in_the_query_are_refused(api: Api) -> None:
    assert error(api.get(f"/conversations/{begin(api)}", limit=1)) == (400, "limit", "unknown_parameter")

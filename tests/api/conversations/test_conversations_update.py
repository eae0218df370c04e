"""`POST /v1/conversations/{id}`."""

from typing import Any

import pytest

from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, error, ok
from tests.support.conversations import begin, words


def test_the_metadata_is_replaced(api: Api) -> None:
    mine = begin(api, "Hi", topic="cats", owner="ada")
    changed = ok(api.post(f"/conversations/{mine}", {"metadata": {"topic": "dogs"}}))
    assert changed["metadata"] == {"topic": "dogs"}
    assert ok(api.get(f"/conversations/{mine}")) == changed
    assert words(api, mine) == ["Hi"]


@pytest.mark.parametrize("nothing", [None, {}])
def test_metadata_can_be_removed(api: Api, nothing: Any) -> None:
    mine = begin(api, topic="cats")
    assert ok(api.post(f"/conversations/{mine}", {"metadata": nothing}))["metadata"] == {}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "metadata", "missing_required_parameter"),
        (b"", "metadata", "missing_required_parameter"),
        ({"metadata": "cats"}, "metadata", "invalid_type"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
        ({"metadata": {}, "items": []}, "items", "unknown_parameter"),
    ],
)
def test_an_invalid_body_is_rejected_with_param_and_code(api: Api, body: Any, param: str, code: str) -> None:
    mine = begin(api, topic="cats")
    assert error(api.post(f"/conversations/{mine}", body)) == (400, param, code)
    assert ok(api.get(f"/conversations/{mine}"))["metadata"] == {"topic": "cats"}


def test_another_teams_conversation_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    mine, body = begin(api, topic="cats"), {"metadata": {"topic": "dogs"}}
    theirs, unknown = outsider.post(f"/conversations/{mine}", body), outsider.post("/conversations/conv_unknown", body)
    assert error(theirs) == (404, None, None)
    assert theirs.content.replace(mine.encode(), b"conv_unknown") == unknown.content
    assert ok(api.get(f"/conversations/{mine}"))["metadata"] == {"topic": "cats"}


def test_an_update_is_audited(api: Api) -> None:
    mine = begin(api, topic="cats")
    answer = api.post(f"/conversations/{mine}", {"metadata": {"topic": "dogs"}})
    with scope.team(api.caller.team.pk):
        event = AuditEvent.objects.get(target=mine)
    assert (event.action, event.actor) == ("conversation.updated", f"key:{api.caller.key.pk}")
    assert (event.before, event.after) == ({"metadata": {"topic": "cats"}}, {"metadata": {"topic": "dogs"}})
    assert event.request_id == answer.headers["x-request-id"]

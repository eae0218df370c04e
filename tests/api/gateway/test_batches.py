"""`/v1/batches`: creating, listing and retrieving, independently of workers."""

from typing import Any

import pytest

from tests.support.api import Api, MakeApi, error, ok
from tests.support.batches import asked, line, uploaded

HI = line("a", model="m", input="Hi")


def body(api: Api, **changes: Any) -> dict[str, Any]:
    given = {"input_file_id": "file-x", "endpoint": "/v1/responses", "completion_window": "24h", **changes}
    return {name: value for name, value in given.items() if value != "left out"}


def test_a_new_batch_is_validating(api: Api) -> None:
    expiry = {"anchor": "created_at", "seconds": 3600}
    batch = asked(api, HI, metadata={"job": "nightly"}, output_expires_after=expiry)
    assert batch["status"] == "validating"
    assert batch["metadata"] == {"job": "nightly"}
    assert batch["expires_at"] - batch["created_at"] == 24 * 3600
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    retrieved = ok(api.get(f"/batches/{batch['id']}"))
    assert (retrieved["id"], retrieved["created_at"]) == (batch["id"], batch["created_at"])


def test_metadata_is_null_if_none_was_sent(api: Api) -> None:
    assert asked(api, HI)["metadata"] is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": "left out"}, "input_file_id"),
        ({"input_file_id": "file-x\x00"}, "input_file_id"),
        ({"endpoint": "/v1/completions"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"priority": "low"}, "priority"),
    ],
)
def test_an_invalid_body_is_rejected_with_param_and_code(api: Api, change: dict[str, Any], param: str) -> None:
    status, named, _ = error(api.post("/batches", body(api, **change)))
    assert (status, named) == (404 if change.get("input_file_id", "").startswith("file") else 400, param)


def test_an_input_file_with_another_purpose_is_rejected(api: Api) -> None:
    file_id = uploaded(api, HI, purpose="user_data")
    assert error(api.post("/batches", body(api, input_file_id=file_id))) == (400, "input_file_id", "invalid_value")


def test_an_input_file_of_another_team_is_not_found(api: Api, outsider: Api) -> None:
    foreign = outsider.post("/batches", body(api, input_file_id=uploaded(api, HI)))
    assert error(foreign) == (404, "input_file_id", None)


def test_another_teams_batch_gets_the_404_of_an_unknown_id(api: Api, outsider: Api) -> None:
    batch_id = asked(api, HI)["id"]
    for method, path in (("GET", ""), ("POST", "/cancel")):
        foreign = outsider.request(method, f"/batches/{batch_id}{path}")
        unknown = outsider.request(method, f"/batches/batch_unknown{path}")
        assert error(foreign) == (404, None, None)
        assert foreign.text.replace(batch_id, "batch_unknown") == unknown.text
    assert ok(outsider.get("/batches"))["data"] == []
    assert error(outsider.get("/batches", after=batch_id)) == (404, "after", None)


def test_batches_are_listed_newest_first_in_pages(api: Api) -> None:
    ids = [asked(api, HI)["id"] for _ in range(3)]
    first = ok(api.get("/batches", limit=2))
    assert [batch["id"] for batch in first["data"]] == [ids[2], ids[1]]
    assert first["has_more"] is True
    second = ok(api.get("/batches", limit=2, after=first["last_id"]))
    assert ([batch["id"] for batch in second["data"]], second["has_more"]) == ([ids[0]], False)


def test_creating_a_batch_requires_its_scope_and_the_scope_of_the_endpoint(api: Api, make_api: MakeApi) -> None:
    reading = make_api(team=api.caller.team, scopes=["batches.read"])
    chatting = make_api(team=api.caller.team, scopes=["batches.write", "chat_completions.write"])
    asking = body(api, input_file_id=uploaded(api, HI))
    assert error(reading.post("/batches", asking))[0] == 403
    assert error(chatting.post("/batches", asking))[0] == 403
    assert ok(chatting.post("/batches", asking | {"endpoint": "/v1/chat/completions"}))
    assert error(chatting.get("/batches"))[0] == 403
    assert ok(reading.get("/batches"))["data"]

"""`GET /v1/responses`."""

import time
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.http.pagination import PageRequest
from responses.runs import selectors
from responses.runs.selectors import ResponseFilter
from tenants import scope
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.upstream import Gate, Script, refusal, stream


def make(api: Api, script: Script, count: int, **body: Any) -> list[dict[str, Any]]:
    """Create this many responses and return them, oldest first."""
    for _ in range(count):
        script.say("Hello")
    return [api.create(model=script.model, input=f"{i}", **body) for i in range(count)]


def ids(page: dict[str, Any]) -> list[str]:
    return [row["id"] for row in page["data"]]


def list_ids(api: Api, **query: Any) -> list[str]:
    return ids(ok(api.get("/responses", **query)))


def test_responses_are_listed_newest_first(api: Api, script: Script) -> None:
    made = make(api, script, 3)
    page = ok(api.get("/responses"))
    assert page["data"] == made[::-1]
    assert (page["object"], page["has_more"]) == ("list", False)
    assert (page["first_id"], page["last_id"]) == (made[2]["id"], made[0]["id"])


def test_an_empty_list_has_null_ids(api: Api) -> None:
    empty: dict[str, Any] = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert ok(api.get("/responses")) == empty


def test_order_asc_lists_the_oldest_first(api: Api, script: Script) -> None:
    made = make(api, script, 3)
    assert list_ids(api, order="asc") == [row["id"] for row in made]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_cover_the_whole_list(api: Api, script: Script, order: str) -> None:
    make(api, script, 5)
    whole = list_ids(api, order=order)
    first = ok(api.get("/responses", order=order, limit=2))
    second = ok(api.get("/responses", order=order, limit=2, after=first["last_id"]))
    third = ok(api.get("/responses", order=order, limit=2, after=second["last_id"]))
    assert [ids(page) for page in (first, second, third)] == [whole[:2], whole[2:4], whole[4:]]
    assert [page["has_more"] for page in (first, second, third)] == [True, True, False]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_before_a_cursor_ends_right_before_it(api: Api, script: Script, order: str) -> None:
    make(api, script, 5)
    whole = list_ids(api, order=order)
    page = ok(api.get("/responses", order=order, limit=2, before=whole[4]))
    assert (ids(page), page["has_more"]) == (whole[2:4], True)
    page = ok(api.get("/responses", order=order, limit=2, before=whole[1]))
    assert (ids(page), page["has_more"]) == (whole[:1], False)


def test_after_and_before_enclose_a_range(api: Api, script: Script) -> None:
    make(api, script, 5)
    whole = list_ids(api)
    page = ok(api.get("/responses", after=whole[0], before=whole[4]))
    assert (ids(page), page["has_more"]) == (whole[1:4], False)


def test_a_full_last_page_reports_no_more(api: Api, script: Script) -> None:
    make(api, script, 2)
    assert ok(api.get("/responses", limit=2))["has_more"] is False


def test_new_responses_do_not_shift_later_pages(api: Api, script: Script) -> None:
    make(api, script, 4)
    whole = list_ids(api)
    first = list_ids(api, limit=2)
    make(api, script, 2)
    assert first + list_ids(api, limit=2, after=first[-1]) == whole


def test_deleting_listed_responses_does_not_shift_later_pages(api: Api, script: Script) -> None:
    make(api, script, 4)
    whole = list_ids(api)
    api.delete(f"/responses/{whole[0]}")
    assert list_ids(api, limit=2, after=whole[1]) == whole[2:]


@pytest.mark.slow
def test_the_default_page_size_is_twenty(api: Api, script: Script) -> None:
    make(api, script, 21)
    assert len(list_ids(api)) == 20
    assert len(list_ids(api, limit=100)) == 21


def test_responses_can_be_filtered_by_model(api: Api, script: Script, other_script: Script) -> None:
    make(api, script, 1)
    (wanted,) = make(api, other_script, 1)
    assert list_ids(api, model=other_script.model) == [wanted["id"]]


def test_responses_can_be_filtered_by_status(api: Api, script: Script) -> None:
    (completed,) = make(api, script, 1)
    script.say("Hel", finish="length").then(refusal(500))
    incomplete = api.create(model=script.model, input="a")
    api.post("/responses", {"model": script.model, "input": "b"})
    (failed,) = ok(api.get("/responses", status="failed"))["data"]
    assert failed["error"]["code"] == "server_error"
    assert list_ids(api, status="completed") == [completed["id"]]
    assert list_ids(api, status="incomplete") == [incomplete["id"]]
    assert list_ids(api, status="cancelled") == []


def test_responses_can_be_filtered_by_metadata(api: Api, script: Script) -> None:
    (a,) = make(api, script, 1, metadata={"customer": "a", "kind": "x"})
    (b,) = make(api, script, 1, metadata={"customer": "b", "kind": "x"})
    assert list_ids(api, **{"metadata[customer]": "a"}) == [a["id"]]
    assert list_ids(api, **{"metadata[kind]": "x"}) == [b["id"], a["id"]]
    assert list_ids(api, **{"metadata[kind]": "x", "metadata[customer]": "b"}) == [b["id"]]
    assert list_ids(api, **{"metadata[kind]": "y"}) == list_ids(api, **{"metadata[other]": "x"}) == []


def test_responses_can_be_filtered_by_creation_time(api: Api, script: Script) -> None:
    make(api, script, 1)
    between = time.time()
    (newer,) = make(api, script, 1)
    assert list_ids(api, created_after=between) == [newer["id"]]
    assert newer["id"] not in list_ids(api, created_before=between)
    assert list_ids(api, created_after=time.time() + 1) == []


def test_responses_can_be_filtered_by_conversation(api: Api, script: Script) -> None:
    make(api, script, 1)
    assert list_ids(api, conversation_id="conv_unknown") == []


def test_filters_and_cursors_can_be_combined(api: Api, script: Script, other_script: Script) -> None:
    made = [row["id"] for _ in range(2) for one in (script, other_script) for row in make(api, one, 1)]
    assert list_ids(api, model=script.model, after=made[2]) == [made[0]]
    assert list_ids(api, model=script.model, after=made[3]) == [made[2], made[0]]


@pytest.mark.parametrize(
    ("query", "status", "param", "code"),
    [
        ({"limit": 0}, 400, "limit", "integer_below_min_value"),
        ({"limit": -1}, 400, "limit", "integer_below_min_value"),
        ({"limit": 101}, 400, "limit", "integer_above_max_value"),
        ({"limit": "ten"}, 400, "limit", "invalid_type"),
        ({"limit": "1.5"}, 400, "limit", "invalid_type"),
        ({"limit": "9" * 5000}, 400, "limit", "integer_above_max_value"),
        ({"order": "up"}, 400, "order", "invalid_value"),
        ({"status": "done"}, 400, "status", "invalid_value"),
        ({"created_after": "yesterday"}, 400, "created_after", "invalid_type"),
        ({"created_before": "nan"}, 400, "created_before", "invalid_type"),
        ({"after": "resp_unknown"}, 404, "after", None),
        ({"before": "resp_unknown"}, 404, "before", None),
        ({"nonsense": "1"}, 400, "nonsense", "unknown_parameter"),
        ({"metadata": "a"}, 400, "metadata", "unknown_parameter"),
    ],
)
def test_an_invalid_query_names_the_parameter(
    api: Api, query: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    assert error(api.get("/responses", **query)) == (status, param, code)


def test_another_teams_responses_are_not_listed(api: Api, outsider: Api, script: Script) -> None:
    (row,) = make(api, script, 1, metadata={"a": "b"})
    assert list_ids(outsider) == list_ids(outsider, model=script.model) == []
    assert list_ids(outsider, **{"metadata[a]": "b"}) == []
    foreign, unknown = (outsider.get("/responses", after=name) for name in (row["id"], "resp_unknown"))
    assert (foreign.status_code, foreign.text.replace(row["id"], "resp_unknown")) == (404, unknown.text)


@pytest.mark.slow
def test_the_number_of_queries_does_not_grow_with_the_page(api: Api, script: Script, caller: Caller) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as asked, scope.team(caller.team.pk):
            page = selectors.list_responses(team_id=caller.team.pk, filters=ResponseFilter(), page=PageRequest())
            selectors.outputs(page.rows)
        return len(asked)

    make(api, script, 1)
    few = queries()
    make(api, script, 9)
    assert queries() == few


def test_listing_requires_the_read_scope(make_api: MakeApi) -> None:
    assert error(make_api(scopes=["responses.write"]).get("/responses")) == (403, None, "insufficient_scope")


def test_responses_in_progress_are_listed(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate))
    with api.stream(model=script.model, input="Hi") as live:
        assert list_ids(api, status="in_progress") == [live.next()["response"]["id"]]
        gate.open()
        live.rest()
    assert list_ids(api, status="in_progress") == []


def test_responses_are_found_by_their_end_user(api: Api, script: Script) -> None:
    (first,) = make(api, script, 1, safety_identifier="ann")
    (second,) = make(api, script, 1, user="bob")
    assert list_ids(api, safety_identifier="ann") == list_ids(api, user="ann") == [first["id"]]
    assert list_ids(api, user="bob") == [second["id"]]
    assert list_ids(api, user="bob", safety_identifier="ann") == list_ids(api, user="eve") == []


def test_responses_are_found_by_their_error_code(api: Api, script: Script) -> None:
    make(api, script, 1)
    script.then(refusal(400, "Bad."))
    assert api.post("/responses", {"model": script.model, "input": "Hi"}).status_code == 400
    (failed,) = ok(api.get("/responses", error_code="invalid_prompt"))["data"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
    assert list_ids(api, error_code="server_error") == []


def test_a_response_is_found_by_the_id_of_its_request(api: Api, script: Script) -> None:
    make(api, script, 1)
    script.say("Hello")
    answer = api.post("/responses", {"model": script.model, "input": "Hi"})
    request_id = answer.headers["x-request-id"]
    assert list_ids(api, request_id=request_id) == [answer.json()["id"]]
    assert list_ids(api, request_id="req_unknown") == list_ids(api, request_id="nonsense") == []


def test_filters_find_nothing_of_another_team(api: Api, script: Script, make_api: MakeApi) -> None:
    script.say("Hello")
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "user": "ann"})
    assert list_ids(make_api(), request_id=answer.headers["x-request-id"]) == list_ids(make_api(), user="ann") == []

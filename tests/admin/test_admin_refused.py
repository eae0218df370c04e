"""The list of refused requests, and the error code in the access log."""

import re
from datetime import timedelta
from typing import Any

import httpx2
import orjson
import pytest
from django.test import Client

from core.clock import now
from limits import refused_requests
from tenants import scope
from tenants.models import RefusedRequest, Scope
from tests.admin.conftest import CountQueries
from tests.admin.rows import text
from tests.support import chunks
from tests.support.api import Api, Caller, MakeApi, MakeCaller
from tests.support.batches import asked, ended, line
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

REFUSED = "/admin/refused/"


def stored(**conditions: Any) -> RefusedRequest:
    """Wait until a refused request is stored and return its row."""

    def found() -> RefusedRequest | None:
        with scope.every_team():
            return RefusedRequest.objects.filter(**conditions).order_by("-last_at").first()

    eventually(lambda: found() is not None)
    row = found()
    assert row is not None
    return row


def add(team_id: str, **columns: Any) -> RefusedRequest:
    """Store refused requests of this minute."""
    at = now()
    values = {"status": 404, "method": "GET", "route": "/v1/x", "count": 1, "minute": at, "last_at": at, **columns}
    with scope.every_team():
        return RefusedRequest.objects.create(team_id=team_id, **values)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/responses", {"model": "no/such", "input": "Hi"}, 400, "model_not_found"),
        ("POST", "/responses", {"model": "m", "input": "Hi", "temprature": 1}, 400, "unknown_parameter"),
        ("GET", "/responses/resp_unknown", None, 404, ""),
    ],
)
def test_a_refused_request_is_listed_with_code_key_and_id(
    api: Api, caller: Caller, lead: Client, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = api.request(method, path, json=body) if body else api.get(path)
    assert answer.status_code == status
    row = stored(team_id=caller.team.pk)
    assert (row.status, row.code, row.api_key_id) == (status, code, caller.key.pk)
    assert (row.path, row.request_id) == (f"/v1{path}", answer.headers["x-request-id"])
    page = text(lead.get(REFUSED))
    assert row.request_id in page
    assert caller.key.name in page
    assert row.model in page


def test_the_model_is_listed_but_no_content(api: Api, caller: Caller, script: Script) -> None:
    script.then(refusal(400, "Cannot answer 'my diagnosis is secret'."))
    api.post("/responses", {"model": script.model, "input": "my diagnosis is secret"})
    row = stored(team_id=caller.team.pk)
    assert (row.code, row.model) == ("invalid_prompt", script.model)
    assert "diagnosis" not in row.message
    assert row.message


@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        ({"type": "response.create", "model": "no/such", "input": "Hi"}, 400, "model_not_found"),
        ({"type": "response.create", "model": "m", "input": "Hi", "temprature": 1}, 400, "unknown_parameter"),
        ({"type": "response.create", "model": "m", "input": "Hi", "idempotency_key": 1}, 400, "invalid_type"),
        (
            {"type": "response.create", "model": "no/such", "input": "Hi", "idempotency_key": "a"},
            400,
            "model_not_found",
        ),
        ({"type": "response.create", "model": "m", "input": "Hi", "stream_id": "?"}, 400, None),
        ({"type": "response.unknown"}, 400, None),
        ("{", 400, None),
    ],
)
def test_a_request_refused_over_an_open_websocket_is_listed(
    web: WebProcess, make_caller: MakeCaller, operator: Client, event: Any, status: int, code: str | None
) -> None:
    # The key may not use the models, which a server of the tests would otherwise refuse during the run.
    caller = make_caller(allowed_models=["m"])
    with open_socket(web.url, secret=caller.secret) as socket:
        refused = socket.refuse(event)
    row = stored(team_id=caller.team.pk)
    assert (row.status, row.code) == (status, refused["error"]["code"] or "")
    assert code in {None, row.code}
    assert (row.method, row.path, row.api_key_id) == ("WEBSOCKET", "/v1/responses", caller.key.pk)
    assert row.model == ("no/such" if code == "model_not_found" else "")
    assert row.request_id in text(operator.get(f"{REFUSED}?team={caller.team.pk}"))


def test_requests_of_a_websocket_that_run_are_not_listed(web: WebProcess, caller: Caller, script: Script) -> None:
    script.say("Hello").then(refusal(400, "No."))
    with open_socket(web.url, secret=caller.secret) as socket:
        socket.respond(model=script.model, input="Hi")
        assert socket.create(model=script.model, input="Hi")[-1]["type"] == "response.failed"
        socket.create(model=script.model, input="Hi", temprature=1)
    assert stored(team_id=caller.team.pk).code == "unknown_parameter"
    assert total(caller) == 1


def test_models_of_requests_on_one_connection_are_not_mixed(web: WebProcess, caller: Caller, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *chunks.text("Hello")))
    with open_socket(web.url, secret=caller.secret) as socket:
        socket.ask(model=script.model, input="Hi", stream_id="a")
        assert socket.next()["type"] == "response.created"
        socket.ask(model="m", input="Hi", temprature=1, stream_id="b")
        row = stored(team_id=caller.team.pk)
        gate.open()
        assert socket.rest()[-1]["type"] in {"response.completed", "error"}
    assert (row.code, row.model) == ("unknown_parameter", "")


@pytest.mark.usefixtures("worker")
@pytest.mark.slow
def test_a_refused_line_of_a_batch_is_listed_once(api: Api, caller: Caller, lead: Client, script: Script) -> None:
    script.say("Hello")
    good = line("a", model=script.model, input="Hi")
    batch = asked(api, good, line("b", model="no/such", input="Hi"))
    assert ended(api, batch["id"])["request_counts"]["failed"] == 1
    row = stored(team_id=caller.team.pk, code="model_not_found")
    assert (row.method, row.path, row.status) == ("BATCH", f"/v1/responses ({batch['id']})", 400)
    assert (row.api_key_id, row.model) == (caller.key.pk, "no/such")
    assert batch["id"] in text(lead.get(REFUSED))
    assert total(caller) == 1


def test_an_unknown_key_is_listed_for_operators_only(
    web: WebProcess, http: httpx2.Client, lead: Client, operator: Client, caller: Caller
) -> None:
    secret = "sk-wrong-0123456789abcdefghij"
    answer = http.get(f"{web.url}/v1/models", headers={"authorization": f"Bearer {secret}"})
    row = stored(request_id=answer.headers["x-request-id"])
    assert (row.team_id, row.status, row.code, row.key_hint) == ("", 401, "invalid_api_key", "sk-wro…ghij")
    assert row.request_id in text(operator.get(f"{REFUSED}?status=401"))
    assert row.request_id not in text(lead.get(f"{REFUSED}?status=401"))


def test_a_key_without_a_scope_is_listed(make_api: MakeApi, caller: Caller) -> None:
    limited = make_api(scopes=[Scope.USAGE_READ])
    assert limited.get("/responses").status_code == 403
    assert stored(team_id=limited.caller.team.pk).code == "insufficient_scope"


def test_a_flood_of_equal_refusals_is_one_row_a_minute(api: Api, caller: Caller) -> None:
    for _ in range(20):
        api.get("/responses/resp_unknown")
    eventually(lambda: total(caller) == 20)
    with scope.every_team():
        assert RefusedRequest.objects.filter(team_id=caller.team.pk).count() <= 2


def total(caller: Caller) -> int:
    """Return the number of refused requests of a team."""
    with scope.every_team():
        return sum(RefusedRequest.objects.filter(team_id=caller.team.pk).values_list("count", flat=True))


def test_requests_that_succeed_are_not_stored(api: Api, caller: Caller) -> None:
    api.get("/models")
    api.get("/responses/resp_unknown")
    assert stored(team_id=caller.team.pk).path == "/v1/responses/resp_unknown"
    assert total(caller) == 1


def test_another_team_is_not_listed(lead: Client, stranger: Client, caller: Caller) -> None:
    row = add(caller.team.pk, request_id="req_of_this_team")
    assert row.request_id in text(lead.get(REFUSED))
    for query in ("", f"?team={caller.team.pk}", f"?before={row.pk}"):
        assert row.request_id not in text(stranger.get(f"{REFUSED}{query}"))


def test_the_list_has_filters_and_pages(lead: Client, caller: Caller) -> None:
    for number in range(101):
        add(caller.team.pk, route=f"/v1/{number}", request_id=f"req_number_{number}_")
    add(caller.team.pk, status=409, code="idempotency_key_reused", request_id="req_conflict")
    page = text(lead.get(REFUSED))
    (older,) = re.findall(r'href="([^"]*before=\d+)"', page)
    following = text(lead.get(REFUSED + older.replace("&amp;", "&")))
    numbers = [set(re.findall(r"req_number_(\d+)_", html)) for html in (page, following)]
    assert numbers[0] | numbers[1] == {str(number) for number in range(101)}
    assert not numbers[0] & numbers[1]
    for query in ("status=409", "code=idempotency_key_reused"):
        page = text(lead.get(f"{REFUSED}?{query}"))
        assert ("req_conflict" in page, "req_number" in page) == (True, False)
    assert "No refused request matches" in text(lead.get(f"{REFUSED}?status=nonsense"))


def test_the_queries_do_not_depend_on_the_number_of_rows(
    lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    add(caller.team.pk)
    few = count_queries(lead, REFUSED)
    for number in range(30):
        add(caller.team.pk, route=f"/v1/{number}", api_key_id=f"key_{number}")
    assert count_queries(lead, REFUSED) == few


def test_old_rows_are_deleted(caller: Caller) -> None:
    old = add(caller.team.pk, minute=now() - refused_requests.RETENTION - timedelta(hours=1))
    fresh = add(caller.team.pk)
    refused_requests.delete_old()
    with scope.every_team():
        assert [*RefusedRequest.objects.filter(pk__in=[old.pk, fresh.pk])] == [fresh]


def test_the_access_log_has_the_code_of_an_error(web: WebProcess, api: Api) -> None:
    since = web.written
    answer = api.post("/responses", {"model": "no/such", "input": "Hi"})
    api.get("/models")

    def lines() -> list[dict[str, Any]]:
        written = web.output(since=since).splitlines()
        found = [orjson.loads(line) for line in written if line.startswith('{"event":"request"')]
        return [line for line in found if line["path"] in {"/v1/responses", "/v1/models"}]

    eventually(lambda: len(lines()) >= 2)
    codes = {line["request_id"]: line["code"] for line in lines()}
    assert codes.pop(answer.headers["x-request-id"]) == "model_not_found"
    assert set(codes.values()) == {None}

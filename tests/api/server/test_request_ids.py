"""`x-request-id` on every response, and the client's own request id."""

import httpx2
import pytest

from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tests.support.api import Api, Caller, error
from tests.support.upstream import Script, refusal
from tests.support.web import WebProcess

REQUESTS = [
    ("GET", "/v1/responses", 200),
    ("GET", "/v1/models", 200),
    ("GET", "/v1/responses/resp_x", 404),
    ("GET", "/v1/nothing", 404),
    ("GET", "/v1", 404),
    ("GET", "/nothing", 404),
    ("PATCH", "/v1/responses", 405),
    ("POST", "/v1/responses", 400),
    ("POST", "/v1/chat/completions", 400),
    ("OPTIONS", "/v1/models", 405),
    ("HEAD", "/v1/models", 200),
    ("GET", "/livez", 200),
    ("GET", "/readyz", 200),
    ("GET", "/admin/login/", 302),
    ("GET", "/account/login/", 200),
]


@pytest.mark.parametrize(("method", "path", "status"), REQUESTS)
def test_every_response_has_its_own_request_id(
    web: WebProcess, http: httpx2.Client, caller: Caller, method: str, path: str, status: int
) -> None:
    headers = {"Authorization": f"Bearer {caller.secret}"}
    answers = [http.request(method, web.url + path, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status, status]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert all(name.startswith("req_") for name in ids)
    assert all(len(answer.headers.get_list("x-request-id")) == 1 for answer in answers)


@pytest.mark.parametrize("header", ["", "Bearer sk-wrong"])
def test_an_authentication_error_has_a_request_id(web: WebProcess, http: httpx2.Client, header: str) -> None:
    answer = http.get(f"{web.url}/v1/responses", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_response_has_the_processing_time_header(api: Api) -> None:
    answer = api.get("/responses")
    assert answer.headers["openai-version"] == "2020-10-01"
    assert int(answer.headers["openai-processing-ms"]) >= 0


@pytest.mark.parametrize("streamed", [False, True])
def test_both_ids_are_stored_with_the_rows_of_a_request(
    api: Api, script: Script, caller: Caller, streamed: bool
) -> None:
    script.say("Hello")
    body = {"model": script.model, "input": "Hi", "stream": streamed}
    answer = api.post("/responses", body, {"X-Client-Request-Id": "my-own-id"})
    with scope.team(caller.team.pk):
        row, ledger = Response.objects.get(), UsageRecord.objects.get()
    assert row.request_id == ledger.request_id == answer.headers["x-request-id"]
    assert row.client_request_id == "my-own-id"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_failed_run_has_both_ids(api: Api, script: Script, caller: Caller, streamed: bool) -> None:
    script.then(refusal(500))
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "stream": streamed})
    with scope.team(caller.team.pk):
        assert Response.objects.get().request_id == answer.headers["x-request-id"]


def test_the_clients_id_may_have_512_characters(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    api.post("/responses", {"model": script.model, "input": "Hi"}, {"X-Client-Request-Id": "x" * 512})
    with scope.team(caller.team.pk):
        assert Response.objects.get().client_request_id == "x" * 512


@pytest.mark.parametrize("given", [b"x" * 513, "größer".encode()])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_invalid_client_id_is_refused(api: Api, streamed: bool, given: bytes) -> None:
    body = {"model": "m", "input": "Hi", "stream": streamed}
    answer = api.post("/responses", body, {"X-Client-Request-Id": given})
    assert error(answer) == (400, "X-Client-Request-Id", "invalid_value")

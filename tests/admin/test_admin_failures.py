"""Why a run failed: the page of the response, the usage record of calls without a page, and the log."""

from typing import Any

import orjson
import pytest
from django.test import Client

from launcher.address import any_free_port
from responses.models import Response
from tenants import scope, services
from tenants.models import StaffRole, UsageRecord
from tests.admin.rows import page_url, sign_in, text
from tests.support.api import Api, Caller
from tests.support.upstream import Script, refusal
from tests.support.waiting import eventually
from tests.support.web import WebProcess

WORDS = "CUDA out of memory on 10.1.2.3, key upstream-secret"


@pytest.fixture
def refusing_port(database: None, upstream: Any) -> int:
    """The port of an upstream that refuses connections, with a model of its own."""
    port = any_free_port()
    services.add_upstream(name=f"closed-{port}", base_url=f"http://127.0.0.1:{port}/v1", models=[model_at(port)])
    return port


def model_at(port: int) -> str:
    """Return the model of the upstream at a port."""
    return f"nobody/at-{port}"


def latest(caller: Caller) -> Response:
    """Return the latest response of a team."""
    with scope.team(caller.team.pk):
        return Response.objects.latest("created_at")


def test_an_operator_sees_the_address_and_the_error_of_a_refused_connection(
    api: Api, caller: Caller, operator: Client, refusing_port: int
) -> None:
    api.post("/responses", {"model": model_at(refusing_port), "input": "Hi"})
    page = text(operator.get(page_url(latest(caller))))
    assert "connection refused" in page
    assert f"http://127.0.0.1:{refusing_port}/v1/chat/completions" in page


def test_an_operator_sees_the_status_and_the_words_of_the_upstream_without_its_key(
    api: Api, script: Script, caller: Caller, operator: Client
) -> None:
    script.then(refusal(500, WORDS))
    api.post("/responses", {"model": script.model, "input": "Hi"})
    page = text(operator.get(page_url(latest(caller))))
    assert "CUDA out of memory on 10.1.2.3" in page
    assert ("HTTP 500" in page, "upstream-secret" in page) == (True, False)


def test_a_team_sees_the_cause_but_no_internal_address(
    api: Api, script: Script, caller: Caller, developer: Client, refusing_port: int
) -> None:
    api.post("/responses", {"model": model_at(refusing_port), "input": "Hi"})
    page = text(developer.get(page_url(latest(caller))))
    assert ("connection refused" in page, "127.0.0.1" in page) == (True, False)
    script.then(refusal(500, WORDS))
    api.post("/responses", {"model": script.model, "input": "Hi"})
    page = text(developer.get(page_url(latest(caller))))
    assert ("HTTP 500" in page, "10.1.2.3" in page) == (True, False)


def test_the_words_of_the_upstream_are_not_stored_for_an_unstored_response(
    api: Api, script: Script, caller: Caller, operator: Client
) -> None:
    script.then(refusal(500, WORDS))
    api.post("/responses", {"model": script.model, "input": "Hi", "store": False})
    page = text(operator.get(page_url(latest(caller))))
    assert ("HTTP 500" in page, "CUDA" in page) == (True, False)


def test_a_background_run_has_the_same_details_and_code(
    api: Api, caller: Caller, operator: Client, refusing_port: int, worker: object
) -> None:
    created = api.create(model=model_at(refusing_port), input="Hi", background=True)
    eventually(lambda: api.retrieve(created["id"])["status"] == "failed")
    failed = api.retrieve(created["id"])
    assert failed["error"]["code"] == "upstream_unreachable"
    assert f"Model: '{model_at(refusing_port)}', request: req_" in failed["error"]["message"]
    assert f"127.0.0.1:{refusing_port}" in text(operator.get(page_url(latest(caller))))


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings", "/messages"])
def test_other_calls_keep_the_details_for_operators(
    api: Api, caller: Caller, operator: Client, lead: Client, refusing_port: int, path: str
) -> None:
    messages = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    api.post(path, {"model": model_at(refusing_port), **({"input": "Hi"} if path == "/embeddings" else messages)})
    with scope.team(caller.team.pk):
        eventually(lambda: UsageRecord.objects.filter(outcome="failed").exists())
        record = UsageRecord.objects.get(outcome="failed")
    url = page_url(latest(caller)) if path == "/messages" else f"/admin/tenants/usagerecord/{record.pk}/change/"
    address = f"127.0.0.1:{refusing_port}"
    assert address in text(operator.get(url))
    assert address not in text(lead.get(url))


def test_the_log_has_one_warning_for_each_failed_request(web: WebProcess, api: Api, refusing_port: int) -> None:
    for path, body in (
        ("/responses", {"input": "Hi"}),
        ("/responses", {"input": "Hi", "stream": True}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/embeddings", {"input": "Hi"}),
    ):
        since = web.written
        answer = api.post(path, {"model": model_at(refusing_port), **body})
        request_id = answer.headers["x-request-id"]

        def warnings(since: int = since, request_id: str = request_id) -> list[dict[str, Any]]:
            lines = [line for line in web.output(since=since).splitlines() if line.startswith("{")]
            found = [orjson.loads(line) for line in lines]
            return [line for line in found if line.get("request_id") == request_id and line["level"] == "warning"]

        (line,) = eventually(warnings)
        assert (line["model"], line["code"]) == (model_at(refusing_port), "upstream_unreachable"), path
        assert line["upstream"] == f"closed-{refusing_port}"
        assert line["cause"].startswith("connection refused"), path
        assert "Traceback" not in web.output(since=since)


def test_an_administrator_of_the_platform_needs_no_reveal(
    api: Api, script: Script, caller: Caller, platform_auditor: Client
) -> None:
    script.then(refusal(500, WORDS))
    api.post("/responses", {"model": script.model, "input": "Hi"})
    for client in (platform_auditor, sign_in(staff=StaffRole.OPERATOR)):
        assert "CUDA out of memory" in text(client.get(page_url(latest(caller))))

"""The access log has one line per request, written at its end, without secrets; lines about errors have ids."""

import json
from typing import Any

import httpx2
import pytest

from tests.support.api import Api, MakeCaller
from tests.support.chunks import text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web
from tests.support.websocket_client import open_socket


def lines(process: Any, since: int = 0) -> list[dict[str, Any]]:
    """Return the log of a process, of which every line must be JSON."""
    # A line that is being written grows from one page of the file to the next.
    complete, _, _ = process.output(since=since).rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


def line_of(process: Any, request_id: str) -> dict[str, Any]:
    """Return the only line of the access log about a request."""

    def found() -> list[dict[str, Any]]:
        return [one for one in lines(process) if one["logger"] == "access" and one["request_id"] == request_id]

    (line,) = eventually(found)
    return line


@pytest.fixture(params=["web", "daphne_web"])
def process(request: pytest.FixtureRequest) -> WebProcess:
    found: WebProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def api(process: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    return Api(http, url=process.url, caller=make_caller())


@pytest.mark.parametrize("page", ["invitations", "unsubscribe"])
def test_secret_links_are_not_logged(process: WebProcess, http: httpx2.Client, page: str) -> None:
    answer = http.get(f"{process.url}/account/{page}/secret/")
    line = line_of(process, answer.headers["x-request-id"])
    assert line["path"] == f"/account/{page}/[redacted]/"


@pytest.mark.parametrize("reason", ["no CSRF token", "another host"])
def test_rejected_secret_links_are_not_logged(process: WebProcess, http: httpx2.Client, reason: str) -> None:
    since = process.written
    headers = {"host": "bad host"} if reason == "another host" else {}
    answer = http.post(f"{process.url}/account/invitations/hush-4b1e/", headers=headers)
    assert answer.status_code in {400, 403}
    line_of(process, answer.headers["x-request-id"])
    assert any("/account/invitations/[redacted]/" in str(line) for line in lines(process, since))
    assert "hush-4b1e" not in process.output(since=since)


def test_a_key_in_a_path_is_not_logged(process: WebProcess, api: Api) -> None:
    answer = api.get(f"/responses/{api.caller.secret}")
    path = line_of(process, answer.headers["x-request-id"])["path"]
    assert path == "/v1/responses/sk-[redacted]"


def test_each_request_has_one_log_line(process: WebProcess, api: Api, script: Script) -> None:
    script.say("Hello")
    answer = api.post("/responses?secret=1", {"model": script.model, "input": "Hi"})
    line = line_of(process, answer.headers["x-request-id"])
    assert line.pop("ms") > 0
    assert line.pop("ts").endswith("Z")
    assert line == {
        "event": "request",
        "level": "info",
        "logger": "access",
        "method": "POST",
        "path": "/v1/responses",
        "status": answer.status_code,
        "code": None,
        "bytes": len(answer.content),
        "request_id": answer.headers["x-request-id"],
        "team": api.caller.team.pk,
        "key": api.caller.key.pk,
        "disconnected": False,
    }
    assert api.caller.secret not in process.output()


def test_requests_without_a_key_are_logged(process: WebProcess, http: httpx2.Client) -> None:
    for path, status in (("/v1/models", 401), ("/v1/nothing", 404), ("/openapi.json", 200), ("/account/login/", 200)):
        answer = http.get(process.url + path)
        line = line_of(process, answer.headers["x-request-id"])
        assert (line["path"], line["status"], line["team"], line["key"]) == (path, status, None, None)


def test_the_key_of_a_rejected_request_is_logged(process: WebProcess, http: httpx2.Client, make_caller: Any) -> None:
    api = Api(http, url=process.url, caller=make_caller(scopes=["files.read"]))
    line = line_of(process, api.get("/models").headers["x-request-id"])
    assert (line["status"], line["key"]) == (403, api.caller.key.pk)


def test_a_stream_is_logged_at_its_end(process: WebProcess, api: Api, script: Script) -> None:
    script.always(stream(*text("Hello")))
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "stream": True})
    line = line_of(process, answer.headers["x-request-id"])
    assert (line["status"], line["bytes"], line["disconnected"]) == (200, len(answer.content), False)
    assert line["team"] == api.caller.team.pk


def test_a_stream_abandoned_by_its_client_is_marked(process: WebProcess, api: Api, script: Script) -> None:
    gate = Gate()
    script.always(stream(*text("Hello")[:1], gate, *text("there")))
    with api.stream(model=script.model, input="Hi", store=False) as live:
        request_id = live.headers["x-request-id"]
        live.next()
    try:
        line = line_of(process, request_id)
    finally:
        gate.open()
    assert (line["status"], line["disconnected"]) == (200, True)


def test_a_websocket_is_logged_at_its_close(process: WebProcess, api: Api) -> None:
    def line() -> list[dict[str, Any]]:
        return [one for one in lines(process) if one.get("key") == api.caller.key.pk]

    with open_socket(process.url, secret=api.caller.secret) as socket:
        socket.send({"type": "nonsense"})
        socket.next()
        assert line() == []
    (closed,) = eventually(line)
    assert (closed["method"], closed["path"], closed["status"]) == ("WEBSOCKET", "/v1/responses", 101)
    assert closed["bytes"] > 0


def test_probes_are_not_logged(process: WebProcess, http: httpx2.Client) -> None:
    probes = [http.get(f"{process.url}{path}") for path in ("/livez", "/readyz", "/metrics")]
    last = http.get(f"{process.url}/version")
    line_of(process, last.headers["x-request-id"])
    seen = {one["request_id"] for one in lines(process) if "request_id" in one}
    assert seen.isdisjoint(one.headers["x-request-id"] for one in probes)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_log_can_be_switched_off(http: httpx2.Client, upstream: Any) -> None:
    with running_web(ACCESS_LOG="0") as process:
        assert http.get(f"{process.url}/version").status_code == 200
        process.stop()
        assert [one for one in lines(process) if one["logger"] == "access"] == []

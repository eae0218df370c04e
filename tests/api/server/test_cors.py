"""CORS: pages of the allowed origins may call the API, including its streams; nothing is allowed by default."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.support.api import Api, MakeCaller
from tests.support.chunks import text
from tests.support.upstream import Script, ScriptedUpstream, stream
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow

ORIGIN = "https://app.example.com"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}
STREAMED = [
    ("/v1/responses", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/responses/resp_1?stream=true", "GET"),
]


@pytest.fixture(scope="module")
def cors_web(upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """A web process that allows one origin, and another with a port."""
    with running_web(CORS_ALLOWED_ORIGINS=f"{ORIGIN}, http://localhost:3000") as process:
        yield process


@pytest.fixture
def api(cors_web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    return Api(http, url=cors_web.url, caller=make_caller())


def cors_headers(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_no_origin_is_allowed_by_default(web: WebProcess, http: httpx2.Client) -> None:
    preflight = http.request("OPTIONS", f"{web.url}/v1/responses", headers=PREFLIGHT)
    assert (preflight.status_code, cors_headers(preflight)) == (401, {})
    assert cors_headers(http.get(f"{web.url}/openapi.json", headers={"Origin": ORIGIN})) == {}


@pytest.mark.parametrize(("path", "method"), [*STREAMED, ("/v1/files", "DELETE"), ("/openapi.json", "GET")])
def test_preflight_requests_are_answered_without_a_key(
    cors_web: WebProcess, http: httpx2.Client, path: str, method: str
) -> None:
    headers = {**PREFLIGHT, "Access-Control-Request-Method": method}
    answer = http.request("OPTIONS", f"{cors_web.url}{path}", headers=headers)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    # "*" does not include Authorization.
    assert {"authorization", "*"} == set(answer.headers["access-control-allow-headers"].split(", "))
    assert "access-control-allow-credentials" not in answer.headers
    assert int(answer.headers["access-control-max-age"]) > 0


def test_json_and_errors_can_be_read_with_their_headers(api: Api) -> None:
    for answer in (
        api.request("GET", "/models", headers={"Origin": ORIGIN}),
        api.request("GET", "/models", headers={"Origin": ORIGIN, "Authorization": "Bearer wrong"}),
        api.request("GET", "/nothing", headers={"Origin": ORIGIN}),
    ):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests", "openai-poll-after-ms"} <= set(exposed)
        assert "access-control-allow-credentials" not in answer.headers
        assert "origin" in answer.headers["vary"]
        assert answer.headers.get_list("content-type") == ["application/json"]


def test_streams_can_be_read(api: Api, script: Script) -> None:
    script.always(stream(*text("Hello")))
    body = {"model": script.model, "input": "Hi", "stream": True}
    answer = api.post("/responses", body, headers={"Origin": "http://localhost:3000"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["https://app.example.com.evil.test", "http://app.example.com", "null"])
def test_other_origins_get_no_headers(cors_web: WebProcess, http: httpx2.Client, origin: str) -> None:
    for method, path in (("OPTIONS", "/v1/responses"), ("GET", "/v1/models"), ("GET", "/openapi.json")):
        answer = http.request(method, f"{cors_web.url}{path}", headers={**PREFLIGHT, "Origin": origin})
        assert cors_headers(answer) == {}


def test_console_pages_allow_no_origin(cors_web: WebProcess, http: httpx2.Client) -> None:
    for path in ("/account/login/", "/livez", "/docs"):
        assert cors_headers(http.get(f"{cors_web.url}{path}", headers={"Origin": ORIGIN})) == {}


@pytest.mark.slow
def test_an_asterisk_allows_every_origin(http: httpx2.Client, upstream: ScriptedUpstream) -> None:
    with running_web(server="uvicorn", CORS_ALLOWED_ORIGINS="*") as process:
        answer = http.get(f"{process.url}/v1/models", headers={"Origin": "https://elsewhere.test"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers

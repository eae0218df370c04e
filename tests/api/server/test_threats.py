"""Attacks of the threat model (docs/concepts/threat-model.md) that no other test covers."""

import hashlib
import hmac
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from django.conf import settings
from openai import InvalidWebhookSignatureError, OpenAI

from core.clock import now
from responses.webhooks import signing
from server.api_urls import ENDPOINTS
from tenants import scope
from tenants.models import ApiKey
from tests.support.api import Api, error, ok
from tests.support.machine_clock import machine_time
from tests.support.prompts import write_prompt
from tests.support.raw_http import RawConnection
from tests.support.upstream import Script
from tests.support.web import WebProcess

TEMPLATES = (
    "{{ 7 * 7 }} {% debug %} {{ settings.SECRET_KEY }} ${7*7} <%= 7*7 %> #{7*7} {0.__class__} %(SECRET_KEY)s "
    "{{ ''.__class__.__mro__[1].__subclasses__() }} {{name}}"
)


@pytest.fixture
def anonymous(web: WebProcess, http: httpx2.Client) -> Api:
    """The API without a key."""
    return Api(http, url=web.url)


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    """A web process with each of the two servers."""
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.mark.parametrize(
    "secret",
    [
        "' OR '1'='1",
        "' OR (SELECT pg_sleep(20)) IS NULL --",
        "sk-'; SELECT pg_sleep(20); --",
        "sk-admin-' UNION SELECT digest FROM tenants_apikey --",
        "sk-%' ESCAPE '\\",
        "sk-%s%(digest)s{0}",
    ],
)
@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_sql_in_a_key_is_an_unknown_key(anonymous: Api, header: str, secret: str) -> None:
    path, value = ("/messages", secret) if header == "x-api-key" else ("/responses", f"Bearer {secret}")
    began = machine_time()
    answer = anonymous.request("POST", path, json={}, headers={header: value})
    assert machine_time() - began < 15
    assert answer.status_code == 401
    assert "SELECT" not in answer.text
    assert "tenants_" not in answer.text


@pytest.mark.slow
def test_no_endpoint_serves_requests_without_a_key(anonymous: Api) -> None:
    for one in ENDPOINTS:
        path = one.template.format(**dict.fromkeys(one.ids, "x"))
        kind = "sk-admin-" if path.startswith("/organization/") else "sk-"
        for headers in ({}, {"Authorization": f"Bearer {kind}unknown"}):
            answer = anonymous.request(one.method, path, json={} if one.method == "POST" else None, headers=headers)
            assert answer.status_code == 401, (one.method, path, answer.text)


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens"])
def test_the_limits_of_a_key_apply_in_either_header(anonymous: Api, make_caller: Any, path: str, header: str) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    if path == "/messages":
        body["max_tokens"] = 16
    for limits in ({"scopes": ["files.read"]}, {"allowed_addresses": ["10.1.2.3"]}):
        secret = make_caller(**limits).secret
        value = secret if header == "x-api-key" else f"Bearer {secret}"
        assert anonymous.request("POST", path, json=body, headers={header: value}).status_code == 403
    denied = make_caller(allowed_models=["other"]).secret
    value = denied if header == "x-api-key" else f"Bearer {denied}"
    assert anonymous.request("POST", path, json=body, headers={header: value}).status_code == 404


def test_keys_of_one_kind_are_not_keys_of_another(
    api: Api, make_admin: Callable[..., Api], web: WebProcess, http: httpx2.Client
) -> None:
    admin = make_admin()
    assert ok(api.get("/responses"))["data"] == []
    assert admin.get("/responses").status_code in (401, 403)
    assert api.get("/organization/projects").status_code in (401, 403)
    for key in (api, admin):
        secret = key.headers["Authorization"]
        answer = http.get(f"{web.url}/admin/", headers={"Authorization": secret, "Cookie": f"sessionid={secret[7:]}"})
        assert answer.status_code == 302


def test_keys_are_looked_up_by_their_hmac(api: Api) -> None:
    secret = api.caller.secret
    digest = hmac.new(settings.API_KEY_PEPPER.encode(), secret.encode(), hashlib.sha256).hexdigest()
    with scope.team(api.caller.team.pk):
        (row,) = ApiKey.objects.filter(digest=digest).values()
    assert row["id"] == api.caller.key.pk
    assert not [name for name, value in row.items() if secret[12:-4] in str(value)]


def test_template_syntax_in_requests_is_plain_text(api: Api, script: Script) -> None:
    script.say(TEMPLATES)
    prompt = write_prompt(api.caller, "Greet {{name}}.")
    response = api.create(
        model=script.model,
        input=TEMPLATES,
        instructions=TEMPLATES,
        prompt={"id": prompt.pk, "variables": {"name": TEMPLATES}},
        metadata={"note": TEMPLATES},
    )
    assert [message["content"] for message in script.messages[0]] == [TEMPLATES, f"Greet {TEMPLATES}.", TEMPLATES]
    assert response["output"][0]["content"][0]["text"] == TEMPLATES
    assert response["metadata"]["note"] == TEMPLATES


@pytest.mark.parametrize(
    "fields", [{"command": "sh", "args": ["-c", "id"]}, {"transport": "stdio"}, {"env": {"A": "b"}}]
)
def test_an_mcp_tool_cannot_name_a_command(api: Api, fields: dict[str, Any]) -> None:
    tool = {"type": "mcp", "server_label": "local", "server_url": "https://example.com/mcp", **fields}
    status, param, code = error(api.post("/responses", {"model": "m", "input": "Hi", "tools": [tool]}))
    assert (status, code) == (400, "unknown_parameter")
    assert param == f"tools[0].{next(iter(fields))}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"headers": {"X-Key": "a\r\nHost: internal"}}, "headers"),
        ({"headers": {"X-Key": "a\nb"}}, "headers"),
        ({"headers": {"X-Key:\r\nHost": "internal"}}, "headers"),
        *(({"headers": {name: "1"}}, "headers") for name in ("Host", "content-length", "Transfer-Encoding", "TE")),
        *(({"headers": {name: "1"}}, "headers") for name in ("Connection", "Upgrade", "Proxy-Authorization")),
        ({"authorization": "a\r\nHost: internal"}, "authorization"),
    ],
)
def test_headers_for_an_mcp_server_cannot_change_the_connection(api: Api, fields: dict[str, Any], param: str) -> None:
    tool = {"type": "mcp", "server_label": "box", "server_url": "https://example.com/mcp", **fields}
    status, named, _ = error(api.post("/responses", {"model": "m", "input": "Hi", "tools": [tool]}))
    assert status == 400
    assert (named or "").startswith(f"tools[0].{param}")


@pytest.mark.parametrize("host", ["{host}/livez?", "{host}/v1/models#", "{host}/livez#@attacker.example", "a b"])
def test_the_host_header_does_not_choose_the_route(server: WebProcess, api: Api, host: str) -> None:
    host = host.format(host=server.url.removeprefix("http://"))
    for path in ("/v1/organization/projects", "/v1/unknown", "/admin/tenants/team/"):
        with RawConnection(server.url) as peer:
            lines = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: {api.headers['Authorization']}"]
            peer.socket.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            assert peer.response().status in (400, 403, 404)


@pytest.mark.parametrize("encoding", ["chunked", "chunked, identity", "xchunked", "\tchunked"])
def test_a_body_with_two_lengths_is_not_read_as_two_requests(server: WebProcess, encoding: str) -> None:
    hidden = "GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    head = "POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    lengths = f"Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: {encoding}\r\n\r\n"
    with RawConnection(server.url) as peer:
        peer.socket.sendall(f"{head}{lengths}0\r\n\r\n{hidden}".encode())
        peer.socket.settimeout(20)
        received = b""
        while piece := peer.socket.recv(65536):
            received += piece
    assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("field", ["team", "team_id", "api_key", "status", "created_at", "id", "usage", "error"])
def test_clients_cannot_set_server_fields(api: Api, field: str) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", field: "x"})) == (400, field, "unknown_parameter")
    assert api.post("/conversations", {field: "x"}).status_code == 400


def test_line_breaks_in_requests_do_not_forge_log_lines(web: WebProcess, api: Api, http: httpx2.Client) -> None:
    since = web.written
    forged = '\n{"event": "forged", "level": "info"}\n'
    assert api.post("/responses", {"model": forged, "input": "Hi"}).status_code == 400
    quoted = "%0A%7B%22event%22%3A%20%22forged%22%7D%0A"
    assert http.get(f"{web.url}/v1/responses/{quoted}", headers=api.headers).status_code in (400, 404)
    assert not [line for line in web.output(since=since).splitlines() if line.startswith('{"event": "forged"')]


def test_shared_caches_may_not_store_answers_for_a_key(api: Api) -> None:
    """A cache may store the answer to a request with Authorization only if the answer allows it (RFC 9111, 3.5)."""
    for path in ("/models", "/responses", "/me"):
        answer = api.get(path)
        directives = {one.strip().partition("=")[0] for one in answer.headers.get("cache-control", "").split(",")}
        assert not directives & {"public", "s-maxage", "must-revalidate"}
        assert "set-cookie" not in answer.headers


def test_an_old_webhook_is_rejected_by_the_sdk() -> None:
    secret, payload = signing.new_secret(), b'{"type": "response.completed"}'
    for age, is_accepted in ((timedelta(), True), (timedelta(minutes=6), False), (timedelta(minutes=-6), False)):
        headers = signing.signed(payload, event_id="evt_1", secrets=[secret], at=now() - age)
        with nullcontext() if is_accepted else pytest.raises(InvalidWebhookSignatureError):
            OpenAI(api_key="-").webhooks.verify_signature(payload, headers, secret=secret)

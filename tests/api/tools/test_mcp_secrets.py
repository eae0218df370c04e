"""Credentials of MCP servers: sent to the right server, never stored, and redacted in errors."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import orjson
import pytest

from responses.models import EventBatch, Response
from tenants import scope
from tenants.models import Connector, ConnectorVisibility
from tests.support.api import Api, error
from tests.support.background import ended
from tests.support.chunks import text
from tests.support.mcp_requests import asking, of, tool, word
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.rows import every_row_with
from tests.support.upstream import Gate, Script, stream
from tests.support.web import WebProcess
from tests.support.webhooks import running_receiver
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.slow

TOKEN = "token-8c1d0f27"


@pytest.fixture(params=["streamable", "legacy"])
def protected(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """A server that requires a bearer token."""
    with mcp_server(legacy=request.param == "legacy", token=TOKEN) as running:
        yield running


@pytest.mark.parametrize(
    "credentials",
    [
        {"authorization": TOKEN},
        {"headers": {"Authorization": f"Bearer {TOKEN}"}},
        {"headers": {"authorization": "Bearer other"}, "authorization": TOKEN},
    ],
)
def test_the_server_receives_the_authorization(
    credentials: dict[str, Any], reaching: Api, script: Script, protected: McpServer
) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = reaching.create(model=script.model, input="1+0?", tools=[tool(protected, **credentials)])
    assert of(response, "mcp_call")[0]["output"] == "1"
    assert {headers["authorization"] for headers in protected.headers} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("status", [302, 307])
def test_credentials_are_not_sent_to_another_origin(reaching: Api, script: Script, status: int) -> None:
    with running_receiver() as asked, running_receiver() as other:
        asked.statuses, asked.headers = [status] * 20, {"location": other.url}
        secrets = {"authorization": TOKEN, "headers": {"X-Key": TOKEN}}
        server = {"type": "mcp", "server_label": "box", "server_url": asked.url, **secrets}
        answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [server]})
        assert error(answer) == (424, "tools", "http_error")
        assert asked.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
        assert other.requests == []


def test_custom_headers_are_sent(reaching: Api, script: Script, served: McpServer) -> None:
    script.say("Hi.")
    reaching.create(model=script.model, input="Hi", tools=[tool(served, headers={"X-Tenant": "acme"})])
    assert {headers["x-tenant"] for headers in served.headers} == {"acme"}


@pytest.mark.parametrize("streamed", [False, True])
def test_secrets_are_neither_stored_nor_logged(
    reaching_web: WebProcess, reaching: Api, script: Script, protected: McpServer, *, streamed: bool
) -> None:
    answer, in_header, in_url = (f"{kind}-{uuid.uuid4().hex}" for kind in "ahu")
    script.call(box__add='{"a":1}').say(answer)
    secrets = {"authorization": TOKEN, "headers": {"X-Key": in_header}, "server_url": f"{protected.url}?key={in_url}"}
    asked = {"model": script.model, "tools": [asking(protected, **secrets)]}
    first = reaching.create(input="1+0?", **asked)
    then = {**asked, "input": [word(first["output"][1], approve=True)], "previous_response_id": first["id"]}
    seen = reaching.events(**then) if streamed else [reaching.create(**then)]
    last = seen[-1]["response"]["id"] if streamed else seen[-1]["id"]
    assert {headers["x-key"] for headers in protected.headers} == {in_header}
    shown = orjson.dumps([first, seen, reaching.retrieve(last), reaching.input_items(last), script.bodies]).decode()
    log = reaching_web.output()
    for secret in (TOKEN, in_header, in_url):
        assert (secret in shown, secret in log) == (False, False)
    assert every_row_with(TOKEN, in_header, in_url) == []
    assert EventBatch._meta.db_table in every_row_with(answer)  # so the search reads compressed data


def test_secrets_of_a_background_response_are_encrypted_until_its_end(
    reaching: Api, script: Script, worker: WorkerProcess
) -> None:
    gate, in_header, in_url = Gate(), *(f"{kind}-{uuid.uuid4().hex}" for kind in "hu")
    script.call(box__add='{"a":1}').then(stream(gate, *text("1")))

    def stored_secrets(response_id: str) -> str:
        with scope.team(reaching.caller.team.pk):
            return Response.objects.get(pk=response_id).secrets

    with mcp_server(token=TOKEN) as running:
        url = f"{running.url}?key={in_url}"
        asked = tool(running, authorization=TOKEN, headers={"X-Key": in_header}, server_url=url)
        created = reaching.create(model=script.model, input="1+0?", tools=[asked], background=True)
        gate.wait_until_reached()
        encrypted = stored_secrets(created["id"])
        assert encrypted
        assert every_row_with(TOKEN, in_header, in_url) == []
        gate.open()
        response = ended(reaching, created["id"])
    assert (response["status"], of(response, "mcp_call")[0]["output"]) == ("completed", "1")
    assert {headers["x-key"] for headers in running.headers} == {in_header}
    assert stored_secrets(created["id"]) == ""
    assert every_row_with(TOKEN, in_header, in_url, encrypted) == []


def test_a_token_repeated_by_the_server_is_redacted(reaching: Api, script: Script, protected: McpServer) -> None:
    script.call(box__tell="{}").say("It told.")
    response = reaching.create(model=script.model, input="Tell.", tools=[tool(protected, authorization=TOKEN)])
    assert of(response, "mcp_call")[0]["output"] == "[redacted]"
    assert TOKEN not in str(script.bodies)


def test_the_url_of_a_failing_server_is_not_logged(reaching_web: WebProcess, reaching: Api, script: Script) -> None:
    with mcp_server() as running:
        gone = tool(running, server_url=f"{running.url}?key={TOKEN}", authorization=TOKEN)
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [gone]})
    assert error(answer) == (424, "tools", "http_error")
    assert TOKEN not in answer.text + reaching_web.output()


# -- connectors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def connector(protected: McpServer, database: None) -> Iterator[Connector]:
    """A connector to the server, with its token. The SDK's types allow only OpenAI's own connector ids."""
    Connector.objects.filter(name="connector_dropbox").delete()
    made = Connector.objects.create(name="connector_dropbox", title="Box", url=protected.url, authorization=TOKEN)
    yield made
    with scope.every_team():
        Connector.objects.filter(pk=made.pk).delete()


def connector_tool(connector: Connector, **fields: Any) -> dict[str, Any]:
    """Return the `mcp` tool that uses the connector."""
    shared = {"type": "mcp", "server_label": "box", "connector_id": connector.name, "require_approval": "never"}
    return {**shared, **fields}


def test_a_connector_provides_url_and_token(reaching: Api, script: Script, connector: Connector) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = reaching.create(model=script.model, input="1+0?", tools=[connector_tool(connector)])
    assert of(response, "mcp_call")[0]["output"] == "1"
    assert (response["tools"][0]["connector_id"], response["tools"][0].get("server_url")) == (connector.name, None)


def test_a_connector_may_use_a_private_address(api: Api, script: Script, connector: Connector) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = api.create(model=script.model, input="1+0?", tools=[connector_tool(connector)])
    assert of(response, "mcp_call")[0]["output"] == "1"
    by_url = {"type": "mcp", "server_label": "box", "server_url": connector.url}
    refused = api.post("/responses", {"model": script.model, "input": "Hi", "tools": [by_url]})
    assert error(refused) == (400, "tools[0].server_url", "url_not_allowed")


def test_a_connector_can_require_approval_whatever_the_request_says(
    reaching: Api, script: Script, connector: Connector, protected: McpServer
) -> None:
    Connector.objects.filter(pk=connector.pk).update(require_approval=True)
    script.call(box__add='{"a":1}')
    response = reaching.create(model=script.model, input="1+0?", tools=[connector_tool(connector)])
    assert [item["name"] for item in of(response, "mcp_approval_request")] == ["add"]
    assert protected.calls == []


@pytest.mark.parametrize(
    ("chosen", "seconds"),
    [(None, 604_800), ({}, 604_800), ({"wait_for_approval": False}, None), ({"approval_wait_seconds": 60}, 60)],
    ids=["nothing", "empty", "off", "shorter"],
)
def test_a_connector_can_let_background_responses_wait_for_approval(
    chosen: dict[str, Any] | None,
    seconds: int | None,
    reaching: Api,
    script: Script,
    connector: Connector,
    no_worker: None,
) -> None:
    Connector.objects.filter(pk=connector.pk).update(wait_for_approval=True)
    body = {"model": script.model, "input": "Hi", "background": True, "tools": [connector_tool(connector)]}
    created = reaching.create(**body, **({} if chosen is None else {"background_options": chosen}))
    with scope.team(reaching.caller.team.pk):
        assert Response.objects.get(pk=created["id"]).options.get("decision_seconds") == seconds


def test_the_token_of_the_request_takes_precedence(reaching: Api, script: Script, connector: Connector) -> None:
    body = {"model": script.model, "input": "Hi", "tools": [connector_tool(connector, authorization="mine")]}
    assert error(reaching.post("/responses", body))[0] == 401


def test_a_connector_with_an_invalid_url_is_reported(reaching: Api, script: Script, connector: Connector) -> None:
    Connector.objects.filter(pk=connector.pk).update(url="https://[broken/")
    body = {"model": script.model, "input": "Hi", "tools": [connector_tool(connector)]}
    assert error(reaching.post("/responses", body)) == (400, "tools[0].connector_id", "url_not_allowed")


def test_another_teams_connector_is_unknown(
    reaching_web: WebProcess, http: httpx2.Client, make_caller: Any, script: Script, connector: Connector
) -> None:
    mine, other = (Api(http, url=reaching_web.url, caller=make_caller()) for _ in range(2))
    with scope.every_team():
        ConnectorVisibility.objects.create(connector=connector, team=mine.caller.team)
    script.say("Hi.")
    body = {"model": script.model, "input": "Hi", "tools": [connector_tool(connector)]}
    assert mine.post("/responses", body).status_code == 200
    refused = other.post("/responses", body)
    assert error(refused) == (400, "tools[0].connector_id", "invalid_value")


def test_a_disabled_connector_is_unknown(reaching: Api, script: Script, connector: Connector) -> None:
    Connector.objects.filter(pk=connector.pk).update(enabled=False)
    body = {"model": script.model, "input": "Hi", "tools": [connector_tool(connector)]}
    assert error(reaching.post("/responses", body)) == (400, "tools[0].connector_id", "invalid_value")

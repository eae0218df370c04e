"""Credentials of MCP servers: which are sent, what a refusal looks like, and that nobody keeps them."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx2
import orjson
import pytest
from django.db import connection

from tenants import scope
from tenants.models import Connector, ConnectorVisibility
from tests.support.api import Api, error
from tests.support.mcp_requests import asking, of, tool, word
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.streams import types
from tests.support.upstream import Script
from tests.support.web import WebProcess

TOKEN = "token-8c1d0f27"


@pytest.fixture(params=["streamable", "legacy"])
def closed(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """A server behind a bearer token."""
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
def test_the_server_gets_the_credentials(
    credentials: dict[str, Any], reaching: Api, script: Script, closed: McpServer
) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = reaching.create(model=script.model, input="1+0?", tools=[tool(closed, **credentials)])
    assert of(response, "mcp_call")[0]["output"] == "1"
    assert {headers["authorization"] for headers in closed.headers} == {f"Bearer {TOKEN}"}


def test_other_headers_are_sent_as_well(reaching: Api, script: Script, served: McpServer) -> None:
    script.say("Hi.")
    reaching.create(model=script.model, input="Hi", tools=[tool(served, headers={"X-Tenant": "acme"})])
    assert {headers["x-tenant"] for headers in served.headers} == {"acme"}


def test_a_refusal_of_the_server_is_one_of_a_json_request(reaching: Api, script: Script, closed: McpServer) -> None:
    body = {"model": script.model, "input": "Hi", "tools": [tool(closed, authorization="wrong")]}
    answer = reaching.post("/responses", body)
    assert error(answer) == (401, "tools", "http_error")
    said = answer.json()["error"]
    assert said["type"] == "external_connector_error"
    message = "Error retrieving tool list from MCP server: 'box'. Http status code: 401 (Unauthorized)"
    assert said["message"] == message
    stored = reaching.get("/responses").json()["data"][0]
    assert (stored["status"], stored["error"]["message"]) == ("failed", message)


def test_in_a_stream_it_is_the_error_of_the_listing(reaching: Api, script: Script, closed: McpServer) -> None:
    script.say("I have no tools.")
    body = {"model": script.model, "input": "Hi", "tools": [tool(closed, authorization="wrong")]}
    events = reaching.events(**body)
    assert types(events)[:5] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.failed",
    ]
    response = events[-1]["response"]
    assert (response["status"], "401" in of(response, "mcp_list_tools")[0]["error"]) == ("completed", True)


def every_row_with(text: str) -> list[str]:
    """The tables that hold a row with this text in some column."""
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT count(*) FROM "{table}" AS one WHERE one::text LIKE %s', [f"%{text}%"])
            if cursor.fetchone()[0]:
                found.append(table)
    return found


@pytest.mark.parametrize("streamed", [False, True])
def test_the_secrets_are_nowhere(
    reaching_web: WebProcess, reaching: Api, script: Script, closed: McpServer, *, streamed: bool
) -> None:
    script.call(box__add='{"a":1}').say("1")
    in_header, in_url = f"h-{uuid.uuid4().hex}", f"u-{uuid.uuid4().hex}"
    secrets = {"authorization": TOKEN, "headers": {"X-Key": in_header}, "server_url": f"{closed.url}?key={in_url}"}
    asked = {"model": script.model, "tools": [asking(closed, **secrets)]}
    first = reaching.create(input="1+0?", **asked)
    then = {**asked, "input": [word(first["output"][1], approve=True)], "previous_response_id": first["id"]}
    seen = reaching.events(**then) if streamed else [reaching.create(**then)]
    last = seen[-1]["response"]["id"] if streamed else seen[-1]["id"]
    assert {headers["x-key"] for headers in closed.headers} == {in_header}
    shown = orjson.dumps([first, seen, reaching.retrieve(last), reaching.input_items(last), script.bodies]).decode()
    log = reaching_web.output()
    for secret in (TOKEN, in_header, in_url):
        assert (secret in shown, secret in log, every_row_with(secret)) == (False, False, [])


def test_a_server_that_repeats_its_token_is_not_quoted(reaching: Api, script: Script, closed: McpServer) -> None:
    script.call(box__tell="{}").say("It told.")
    response = reaching.create(model=script.model, input="Tell.", tools=[tool(closed, authorization=TOKEN)])
    assert of(response, "mcp_call")[0]["output"] == "[redacted]"
    assert TOKEN not in str(script.bodies)


def test_a_broken_server_does_not_bring_its_url_into_the_log(
    reaching_web: WebProcess, reaching: Api, script: Script
) -> None:
    with mcp_server() as running:
        gone = tool(running, server_url=f"{running.url}?key={TOKEN}", authorization=TOKEN)
    script.say("Hi.")
    response = reaching.create(model=script.model, input="Hi", tools=[gone])
    assert TOKEN not in orjson.dumps(response).decode() + reaching_web.output()


# -- connectors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def connector(closed: McpServer, database: None) -> Iterator[Connector]:
    """A connector to the server, with the token. The SDK's types know no other names than OpenAI's."""
    made = Connector.objects.create(name="connector_dropbox", title="Box", url=closed.url, authorization=TOKEN)
    yield made
    with scope.every_team():
        Connector.objects.filter(pk=made.pk).delete()


def by_name(connector: Connector, **fields: Any) -> dict[str, Any]:
    """The connector in a request."""
    shared = {"type": "mcp", "server_label": "box", "connector_id": connector.name, "require_approval": "never"}
    return {**shared, **fields}


def test_a_connector_brings_url_and_token(reaching: Api, script: Script, connector: Connector) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = reaching.create(model=script.model, input="1+0?", tools=[by_name(connector)])
    assert of(response, "mcp_call")[0]["output"] == "1"
    assert (response["tools"][0]["connector_id"], response["tools"][0]["server_url"]) == (connector.name, None)


def test_a_connector_leads_where_callers_cannot_go(api: Api, script: Script, connector: Connector) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = api.create(model=script.model, input="1+0?", tools=[by_name(connector)])
    assert of(response, "mcp_call")[0]["output"] == "1"
    by_url = {"type": "mcp", "server_label": "box", "server_url": connector.url}
    refused = api.post("/responses", {"model": script.model, "input": "Hi", "tools": [by_url]})
    assert error(refused) == (400, "tools[0].server_url", "url_not_allowed")


def test_the_token_of_a_request_comes_before_that_of_the_connector(
    reaching: Api, script: Script, connector: Connector
) -> None:
    body = {"model": script.model, "input": "Hi", "tools": [by_name(connector, authorization="mine")]}
    assert error(reaching.post("/responses", body))[0] == 401


def test_a_connector_with_a_broken_url_is_named(reaching: Api, script: Script, connector: Connector) -> None:
    Connector.objects.filter(pk=connector.pk).update(url="https://[broken/")
    body = {"model": script.model, "input": "Hi", "tools": [by_name(connector)]}
    assert error(reaching.post("/responses", body)) == (400, "tools[0].connector_id", "url_not_allowed")


def test_a_connector_of_other_teams_is_not_there(
    reaching_web: WebProcess, http: httpx2.Client, make_caller: Any, script: Script, connector: Connector
) -> None:
    mine, other = (Api(http, url=reaching_web.url, caller=make_caller()) for _ in range(2))
    with scope.every_team():
        ConnectorVisibility.objects.create(connector=connector, team=mine.caller.team)
    script.say("Hi.")
    body = {"model": script.model, "input": "Hi", "tools": [by_name(connector)]}
    assert mine.post("/responses", body).status_code == 200
    refused = other.post("/responses", body)
    assert error(refused) == (400, "tools[0].connector_id", "invalid_value")


def test_a_connector_that_is_switched_off_is_not_there(reaching: Api, script: Script, connector: Connector) -> None:
    Connector.objects.filter(pk=connector.pk).update(enabled=False)
    body = {"model": script.model, "input": "Hi", "tools": [by_name(connector)]}
    assert error(reaching.post("/responses", body)) == (400, "tools[0].connector_id", "invalid_value")

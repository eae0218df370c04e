"""MCP servers whose tools cannot be listed: the response fails, unless the team continues without them."""

from collections.abc import Iterator
from typing import Any

import pytest

from responses.models import Response
from tenants import scope
from tenants.models import StaffRole, Team
from tests.admin.rows import member, page_url, sign_in, text
from tests.support.api import Api, error
from tests.support.background import ended
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.streams import types
from tests.support.upstream import Script

TOKEN = "token-8c1d0f27"
LISTING = "Error retrieving tool list from MCP server"
DEPENDENCY = "Http status code: 424 (Failed Dependency)."
UNREACHABLE = f"{LISTING}: 'gone'. {DEPENDENCY} The connection to the server failed."
# The older transport's stream is opened with GET, and messages are sent with POST to another path. Its servers answer
# the first attempt, a POST of streamable HTTP, with 405.
PROTECTED = {"streamable": ("GET", "POST"), "stream": ("GET",), "messages": ("/messages/",)}
STREAMED = [
    "response.in_progress",
    "response.output_item.added",
    "response.mcp_list_tools.in_progress",
    "response.mcp_list_tools.failed",
    "response.output_item.done",
    "error",
    "response.failed",
]


@pytest.fixture
def gone() -> dict[str, Any]:
    """The tool of a server that no longer runs."""
    with mcp_server() as running:
        return tool(running, "gone")


@pytest.fixture(params=PROTECTED)
def guarded(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """A server for each transport whose endpoint requires a token; of the older transport, one of its two endpoints."""
    with mcp_server(legacy=request.param != "streamable", token=TOKEN) as running:
        running.protected = PROTECTED[request.param]
        yield running


def continue_without(api: Api) -> None:
    """Set the team of a client to continue without failing servers."""
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(continue_without_mcp_servers=True)


@pytest.mark.slow
@pytest.mark.parametrize(("refusal", "phrase"), [(401, "Unauthorized"), (403, "Forbidden")])
def test_rejected_credentials_are_reported(
    reaching: Api, script: Script, guarded: McpServer, refusal: int, phrase: str
) -> None:
    guarded.refusal = refusal
    body = {"model": script.model, "input": "Hi", "tools": [tool(guarded, authorization="wrong")]}
    answer = reaching.post("/responses", body)
    message = f"{LISTING}: 'box'. Http status code: {refusal} ({phrase})"
    assert error(answer) == (refusal, "tools", "http_error")
    assert answer.json()["error"] == {
        "message": message,
        "type": "external_connector_error",
        "param": "tools",
        "code": "http_error",
    }
    stored = reaching.get("/responses").json()["data"][0]
    assert (stored["status"], stored["error"]["message"]) == ("failed", message)
    assert [item["error"] for item in of(reaching.retrieve(stored["id"]), "mcp_list_tools")] == [message]


def test_tools_are_listed_with_a_valid_token(reaching: Api, script: Script, guarded: McpServer) -> None:
    script.call(box__add='{"a":1}').say("1")
    response = reaching.create(model=script.model, input="1+0?", tools=[tool(guarded, authorization=TOKEN)])
    assert of(response, "mcp_call")[0]["output"] == "1"


def test_an_unreachable_server_fails_the_request(
    reaching: Api, script: Script, served: McpServer, gone: dict[str, Any]
) -> None:
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [tool(served), gone]})
    assert error(answer) == (424, "tools", "http_error")
    assert answer.json()["error"]["type"] == "external_connector_error"
    assert answer.json()["error"]["message"] == UNREACHABLE
    assert script.bodies == []


def test_operators_see_the_address_of_an_unreachable_server(
    reaching: Api, script: Script, gone: dict[str, Any]
) -> None:
    reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [gone]})
    with scope.team(reaching.caller.team.pk):
        url = page_url(Response.objects.get())
    page = text(sign_in(staff=StaffRole.OPERATOR).get(url))
    assert (f"MCP server &#x27;{gone['server_label']}&#x27; failed" in page, gone["server_url"] in page) == (True, True)
    assert gone["server_url"] not in text(member(reaching.caller.team).get(url))


@pytest.mark.slow
def test_the_error_states_the_status_of_the_server(reaching: Api, script: Script, guarded: McpServer) -> None:
    guarded.refusal = 500
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [tool(guarded)]})
    assert error(answer) == (424, "tools", "http_error")
    expected = f"{LISTING}: 'box'. {DEPENDENCY} Http status code: 500 (Internal Server Error)"
    assert answer.json()["error"]["message"] == expected


def test_a_failed_listing_ends_the_stream(reaching: Api, script: Script, gone: dict[str, Any]) -> None:
    events = reaching.events(model=script.model, input="Hi", tools=[gone])
    assert types(events) == ["response.created", *STREAMED]
    failure = events[-2]["error"]
    assert (failure["type"], failure["code"], failure["param"]) == ("external_connector_error", "http_error", "tools")
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": UNREACHABLE}


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_failed_listing_fails_a_background_run(reaching: Api, script: Script, gone: dict[str, Any]) -> None:
    queued = reaching.create(model=script.model, input="Hi", tools=[gone], background=True)
    done = ended(reaching, queued["id"])
    assert (done["status"], done["error"]["message"]) == ("failed", UNREACHABLE)
    with reaching.follow(queued["id"]) as live:
        assert types(live.rest()) == ["response.created", "response.queued", *STREAMED]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("background", [False, True])
def test_a_team_may_continue_without_the_server(
    reaching: Api, script: Script, served: McpServer, gone: dict[str, Any], *, background: bool
) -> None:
    continue_without(reaching)
    if background:
        script.say("I have no tools.")
        made = reaching.create(model=script.model, input="Hi", tools=[gone], background=True)
        response = ended(reaching, made["id"])
    else:
        script.call(box__add='{"a":1}').say("1")
        response = reaching.create(model=script.model, input="1+0?", tools=[gone, tool(served)])
        assert of(response, "mcp_call")[0]["output"] == "1"
    listing = of(response, "mcp_list_tools")[0]
    assert (response["status"], listing["tools"], listing["error"]) == ("completed", [], UNREACHABLE)


def test_the_setting_of_another_team_changes_nothing(
    reaching: Api, outsider: Api, script: Script, gone: dict[str, Any]
) -> None:
    continue_without(outsider)
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [gone]})
    assert error(answer) == (424, "tools", "http_error")


def test_the_failed_listing_of_another_team_is_not_found(
    reaching: Api, outsider: Api, script: Script, gone: dict[str, Any]
) -> None:
    reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [gone]})
    failed = reaching.get("/responses").json()["data"][0]["id"]
    assert error(outsider.get(f"/responses/{failed}")) == (404, None, None)

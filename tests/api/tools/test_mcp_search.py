"""MCP servers with deferred tools: listed immediately, offered once a search has found them."""

from typing import Any

import orjson
import pytest

from tests.support.api import Api, error
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.upstream import Script

SEARCH = {"type": "tool_search"}
ADDING = '{"a":2,"b":3}'


def query(words: str) -> str:
    return orjson.dumps({"query": words}).decode()


def deferred_tools(running: McpServer, **fields: Any) -> list[dict[str, Any]]:
    """A tool search and the server whose tools it finds."""
    return [SEARCH, tool(running, defer_loading=True, **fields)]


def offered(script: Script, number: int) -> list[str]:
    """Return the names of the functions the upstream was offered in a turn."""
    return [one["function"]["name"] for one in script.bodies[number].get("tools", [])]


@pytest.mark.parametrize("streamed", [False, True])
def test_deferred_tools_are_offered_once_found(
    reaching: Api, script: Script, served: McpServer, *, streamed: bool
) -> None:
    script.call(tool_search=query("add numbers")).call(box__add=ADDING).say("It is 5.")
    body = {"model": script.model, "input": "2+3?", "tools": deferred_tools(served)}
    response = reaching.events(**body)[-1]["response"] if streamed else reaching.create(**body)
    kinds = ["mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"]
    assert [item["type"] for item in response["output"]] == kinds
    assert [offered(script, turn) for turn in range(3)] == [["tool_search"], *[["box__add", "tool_search"]] * 2]
    assert (of(response, "mcp_call")[0]["output"], served.lists) == ("5", 1)


def test_the_search_output_is_the_server_with_the_found_tools(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(tool_search=query("add fail")).say("Found.")
    secrets = {"authorization": "secret-token", "server_url": f"{served.url}?key=secret"}
    response = reaching.create(model=script.model, input="Hi", tools=deferred_tools(served, **secrets))
    (found,) = of(response, "tool_search_output")[0]["tools"]
    assert sorted(found["allowed_tools"]) == ["add", "fail"]
    assert {**found, "allowed_tools": None} == response["tools"][1]
    assert (found["defer_loading"], "secret" in str(response["output"])) == (True, False)
    read = orjson.loads(script.messages[1][-1]["content"])["loaded"][0]["functions"]
    assert sorted(read) == ["box__add", "box__fail"]


@pytest.mark.parametrize("chained", [True, False])
def test_found_tools_stay_loaded_in_later_responses(
    reaching: Api, script: Script, served: McpServer, *, chained: bool
) -> None:
    script.call(tool_search=query("add")).say("Found.").call(box__add=ADDING).say("5")
    first = reaching.create(model=script.model, input="Hi", tools=deferred_tools(served))
    history = [] if chained else first["output"]
    before = {"previous_response_id": first["id"]} if chained else {"store": False}
    again = [*history, {"role": "user", "content": "2+3?"}]
    second = reaching.create(model=script.model, input=again, tools=deferred_tools(served), **before)
    assert offered(script, 2) == ["box__add", "tool_search"]
    assert (of(second, "mcp_call")[0]["output"], served.lists) == ("5", 1)


def test_a_deferred_tool_that_was_not_found_is_not_called(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__note="{}").say("Oh.")
    response = reaching.create(model=script.model, input="Hi", tools=deferred_tools(served))
    assert (of(response, "mcp_call"), served.calls) == ([], [])
    assert script.messages[1][-1]["content"] == "error: there is no tool named 'box__note'"


def test_a_tool_outside_allowed_tools_is_not_called(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__note="{}").say("Oh.")
    allowed = [{"type": "mcp", "server_label": "box", "name": "add"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    reaching.create(model=script.model, input="Hi", tools=[tool(served)], tool_choice=choice)
    assert served.calls == []


def test_a_forced_tool_is_offered_without_a_search(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add=ADDING).say("5")
    choice = {"type": "mcp", "server_label": "box", "name": "add"}
    response = reaching.create(model=script.model, input="2+3?", tools=deferred_tools(served), tool_choice=choice)
    assert of(response, "mcp_call")[0]["output"] == "5"
    assert [offered(script, turn) for turn in range(2)] == [["box__add", "tool_search"], ["tool_search"]]


def test_the_search_description_names_the_server_and_not_its_tools(reaching: Api, script: Script) -> None:
    with mcp_server(paged=True) as running:
        described = deferred_tools(running, server_description="Two hundred tools")
        reaching.create(model=script.say("Hi.").model, input="Hi", tools=described)
    (search,) = script.bodies[0]["tools"]
    assert search["function"]["description"].endswith("Available:\n- box: Two hundred tools")


def test_deferred_and_immediate_servers_can_be_combined(reaching: Api, script: Script, served: McpServer) -> None:
    tools = [*deferred_tools(served, allowed_tools=["add", "note"]), tool(served, "open", allowed_tools=["add"])]
    script.call(tool_search=query("add")).say("Found.")
    reaching.create(model=script.model, input="Hi", tools=tools)
    assert [set(offered(script, turn)) for turn in range(2)] == [
        {"open__add", "tool_search"},
        {"open__add", "tool_search", "box__add"},
    ]


def test_a_client_side_search_can_load_mcp_tools(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(tool_search='{"query":"sums"}').call(box__add=ADDING).say("5")
    server = tool(served, defer_loading=True)
    tools = [{**SEARCH, "execution": "client"}, server]
    first = reaching.create(model=script.model, input="2+3?", tools=tools)
    call_id = of(first, "tool_search_call")[0]["call_id"]
    found = {"type": "tool_search_output", "call_id": call_id, "execution": "client", "status": "completed"}
    answer = {**found, "tools": [{**server, "allowed_tools": ["add"]}]}
    second = reaching.create(model=script.model, input=[answer], tools=tools, previous_response_id=first["id"])
    assert offered(script, 1) == ["tool_search", "box__add"]
    assert of(second, "mcp_call")[0]["output"] == "5"


def test_secrets_in_a_client_side_search_result_are_not_stored(reaching: Api, script: Script) -> None:
    secrets = {
        "headers": {"X-Key": "secret"},
        "authorization": "secret",
        "server_url": "https://box.test/secret?a=secret",
    }
    server = {"type": "mcp", "server_label": "box", **secrets}
    called = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [server]}
    response = reaching.create(model=script.say("Hi.").model, input=[called, found])
    kept = reaching.input_items(response["id"])
    assert "https://box.test" in str(kept)
    assert "secret" not in str(kept)


def test_additional_tools_cannot_contain_mcp_servers(reaching: Api, script: Script, served: McpServer) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [tool(served)]}
    answer = reaching.post("/responses", {"model": script.model, "input": [{"role": "user", "content": "Hi"}, added]})
    assert error(answer) == (400, "input[1].tools[0].type", "unsupported_value")

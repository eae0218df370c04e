"""MCP servers that return data which cannot be stored or is too large, and tools with ambiguous names."""

from typing import Any

import mcp_types as types
import pytest

from tests.support.api import Api, error
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.upstream import Script
from tools.mcp.sessions import MAX_LIST_BYTES

FUNCTION = {"type": "function", "name": "box__add", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "box", "description": "", "tools": [{**FUNCTION, "name": "add"}]}
NEITHER = {"type": "function", "name": "box_add", "parameters": {"type": "object"}}


def redefine_add(served: McpServer, **fields: Any) -> None:
    served.tools[:] = [types.Tool(name="add", input_schema={"type": "object"}).model_copy(update=fields)]


def test_nul_is_removed_from_a_tool_list(reaching: Api, script: Script, served: McpServer) -> None:
    redefine_add(served, description="a\x00b", input_schema={"type": "object", "\x00x": "\x00"})
    response = reaching.create(model=script.say("Hi").model, input="Hi", tools=[tool(served)])
    listed = of(response, "mcp_list_tools")[0]["tools"][0]
    assert (listed["description"], listed["input_schema"]) == ("ab", {"type": "object", "x": ""})


def test_nul_is_removed_from_an_output(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__echo='{"text":"a\\u0000b"}').say("Hi")
    served.tools[:] = [types.Tool(name="echo", input_schema={"type": "object"})]
    response = reaching.create(model=script.model, input="Hi", tools=[tool(served)])
    assert of(response, "mcp_call")[0]["output"] == "ab"


@pytest.mark.parametrize("options", [{}, {"legacy": True}, {"documents": True}], ids=["events", "legacy", "documents"])
@pytest.mark.parametrize(
    ("written", "read"),
    [(rb"\ud83d", "\ufffd"), (b"\xff" * 6, "\ufffd" * 6), (b"\x1f" * 6, "\x1f" * 6)],
    ids=["half of a surrogate pair", "no UTF-8", "control characters"],
)
def test_invalid_json_in_an_output_is_tolerated(
    reaching: Api, script: Script, options: dict[str, Any], written: bytes, read: str
) -> None:
    script.call(box__echo='{"text":"<HALFOF>"}').say("Hi")
    with mcp_server(**options) as server:
        server.tools[:] = [types.Tool(name="echo", input_schema={"type": "object"})]
        server.replaced = {b"HALFOF": written}
        response = reaching.create(model=script.model, input="Hi", tools=[tool(server)])
    assert of(response, "mcp_call")[0]["output"] == f"<{read}>"


def test_a_tool_list_that_is_too_large_is_an_error(reaching: Api, script: Script, served: McpServer) -> None:
    redefine_add(served, description="x" * MAX_LIST_BYTES)
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [tool(served)]})
    assert error(answer) == (424, "tools", "http_error")
    assert answer.json()["error"]["message"].endswith("The tool list is too large.")


@pytest.mark.parametrize("other", [FUNCTION, NAMESPACE])
def test_a_client_tool_named_like_an_mcp_tool_is_refused(
    reaching: Api, served: McpServer, other: dict[str, Any]
) -> None:
    answer = reaching.post("/responses", {"model": "m", "input": "Hi", "tools": [tool(served), other]})
    where = "tools[1].tools[0].name" if other is NAMESPACE else "tools[1].name"
    assert error(answer) == (400, where, "invalid_value")


def test_a_label_that_looks_like_another_servers_tool_is_refused(reaching: Api, served: McpServer) -> None:
    servers = [tool(served), tool(served, label="box__add")]
    answer = reaching.post("/responses", {"model": "m", "input": "Hi", "tools": servers})
    assert error(answer) == (400, "tools[1].server_label", "invalid_value")


def test_a_client_tool_with_a_similar_prefix_is_accepted(reaching: Api, script: Script, served: McpServer) -> None:
    response = reaching.create(model=script.say("Hi").model, input="Hi", tools=[tool(served), NEITHER])
    assert response["status"] == "completed"

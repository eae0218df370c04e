"""Questions of MCP servers in responses that cannot wait for a person."""

from tests.support.api import Api
from tests.support.mcp_requests import of, tool
from tests.support.mcp_servers import McpServer, form
from tests.support.upstream import Script


def test_a_question_fails_the_call_of_a_foreground_response(reaching: Api, script: Script, served: McpServer) -> None:
    served.ask({"color": form("Which color?", color={"type": "string"})})
    script.call(box__order="{}").say("I cannot ask you.")
    response = reaching.create(model=script.model, input="Go.", tools=[tool(served)])
    (call,) = of(response, "mcp_call")
    message = "The tool asked for input: Which color?\nOnly a background response can wait for a person's answer."
    error = {"type": "mcp_protocol_error", "code": -32000, "message": message}
    assert (response["status"], call["status"], call["error"]) == ("completed", "failed", error)
    assert script.messages[1][-1]["content"] == f"error: {message}"
    assert served.names() == ["order"]


def test_a_server_that_cannot_ask_in_the_foreground_fails_the_call(
    reaching: Api, script: Script, served: McpServer
) -> None:
    served.ask({"color": form("Which color?", color={"type": "string"})})
    served.checks_capabilities = True
    script.call(box__order="{}").say("I cannot ask you.")
    response = reaching.create(model=script.model, input="Go.", tools=[tool(served)])
    (call,) = of(response, "mcp_call")
    message = "The client answers no questions.\nOnly a background response can wait for a person's answer."
    assert call["error"] == {"type": "mcp_protocol_error", "code": -32021, "message": message}

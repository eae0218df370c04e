"""JSON nested 100,000 levels deep, in every place that reads foreign JSON: a documented error, and no traceback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from core.http.endpoints import Endpoint
from server.api_urls import ENDPOINTS
from tests.support.aiohttp_server import serving
from tests.support.api import Api, Caller, error
from tests.support.background import ended as run_ended
from tests.support.batches import URL, asked, ended, line, uploaded
from tests.support.mcp_requests import Body, of
from tests.support.mcp_servers import McpServer
from tests.support.path_ids import sample_ids
from tests.support.upstream import Script
from tests.support.vector_stores import upload
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

pytestmark = pytest.mark.slow

DEPTH = 100_000
LISTS = b"[" * DEPTH + b"]" * DEPTH
OBJECTS = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
DEEP: dict[str, bytes] = {
    "lists": LISTS,
    "objects": OBJECTS,
    "a field": b'{"model":"m","input":%b}' % LISTS,
    "a tool": b'{"model":"m","input":"Hi","tools":[{"type":"function","name":"f","parameters":%b}]}' % OBJECTS,
}
ARGUMENTS = f'{{"a":{LISTS.decode()}}}'
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
POSTS = [endpoint for endpoint in ENDPOINTS if endpoint.method == "POST"]


@pytest.fixture(params=["web", "daphne_web"])
def server(request: pytest.FixtureRequest) -> WebProcess:
    process: WebProcess = request.getfixturevalue(request.param)
    return process


@pytest.fixture(autouse=True)
def no_traceback(web: WebProcess) -> Iterator[None]:
    """Fail a test in which the web process logs a traceback."""
    written = web.written
    yield
    assert "Traceback" not in web.output(since=written)


@pytest.mark.parametrize("one", POSTS, ids=[one.path for one in POSTS])
def test_a_nested_body_is_refused_by_every_endpoint(api: Api, admin_api: Api, one: Endpoint) -> None:
    client = admin_api if one.path.startswith("organization/") else api
    path = one.template.format(**sample_ids(one))
    for body in DEEP.values():
        answer = client.post(path, body)
        if path.startswith("/messages"):
            # The envelope of Anthropic's API.
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
            continue
        status, param, code = error(answer)
        if one.body is None and one.form is None:
            # More than any endpoint without a body accepts.
            assert (status, param, code) == (413, None, "request_too_large")
        elif one.form is None:
            assert (status, param, code) == (400, None, "invalid_json"), path
        else:
            # The body must be a form, or the object in the path is looked up first.
            assert status in {400, 404}, path


@pytest.mark.parametrize("kind", DEEP)
def test_a_nested_websocket_message_is_refused(server: WebProcess, caller: Caller, kind: str) -> None:
    written = server.written
    with open_socket(server.url, secret=caller.secret) as socket:
        for _ in range(2):
            refused = socket.refuse(DEEP[kind].decode())
            assert (refused["status"], refused["error"]["code"]) == (400, "invalid_json")
    assert "Traceback" not in server.output(since=written)


def test_nested_function_arguments_are_stored_unchanged(api: Api, script: Script) -> None:
    script.call(look=ARGUMENTS).say("Thanks")
    first = api.create(model=script.model, input="Hi", tools=[FUNCTION])
    assert first["output"][0]["arguments"] == ARGUMENTS
    # The client's output is a text as well.
    output = {"type": "function_call_output", "call_id": "call_look", "output": LISTS.decode()}
    second = api.create(model=script.model, previous_response_id=first["id"], input=[output], tools=[FUNCTION])
    assert second["status"] == "completed"
    *_, called, answered = script.messages[1]
    # Parsers have different limits of depth, so that the upstream gets the arguments as a text.
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"unreadable_arguments": ARGUMENTS}
    assert answered["content"] == LISTS.decode()
    assert api.input_items(second["id"])[-1]["output"] == LISTS.decode()


def test_nested_arguments_of_an_mcp_tool_fail_the_call(
    reaching: Api, reaching_web: WebProcess, script: Script, served: McpServer
) -> None:
    written = reaching_web.written
    script.call(box__add=ARGUMENTS).say("I cannot.")
    tool = {"type": "mcp", "server_label": "box", "server_url": served.url, "require_approval": "never"}
    response = reaching.create(model=script.model, input="1+1?", tools=[tool])
    (call,) = of(response, "mcp_call")
    assert (call["status"], call["output"]) == ("failed", None)
    assert call["error"]
    assert (response["status"], served.calls) == ("completed", [])
    assert "Traceback" not in reaching_web.output(since=written)


@contextmanager
def raw_mcp_server(deep: str) -> Iterator[str]:
    """Run an MCP server whose results of one method, `tools/list` or `tools/call`, are nested; yield its URL."""

    async def answer(request: web.Request) -> web.Response:
        asked = orjson.loads(await request.read())
        method = asked.get("method")
        if "id" not in asked:
            return web.Response(status=202)
        head = b'{"jsonrpc":"2.0","id":%b,' % orjson.dumps(asked["id"])
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": asked.get("params", {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "box", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": []},
        }
        if method not in results:
            failure = orjson.dumps({"code": -32601, "message": "Method not found"})
            return web.Response(body=head + b'"error":%b}' % failure, content_type="application/json")
        result = orjson.dumps(results[method])
        if method == deep:
            result = result[:-1] + b',"_meta":{"a":%b}}' % OBJECTS
        return web.Response(body=head + b'"result":%b}' % result, content_type="application/json")

    async def no_stream(_: web.Request) -> web.Response:
        return web.Response(status=405)

    app = web.Application()
    app.router.add_post("/v1/mcp", answer)
    app.router.add_get("/v1/mcp", no_stream)
    app.router.add_delete("/v1/mcp", no_stream)
    with serving(app) as url:
        yield f"{url}/mcp"


def mcp_tool(url: str) -> Body:
    """Return the tool of a server."""
    return {"type": "mcp", "server_label": "box", "server_url": url, "require_approval": "never"}


def test_a_nested_list_of_mcp_tools_is_refused(reaching: Api, reaching_web: WebProcess, script: Script) -> None:
    written = reaching_web.written
    with raw_mcp_server("tools/list") as url:
        answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [mcp_tool(url)]})
    assert error(answer) == (424, "tools", "http_error")
    assert "Traceback" not in reaching_web.output(since=written)


def test_a_nested_result_of_an_mcp_tool_fails_the_call(reaching: Api, reaching_web: WebProcess, script: Script) -> None:
    written = reaching_web.written
    script.call(box__add="{}").say("I cannot.")
    with raw_mcp_server("tools/call") as url:
        response = reaching.create(model=script.model, input="1+1?", tools=[mcp_tool(url)])
    (call,) = of(response, "mcp_call")
    assert (response["status"], call["status"], call["output"]) == ("completed", "failed", None)
    assert len(orjson.dumps(call["error"])) < 1000
    assert "Traceback" not in reaching_web.output(since=written)


@pytest.mark.usefixtures("worker")
def test_a_nested_line_fails_the_batch(api: Api, script: Script) -> None:
    deep = b'{"custom_id":"b","method":"POST","url":"%b","body":%b}' % (URL.encode(), OBJECTS)
    batch = ended(api, asked(api, line("a", model=script.model, input="Hi"), deep)["id"])
    assert batch["status"] == "failed"
    assert [(one["line"], one["code"]) for one in batch["errors"]["data"]] == [(2, "invalid_json_line")]


@pytest.mark.parametrize("purpose", ["batch", "fine-tune", "user_data"])
def test_an_uploaded_file_with_nested_json_is_stored_unchanged(api: Api, purpose: str) -> None:
    file_id = uploaded(api, LISTS, OBJECTS, purpose=purpose)
    assert api.get(f"/files/{file_id}/content").content == LISTS + b"\n" + OBJECTS + b"\n"


def test_an_uploaded_file_with_nested_json_is_text_for_the_model(api: Api, script: Script) -> None:
    file_id = upload(api, "deep.json", LISTS)
    content = [{"type": "input_file", "file_id": file_id}, {"type": "input_text", "text": "What is this?"}]
    response = api.create(model=script.say("A list.").model, input=[{"role": "user", "content": content}])
    assert response["status"] == "completed"
    assert "[" * DEPTH in orjson.dumps(script.messages[0]).decode()


@pytest.mark.usefixtures("worker")
def test_a_background_run_survives_nested_arguments(api: Api, script: Script) -> None:
    script.call(look=ARGUMENTS)
    started = api.create(model=script.model, input="Hi", tools=[FUNCTION], background=True)
    assert run_ended(api, started["id"])["output"][0]["arguments"] == ARGUMENTS

"""MCP servers: listing, offering and calling their tools, with the resulting items and events."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from responses.models import Response
from tenants import scope
from tests.support.api import Api, error, ok
from tests.support.mcp_requests import calling, of, tool
from tests.support.mcp_servers import LONG_TEXT, McpServer, mcp_server
from tests.support.responses_upstream import answer, call_events, message_events
from tests.support.streams import types
from tests.support.upstream import Script
from tests.support.waiting import eventually
from tests.support.webhooks import running_receiver

Respond = Callable[..., dict[str, Any]]


@pytest.fixture(params=["streamable", "legacy"])
def either(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """A server, once with each of the two transports."""
    with mcp_server(legacy=request.param == "legacy") as running:
        yield running


@pytest.mark.slow
def test_tools_are_listed_and_called(reaching: Api, script: Script, either: McpServer) -> None:
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    response = reaching.create(model=script.model, input="2+3?", tools=[tool(either)])
    listing, call, message = response["output"]
    assert [entry["name"] for entry in listing["tools"]][:2] == ["add", "note"]
    assert (listing["type"], listing["server_label"], "error" in listing) == ("mcp_list_tools", "box", False)
    assert listing["tools"][0]["annotations"]["readOnlyHint"] is True
    expected = {"type": "mcp_call", "status": "completed", "server_label": "box", "name": "add"}
    outcome = {"arguments": '{"a":2,"b":3}', "output": "5", "error": None, "approval_request_id": None}
    assert {key: value for key, value in call.items() if key != "id"} == {**expected, **outcome}
    assert message["content"][0]["text"] == "It is 5."
    assert (either.lists, either.calls) == (1, [("add", {"a": 2, "b": 3})])


def test_mcp_events_are_streamed_in_order(reaching: Api, script: Script, either: McpServer) -> None:
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    events = reaching.events(model=script.model, input="2+3?", tools=[tool(either)])
    names = [kind.removeprefix("response.") for kind in types(events)]
    assert names[2:6] == [
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
    ]
    assert names[6:12] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert events[6]["item"]["arguments"] == ""
    assert (events[8]["delta"], events[9]["arguments"]) == ('{"a":2,"b":3}', '{"a":2,"b":3}')


def test_the_model_is_offered_the_tools_and_reads_their_outputs(
    reaching: Api, script: Script, served: McpServer
) -> None:
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    reaching.create(model=script.model, input="2+3?", tools=[tool(served, server_description="Sums.")])
    offered = script.bodies[0]["tools"][0]["function"]
    assert (offered["name"], offered["description"]) == ("box__add", "Sums.\nAdd two numbers.")
    assert offered["parameters"]["required"] == ["a"]
    call, output = script.messages[1][-2:]
    assert call["tool_calls"][0]["function"] == {"name": "box__add", "arguments": '{"a":2,"b":3}'}
    assert (output["role"], output["content"]) == ("tool", "5")
    assert output["tool_call_id"] == call["tool_calls"][0]["id"]


def test_five_dependent_calls_run_in_order_with_one_listing(
    respond: Respond, script: Script, served: McpServer
) -> None:
    for number in range(5):
        script.call(box__add=f'{{"a":{number},"b":1}}')
    script.say("5")
    response = respond(model=script.model, input="Count to five.", tools=[tool(served)])
    assert [call["output"] for call in of(response, "mcp_call")] == ["1", "2", "3", "4", "5"]
    # The model has used the same call id in each turn.
    assert len({call["id"] for call in of(response, "mcp_call")}) == len(response["output"]) - 2
    assert (len(of(response, "mcp_list_tools")), served.lists) == (1, 1)
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (6 * 7, 6 * 3)


def test_a_responses_upstream_is_offered_the_same_tools(
    reaching: Api, responses_api_script: Script, served: McpServer
) -> None:
    responses_api_script.then(answer(call_events("box__add", '{"a":2,"b":3}')), answer(message_events("It is 5.")))
    response = reaching.create(model=responses_api_script.model, input="2+3?", tools=[tool(served)])
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    call, read = responses_api_script.bodies[1]["input"][-2:]
    assert (call["type"], call["name"], read["output"]) == ("function_call", "box__add", "5")


def test_parallel_calls_run_concurrently(respond: Respond, script: Script, served: McpServer) -> None:
    script.then(calling(("box__meet", "{}"), ("box__meet", "{}"))).say("Met.")
    response = respond(model=script.model, input="Meet.", tools=[tool(served)])
    assert [call["status"] for call in of(response, "mcp_call")] == ["completed", "completed"]


def test_a_listing_in_the_context_is_reused(reaching: Api, script: Script, served: McpServer) -> None:
    script.say("Hello.").call(box__add='{"a":1}').say("1")
    first = reaching.create(model=script.model, input="Hi", tools=[tool(served)])
    second = reaching.create(model=script.model, input="1+0?", tools=[tool(served)], previous_response_id=first["id"])
    assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]
    assert served.lists == 1


def test_output_items_can_be_sent_back_as_input(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add='{"a":1}').say("1").say("Still 1.")
    first = reaching.create(model=script.model, input="1+0?", tools=[tool(served)])
    history = [{"role": "user", "content": "1+0?"}, *first["output"], {"role": "user", "content": "Sure?"}]
    second = reaching.create(model=script.model, input=history, tools=[tool(served)], store=False)
    assert of(second, "mcp_list_tools") == []
    assert [message["role"] for message in script.messages[2]] == ["user", "assistant", "tool", "assistant", "user"]


def test_only_allowed_tools_are_listed(respond: Respond, script: Script, served: McpServer) -> None:
    script.say("1").say("2")
    by_name = respond(model=script.model, input="Hi", tools=[tool(served, allowed_tools=["add"])])
    reading = tool(served, allowed_tools={"read_only": False})
    writing = respond(model=script.model, input="Hi", tools=[reading])
    listed = [[entry["name"] for entry in of(one, "mcp_list_tools")[0]["tools"]] for one in (by_name, writing)]
    assert listed == [["add"], ["note", "die"]]
    assert [one["function"]["name"] for one in script.bodies[0]["tools"]] == ["box__add"]


@pytest.mark.slow
def test_two_hundred_tools_are_listed_page_by_page(respond: Respond, script: Script) -> None:
    script.call(box__tool_150="{}").say("Done.")
    with mcp_server(paged=True) as running:
        response = respond(model=script.model, input="Hi", tools=[tool(running)])
    assert len(of(response, "mcp_list_tools")[0]["tools"]) == 209
    assert len(script.bodies[0]["tools"]) == 209
    assert of(response, "mcp_call")[0]["output"] == "tool_150 is done"


def test_a_long_output_is_truncated_and_an_image_reaches_the_model(
    respond: Respond, script: Script, served: McpServer
) -> None:
    script.call(box__picture="{}").say("Nice.")
    response = respond(model=script.model, input="Show me.", tools=[tool(served)])
    output = of(response, "mcp_call")[0]["output"]
    assert output.startswith("[image: image/png, 32 bytes]\n0123456789")
    assert "[Truncated: the output has 5000029 characters; the first 100000 are shown.]" in output
    assert len(output) < len(LONG_TEXT) / 40
    shown = script.messages[1][-1]
    assert shown["content"][0]["text"].startswith("Images of the output of 'box__picture' (call ")
    assert (shown["role"], shown["content"][1]["type"]) == ("user", "image_url")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fail", {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "It is broken."}]}),
        ("refuse", {"type": "mcp_protocol_error", "code": -32602, "message": "These arguments are wrong."}),
        ("die", {"type": "http_error", "code": 502, "message": "The connection to the server failed."}),
    ],
)
def test_the_model_reads_the_error_of_a_failed_call(
    name: str, expected: dict[str, Any], respond: Respond, script: Script, either: McpServer
) -> None:
    script.call(**{f"box__{name}": "{}"}).say("It failed.")
    call = of(respond(model=script.model, input="Go.", tools=[tool(either)]), "mcp_call")[0]
    assert (call["status"], call["output"], call["error"]) == ("failed", None, expected)
    text = expected.get("message") or expected["content"][0]["text"]
    assert script.messages[1][-1]["content"] == f"error: {text}"


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ([{"type": "text", "text": "Error executing tool add: no"}], "Error executing tool add: no"),
        ([{"type": "text", "text": "error: no"}], "error: no"),
        ([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}], "error: One.\nTwo."),
        ("No.", "error: No."),
        ({"code": 1}, 'error: {"code":1}'),
    ],
)
def test_a_sent_back_error_is_marked_once(api: Api, script: Script, content: Any, read: str) -> None:
    error = {"type": "mcp_tool_execution_error", "content": content}
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": "box", "name": "add", "arguments": "{}", "error": error}
    script.say("Oh.")
    api.create(model=script.model, input=[call, {"role": "user", "content": "Well?"}])
    assert script.messages[0][1]["content"] == read


def test_the_model_reads_an_error_about_invalid_json_arguments(
    respond: Respond, script: Script, served: McpServer
) -> None:
    script.call(box__add='{"a":').say("Sorry.")
    response = respond(model=script.model, input="Go.", tools=[tool(served)])
    assert of(response, "mcp_call")[0]["error"]["type"] == "mcp_tool_execution_error"
    assert served.calls == []


def test_a_failed_call_has_a_failed_event(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__fail="{}").say("It failed.")
    events = types(reaching.events(model=script.model, input="Go.", tools=[tool(served)]))
    assert events.count("response.mcp_call.failed") == 1


def test_hosted_and_client_tools_can_be_called_in_one_turn(reaching: Api, script: Script, served: McpServer) -> None:
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
    script.then(calling(("mine", "{}"), ("box__add", '{"a":1}'))).say("Both.")
    tools = [tool(served), mine]
    first = reaching.create(model=script.model, input="Both.", tools=tools)
    assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "function_call", "mcp_call"]
    answer = {"type": "function_call_output", "call_id": of(first, "function_call")[0]["call_id"], "output": "m"}
    reaching.create(model=script.model, input=[answer], tools=tools, previous_response_id=first["id"])
    read = {message["content"] for message in script.messages[1] if message["role"] == "tool"}
    assert read == {"m", "1"}


@pytest.mark.parametrize("limit", [None, 1, 5])
def test_max_tool_calls_limits_the_calls(
    limit: int | None, respond: Respond, script: Script, served: McpServer
) -> None:
    script.then(calling(("box__note", "{}"), ("box__note", "{}"))).say("Noted.")
    limits = {} if limit is None else {"max_tool_calls": limit}
    response = respond(model=script.model, input="Twice.", tools=[tool(served)], **limits)
    assert len(of(response, "mcp_call")) == len(served.calls) == min(limit or 2, 2)
    assert of(response, "message")[0]["content"][0]["text"] == "Noted."


def test_tool_choice_forces_an_mcp_tool_in_the_first_turn(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add='{"a":1}').say("1")
    choice = {"type": "mcp", "server_label": "box", "name": "add"}
    response = reaching.create(model=script.model, input="Hi", tools=[tool(served)], tool_choice=choice)
    assert response["tool_choice"] == choice
    assert script.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "box__add"}}
    assert script.bodies[1]["tool_choice"] == "auto"


def test_choosing_a_server_offers_only_its_tools_in_the_first_turn(
    reaching: Api, script: Script, served: McpServer
) -> None:
    script.call(box__add='{"a":1}').say("1")
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
    choice = {"type": "mcp", "server_label": "box"}
    tools = [tool(served), tool(served, "other"), mine]
    reaching.create(model=script.model, input="Hi", tools=tools, tool_choice=choice)
    names = [{one["function"]["name"].partition("__")[0] for one in body["tools"]} for body in script.bodies]
    assert names == [{"mine", "box"}, {"mine", "box", "other"}]
    assert [body["tool_choice"] for body in script.bodies] == ["required", "auto"]


def test_choosing_a_tool_that_the_server_lacks_fails(reaching: Api, script: Script, served: McpServer) -> None:
    choice = {"type": "mcp", "server_label": "box", "name": "nope"}
    body = {"model": script.model, "input": "Hi", "tools": [tool(served)], "tool_choice": choice}
    assert error(reaching.post("/responses", body)) == (400, "tool_choice", "invalid_prompt")


def test_an_abandoned_run_stops_waiting_for_a_slow_server(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__wait="{}")
    body = {"model": script.model, "input": "Wait.", "tools": [tool(served)], "store": False}
    with reaching.open("/responses", body):
        served.wait_for_calls(1)
    assert eventually(lambda: final_statuses(reaching)) == ["cancelled"]
    assert served.names() == ["wait"]


def final_statuses(api: Api) -> list[str]:
    """Return the statuses of the team's responses."""
    with scope.team(api.caller.team.pk):
        return list(Response.objects.filter(ended_at__isnull=False).values_list("status", flat=True))


def test_a_slow_tool_does_not_delay_other_requests(reaching: Api, script: Script, served: McpServer) -> None:
    script.then(calling(("box__wait", "{}"), ("box__add", '{"a":1}'))).say("Done.")
    with reaching.stream(model=script.model, input="Go.", tools=[tool(served)]) as live:
        served.wait_for_calls(2)
        served.opened.set()
        events = live.rest()
    assert [call["output"] for call in of(events[-1]["response"], "mcp_call")] == ["wait is done", "1"]


def test_only_tools_in_allowed_tools_are_offered(reaching: Api, script: Script, served: McpServer) -> None:
    script.say("Hi.")
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
    allowed = [{"type": "mcp", "server_label": "box", "name": "add"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    reaching.create(model=script.model, input="Hi", tools=[tool(served), mine], tool_choice=choice)
    assert [one["function"]["name"] for one in script.bodies[0]["tools"]] == ["box__add"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_target_of_a_redirect_is_not_repeated(reaching: Api, script: Script, status: int) -> None:
    with running_receiver() as receiver:
        receiver.statuses = [status] * 20
        receiver.headers = {"location": "http://10.1.2.3/internal?token=abc"}
        redirected = {"type": "mcp", "server_label": "box", "server_url": receiver.url, "require_approval": "never"}
        answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [redirected]})
    assert error(answer) == (424, "tools", "http_error")
    assert f"Http status code: {status}" in answer.text
    assert not any(part in answer.text for part in ("10.1.2.3", "internal", "token=abc"))


def test_a_redirect_within_the_server_is_followed(reaching: Api, script: Script, served: McpServer) -> None:
    response = reaching.create(
        model=script.say("Hi").model, input="Hi", tools=[tool(served) | {"server_url": f"{served.url}/"}]
    )
    assert len(of(response, "mcp_list_tools")[0]["tools"]) > 1


def test_a_server_at_a_blocked_address_is_refused(api: Api, script: Script, served: McpServer) -> None:
    answer = api.post("/responses", {"model": script.model, "input": "Hi", "tools": [tool(served)]})
    assert error(answer) == (400, "tools[0].server_url", "url_not_allowed")
    assert served.headers == []


BOX = {"type": "mcp", "server_label": "box", "server_url": "https://box.test/mcp"}


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([{"type": "mcp", "server_label": "box"}], ("tools[0].server_url", "missing_required_parameter")),
        ([{"type": "mcp", "server_url": "https://box.test"}], ("tools[0].server_label", "missing_required_parameter")),
        ([{**BOX, "server_label": "a b"}], ("tools[0].server_label", "invalid_value")),
        ([{**BOX, "connector_id": "connector_x"}], ("tools[0]", "mutually_exclusive_parameters")),
        ([{"type": "mcp", "server_label": "b", "tunnel_id": "t"}], ("tools[0].tunnel_id", "unsupported_parameter")),
        ([{"type": "mcp", "server_label": "b", "connector_id": "no"}], ("tools[0].connector_id", "invalid_value")),
        ([BOX, BOX], ("tools[1].server_label", "invalid_value")),
        ([{**BOX, "defer_loading": True}], ("tools[0].defer_loading", "invalid_value")),
        ([{**BOX, "allowed_callers": ["programmatic"]}], ("tools[0].allowed_callers", "unsupported_value")),
        ([{**BOX, "require_approval": "sometimes"}], ("tools[0].require_approval", "invalid_value")),
        ([{**BOX, "require_approval": {"ever": {}}}], ("tools[0].require_approval.ever", "unknown_parameter")),
        ([{**BOX, "allowed_tools": [1]}], ("tools[0].allowed_tools[0]", "invalid_type")),
        ([{**BOX, "headers": {"Host": "other"}}], ("tools[0].headers", "invalid_value")),
        ([{**BOX, "headers": {"X-A": "a\r\nb: c"}}], ("tools[0].headers.X-A", "invalid_value")),
        ([{**BOX, "authorization": "a\nb"}], ("tools[0].authorization", "invalid_value")),
        ([{**BOX, "server_url": "ftp://box.test"}], ("tools[0].server_url", "url_not_allowed")),
        ([{**BOX, "server_url": "https://[bad"}], ("tools[0].server_url", "url_not_allowed")),
        ([{**BOX, "server_url": "https://me:pw@box.test/"}], ("tools[0].server_url", "url_not_allowed")),
        ([{**BOX, "server_url": ""}], ("tools[0].server_url", "url_not_allowed")),
        ([{**BOX, "headers": {"X-A": "ä"}}], ("tools[0].headers.X-A", "invalid_value")),
        ([{**BOX, "server_url": "https://10.0.0.1/"}], ("tools[0].server_url", "url_not_allowed")),
    ],
)
def test_an_invalid_tool_names_the_parameter(
    tools: list[Any], expected: tuple[str, str], reaching: Api, script: Script
) -> None:
    answer = reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": tools})
    assert error(answer) == (400, *expected)


def test_choosing_an_unknown_server_is_refused(reaching: Api, script: Script, served: McpServer) -> None:
    choice = {"type": "mcp", "server_label": "other"}
    body = {"model": script.model, "input": "Hi", "tools": [tool(served)], "tool_choice": choice}
    assert error(reaching.post("/responses", body)) == (400, "tool_choice", "invalid_value")


def test_the_response_shows_the_tool_normalized(reaching: Api, script: Script, served: McpServer) -> None:
    script.say("Hi.")
    mcp = {"type": "mcp", "server_label": "box", "server_url": f"{served.url}?key=secret"}
    response = ok(reaching.post("/responses", {"model": script.model, "input": "Hi", "tools": [mcp]}))
    origin = served.url.removesuffix("/mcp")
    assert response["tools"] == [
        {
            "type": "mcp",
            "server_label": "box",
            "server_url": origin,
            "headers": None,
            "allowed_tools": None,
            "require_approval": "always",
        }
    ]

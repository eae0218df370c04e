"""Deferred tools: found by the server or the client, or added during a conversation."""

from typing import Any

import orjson
import pytest

from tests.support.api import Api, error
from tests.support.upstream import Script

SEARCH = {"type": "tool_search"}
CLIENTS = {"type": "tool_search", "execution": "client", "description": "Finds tools by what they are for."}


def function(name: str, description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": description, **more}


def deferred(name: str, description: str = "") -> dict[str, Any]:
    return function(name, description, defer_loading=True)


MAIL, MEET = deferred("send_mail", "Sends a mail."), deferred("bookMeeting", "Puts a meeting into the calendar.")
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers and orders",
    "tools": [deferred("find_customer", "Finds a customer by name."), deferred("list_orders", "Orders of a customer.")],
}
TOOLS = [SEARCH, function("clock"), MAIL, MEET, CRM]


def offered(script: Script, number: int) -> list[str]:
    """Return the names of the functions the upstream was offered in a call."""
    return [tool["function"]["name"] for tool in script.bodies[number].get("tools", [])]


def query(words: str) -> str:
    return orjson.dumps({"query": words}).decode()


def test_deferred_tools_are_offered_once_found(api: Api, script: Script) -> None:
    script.call(tool_search=query("customer")).say("Found")
    response = api.create(model=script.model, input="Who is Ada?", tools=TOOLS)
    assert offered(script, 0) == ["clock", "tool_search"]
    assert offered(script, 1)[:2] == ["clock", "tool_search"]
    assert set(offered(script, 1)[2:]) == {"crm__find_customer", "crm__list_orders"}
    call, output, message = response["output"]
    assert (call["type"], call["execution"], call["arguments"]) == ("tool_search_call", "server", {"paths": ["crm"]})
    assert "query" not in call
    assert (output["type"], output["execution"], message["type"]) == ("tool_search_output", "server", "message")


def test_found_tools_of_a_namespace_are_grouped(api: Api, script: Script) -> None:
    script.call(tool_search=query("customers")).say("Found")
    output = api.create(model=script.model, input="Hi", tools=TOOLS)["output"][1]
    assert [tool["type"] for tool in output["tools"]] == ["namespace"]
    assert {tool["name"] for tool in output["tools"][0]["tools"]} == {"find_customer", "list_orders"}


def test_found_tools_can_be_called_and_stay_loaded(api: Api, script: Script) -> None:
    script.call(tool_search=query("book a meeting")).call(bookMeeting="{}").say("Booked")
    first = api.create(model=script.model, input="Meet me", tools=TOOLS)
    call = first["output"][-1]
    # As OpenAI's calls of deferred functions outside of a namespace.
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "bookMeeting", "bookMeeting")
    assert first["output"][0]["arguments"] == {"paths": ["bookMeeting"]}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    api.create(model=script.model, previous_response_id=first["id"], input=[output], tools=TOOLS)
    assert offered(script, 2) == ["clock", "bookMeeting", "tool_search"]
    called = script.messages[2][-2]["tool_calls"][0]["function"]["name"]
    assert called == "bookMeeting"


def test_found_tools_of_a_namespace_are_called_with_it(api: Api, script: Script) -> None:
    script.call(tool_search=query("customers")).call(crm__find_customer="{}")
    call = api.create(model=script.model, input="Hi", tools=TOOLS)["output"][-1]
    assert (call["name"], call["namespace"]) == ("find_customer", "crm")


def test_functions_that_were_never_deferred_have_no_namespace(api: Api, script: Script) -> None:
    call = api.create(model=script.call(clock="{}").model, input="Hi", tools=TOOLS)["output"][-1]
    assert "namespace" not in call


def test_the_model_reads_the_found_tools(api: Api, script: Script) -> None:
    script.call(tool_search=query("mail")).say("Found")
    api.create(model=script.model, input="Hi", tools=TOOLS)
    *_, call_message, search_message = script.messages[1]
    assert call_message["tool_calls"][0]["function"] == {"name": "tool_search", "arguments": '{"query":"mail"}'}
    assert call_message["tool_calls"][0]["id"] == search_message["tool_call_id"]
    assert orjson.loads(search_message["content"]) == {
        "loaded": [{"functions": ["send_mail"], "description": "Sends a mail."}]
    }


@pytest.mark.parametrize("arguments", ['{"query":"zebra"}', '{"query":1}', "{}"])
def test_a_search_without_results_is_completed(api: Api, script: Script, arguments: str) -> None:
    script.call(tool_search=arguments).say("Nothing")
    response = api.create(model=script.model, input="Hi", tools=TOOLS)
    assert response["output"][1]["tools"] == []
    assert offered(script, 1) == ["clock", "tool_search"]


def test_search_items_can_be_sent_back_as_input(api: Api, script: Script) -> None:
    script.call(tool_search=query("mail")).say("Found").say("Hi")
    first = api.create(model=script.model, input="Hi", tools=TOOLS)
    api.create(model=script.model, input=[*first["output"], {"role": "user", "content": "Go"}], tools=TOOLS)
    assert offered(script, 2) == ["clock", "send_mail", "tool_search"]


def test_both_search_items_are_streamed(api: Api, script: Script) -> None:
    script.call(tool_search=query("mail")).say("Found")
    events = api.events(model=script.model, input="Hi", tools=TOOLS)
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    assert added == ["tool_search_call", "tool_search_output", "message"]


def test_the_search_description_lists_what_is_available(api: Api, script: Script) -> None:
    api.create(model=script.say("Hi").model, input="Hi", tools=TOOLS)
    words = script.bodies[0]["tools"][1]["function"]["description"]
    assert "- crm: Customers and orders" in words
    assert "- send_mail" in words


def test_the_client_searches_with_execution_client(api: Api, script: Script) -> None:
    script.call(tool_search='{"query":"mail"}').call(fetch="{}")
    first = api.create(model=script.model, input="Hi", tools=[CLIENTS])
    call = first["output"][0]
    assert (call["type"], call["execution"], call["call_id"]) == ("tool_search_call", "client", "call_tool_search")
    found = {
        "type": "tool_search_output",
        "call_id": call["call_id"],
        "execution": "client",
        "status": "completed",
        "tools": [function("fetch", "Fetches mail.")],
    }
    second = api.create(model=script.model, previous_response_id=first["id"], input=[found], tools=[CLIENTS])
    assert offered(script, 1) == ["tool_search", "fetch"]
    assert second["output"][0]["name"] == "fetch"


def test_a_client_side_search_may_define_its_parameters(api: Api, script: Script) -> None:
    schema = {"type": "object", "properties": {"goal": {"type": "string"}}}
    api.create(model=script.say("Hi").model, input="Hi", tools=[{**CLIENTS, "parameters": schema}])
    search = script.bodies[0]["tools"][0]["function"]
    assert search["parameters"] == schema
    assert search["description"].endswith("Finds tools by what they are for.")


def test_additional_tools_are_offered_in_later_turns(api: Api, script: Script) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [function("late"), {"type": "shell"}]}
    first = api.create(model=script.say("Hi").say("Hi").model, input=[{"role": "user", "content": "Hi"}, added])
    assert offered(script, 0) == ["late", "shell"]
    assert first["tools"] == []
    api.create(model=script.model, input="Go on", previous_response_id=first["id"])
    assert offered(script, 1) == ["late", "shell"]
    assert [message["role"] for message in script.messages[0]] == ["user"]


def test_a_forced_tool_is_offered_without_a_search(api: Api, script: Script) -> None:
    choice = {"type": "function", "name": "send_mail"}
    api.create(model=script.call(send_mail="{}").model, input="Hi", tools=TOOLS, tool_choice=choice)
    assert "send_mail" in offered(script, 0)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([SEARCH], "tools[0]"),
        ([SEARCH, function("a")], "tools[0]"),
        ([deferred("a")], "tools[0].defer_loading"),
        ([CRM], "tools[0].tools[0].defer_loading"),
        ([{**SEARCH, "parameters": {"type": "object"}}, MAIL], "tools[0].parameters"),
        ([SEARCH, SEARCH, MAIL], "tools[1]"),
    ],
)
def test_an_invalid_search_names_the_parameter(api: Api, tools: list[dict[str, Any]], param: str) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "tools": tools}))[:2] == (400, param)


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ({"type": "function"}, "input[1].tools[0].name", "missing_required_parameter"),
        ({"type": "web_search"}, "input[1].tools[0].type", "unsupported_value"),
        (SEARCH, "input[1].tools[0].type", "unsupported_value"),
        ({"type": "telepathy"}, "input[1].tools[0]", "invalid_value"),
        (
            {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "regex", "definition": "("}},
            "input[1].tools[0].format.definition",
            "invalid_value",
        ),
    ],
)
def test_invalid_additional_tools_name_the_parameter(
    api: Api, script: Script, tool: dict[str, Any], param: str, code: str
) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    answer = api.post("/responses", {"model": script.model, "input": [{"role": "user", "content": "Hi"}, added]})
    assert error(answer) == (400, param, code)

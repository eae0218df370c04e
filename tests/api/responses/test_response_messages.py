"""`enable_response_messages`, `previous_input_messages` and `request_id`: conversations as messages in vLLM's
format."""

from collections import Counter
from typing import Any

import pytest

from responses.models import Response
from tenants import scope
from tests.support.api import Api, Caller, Event, error
from tests.support.chunks import calls, chunk, text
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import McpServer
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, stream

Message = dict[str, Any]
LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
SHELL = {"type": "custom", "name": "sh", "description": "Runs."}


def roles(messages: list[Message]) -> Counter[str]:
    """Return the number of messages per role."""
    return Counter(message["role"] for message in messages)


def text_of(message: Message) -> str:
    """Return the text of a message."""
    return "".join(part["text"] for part in message["content"])


def final_response(events: list[Event]) -> dict[str, Any]:
    """Return the response of the last event of a stream."""
    response: dict[str, Any] = events[-1]["response"]
    return response


def response_with_messages(api: Api, script: Script, **request: Any) -> dict[str, Any]:
    """Create a response with `enable_response_messages`."""
    return api.create(model=script.model, enable_response_messages=True, **request)


# -- shown messages ----------------------------------------------------------------------------------------------------


def test_messages_are_shown_only_on_request(api: Api, script: Script) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    assert not {"input_messages", "output_messages", "request_id"} & response.keys()


def test_messages_are_in_the_first_and_the_last_event(api: Api, script: Script) -> None:
    script.say("Hello")
    events = api.events(model=script.model, input="Hi", enable_response_messages=True)
    created, in_progress, completed = (events[number]["response"] for number in (0, 1, -1))
    assert created["input_messages"] == in_progress["input_messages"] == completed["input_messages"]
    assert created["output_messages"] == in_progress["output_messages"] == []
    assert [text_of(message) for message in completed["output_messages"]] == ["Hello"]
    assert api.retrieve(created["id"]) == completed


def test_each_message_has_role_author_and_text_parts(api: Api, script: Script) -> None:
    script.say("Hello")
    response = response_with_messages(api, script, input="Hi", instructions="Be kind.")
    messages = response["input_messages"] + response["output_messages"]
    assert [message["role"] for message in messages] == [message["author"]["role"] for message in messages]
    assert {part["type"] for message in messages for part in message["content"]} == {"text"}


def test_a_missing_system_message_is_added(api: Api, script: Script) -> None:
    script.say("Hello")
    response = response_with_messages(api, script, input="Hi")
    assert [message["role"] for message in response["input_messages"]] == ["system", "user"]
    assert text_of(response["input_messages"][0])
    assert script.messages[0] == [{"role": "user", "content": "Hi"}]


def test_system_messages_of_the_client_are_joined(api: Api, script: Script) -> None:
    script.say("Hello")
    given = [{"role": "system", "content": "Talk like a pirate."}, {"role": "user", "content": "Hi"}]
    system, user = response_with_messages(api, script, input=given, instructions="Be kind.")["input_messages"]
    assert [part["text"] for part in system["content"]] == ["Be kind.", "Talk like a pirate."]
    assert (system["role"], user["role"]) == ("system", "user")


@pytest.mark.parametrize(("tools", "expected"), [([LOOK], 1), ([LOOK, SHELL], 1), ([], 0)])
def test_functions_add_a_developer_message(api: Api, script: Script, tools: list[Any], expected: int) -> None:
    script.say("Hello")
    messages = response_with_messages(api, script, input="Hi", tools=tools)["input_messages"]
    developer = [message for message in messages if message["role"] == "developer"]
    assert len(developer) == expected
    assert all("functions.look\nLooks." in text_of(message) for message in developer)


def test_functions_are_added_to_the_clients_developer_message(api: Api, script: Script) -> None:
    script.say("Hello")
    given = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    messages = response_with_messages(api, script, input=given, tools=[LOOK])["input_messages"]
    assert roles(messages) == {"system": 1, "developer": 1, "user": 1}
    assert messages[1]["content"][0]["text"] == "Be brief."


def test_reasoning_calls_and_answers_have_channels(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning="Hm."), chunk(content="Let me see."), *calls(look='{"a":1}')))
    reasoning_message, answer_message, call_message = response_with_messages(api, script, input="Hi", tools=[LOOK])[
        "output_messages"
    ]
    assert (reasoning_message["channel"], text_of(reasoning_message)) == ("analysis", "Hm.")
    assert (answer_message["channel"], text_of(answer_message)) == ("final", "Let me see.")
    assert (call_message["channel"], call_message["recipient"], text_of(call_message)) == (
        "commentary",
        "functions.look",
        '{"a":1}',
    )


def test_each_tool_output_is_one_message(api: Api, script: Script) -> None:
    describe(script, inline_images=False)
    script.call(look='{"a":1}', sh='{"input":"ls"}').say("A tree.")
    first = api.create(model=script.model, input="Hi", tools=[LOOK, SHELL])
    image = {"type": "input_image", "image_url": "https://a.example/tree.png"}
    data = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    outputs = [
        {"type": "function_call_output", "call_id": "call_look", "output": [image, data]},
        {"type": "custom_tool_call_output", "call_id": "call_sh", "output": "a b"},
    ]
    response = response_with_messages(api, script, input=outputs, previous_response_id=first["id"], tools=[LOOK, SHELL])
    look, shell = [message for message in response["input_messages"] if message["role"] == "tool"]
    assert (look["name"], look["author"], look["recipient"]) == (
        "functions.look",
        {"role": "tool", "name": "functions.look"},
        "assistant",
    )
    assert [part["text"] for part in look["content"]] == ["[image: https://a.example/tree.png]", "[image]"]
    assert (shell["name"], text_of(shell)) == ("functions.sh", "a b")


def test_hosted_tools_add_no_developer_message(reaching: Api, script: Script, served: McpServer) -> None:
    script.call(box__add='{"a":2,"b":3}').say("It is 5.")
    response = response_with_messages(reaching, script, input="2+3?", tools=[tool(served)])
    assert roles(response["input_messages"]) == {"system": 1, "user": 1}
    call, result, answer_message = response["output_messages"]
    assert (call["channel"], call["recipient"], text_of(call)) == ("commentary", "box.add", '{"a":2,"b":3}')
    assert (result["author"], text_of(result)) == ({"role": "tool", "name": "box.add"}, "5")
    assert (answer_message["channel"], text_of(answer_message)) == ("final", "It is 5.")


def test_images_and_files_are_described(api: Api, script: Script) -> None:
    describe(script, inline_images=False).say("Hello")
    content = [
        {"type": "input_text", "text": "This?"},
        {"type": "input_image", "image_url": "https://a.example/tree.png"},
        {"type": "input_file", "filename": "a.txt", "file_data": "aGk="},
    ]
    _, user = response_with_messages(api, script, input=[{"role": "user", "content": content}])["input_messages"]
    assert [part["text"] for part in user["content"]] == [
        "This?",
        "[image: https://a.example/tree.png]",
        "[file: a.txt]",
    ]


def test_messages_of_previous_responses_are_included(api: Api, script: Script) -> None:
    script.say("Hello").say("Fine")
    first = api.create(model=script.model, input="Hi")
    response = response_with_messages(api, script, input="How are you?", previous_response_id=first["id"])
    assert [text_of(message) for message in response["input_messages"][1:]] == ["Hi", "Hello", "How are you?"]
    assert [text_of(message) for message in response["output_messages"]] == ["Fine"]


# -- previous messages -------------------------------------------------------------------------------------------------


def test_shown_messages_can_be_sent_back(api: Api, script: Script) -> None:
    script.call(look="{}").say("A tree.")
    first = final_response(api.events(model=script.model, input="Hi", tools=[LOOK], enable_response_messages=True))
    result = {"role": "tool", "name": "functions.look", "content": [{"type": "text", "text": "a tree"}]}
    previous = [*first["input_messages"], *first["output_messages"], result]
    second = response_with_messages(api, script, input="", tools=[LOOK], previous_input_messages=previous, store=False)
    assert roles(second["input_messages"]) == {"system": 1, "developer": 1, "user": 1, "assistant": 1, "tool": 1}
    assert [message["role"] for message in script.messages[1]] == ["user", "assistant", "tool"]
    assert script.messages[1][1]["tool_calls"][0]["id"] == script.messages[1][2]["tool_call_id"] == "call_look"


def test_sending_messages_back_repeatedly_duplicates_nothing(api: Api, script: Script) -> None:
    script.always(stream(*text("Yes.")))
    tools, previous = [LOOK], list[Message]()
    given = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Sure?"}]
    for turn in range(3):
        response = response_with_messages(
            api, script, input=given if turn == 0 else "Sure?", tools=tools, previous_input_messages=previous
        )
        previous = response["input_messages"] + response["output_messages"]
    assert roles(previous) == {"system": 1, "developer": 1, "user": 3, "assistant": 3}
    assert text_of(previous[0]) == "Be kind."
    assert [message["role"] for message in script.messages[2]] == ["system", *["user", "assistant"] * 2, "user"]


def test_instructions_replace_the_system_message(api: Api, script: Script) -> None:
    script.say("Yes.").say("No.")
    first = response_with_messages(api, script, input="Sure?", instructions="Be kind.")
    previous = first["input_messages"] + first["output_messages"]
    second = response_with_messages(
        api, script, input="Sure?", instructions="Be stern.", previous_input_messages=previous
    )
    assert text_of(second["input_messages"][0]) == "Be stern."
    assert [message["content"] for message in script.messages[1]] == ["Be stern.", "Sure?", "Yes.", "Sure?"]


def test_channels_and_recipients_become_items(api: Api, script: Script) -> None:
    script.say("Yes.")
    previous = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "channel": "analysis", "content": [{"type": "text", "text": "Hm."}]},
        {"role": "assistant", "channel": "commentary", "content": "Wait."},
        {"author": {"role": "assistant"}, "channel": "commentary", "recipient": "functions.sh", "content": "ls"},
        {"author": {"role": "tool", "name": "functions.sh"}, "content": "a b"},
        {"role": "assistant", "recipient": "wiki.search", "content": '{"q":1}', "content_type": "json"},
        {"role": "tool", "name": "wiki.search", "content": "nothing"},
        {"role": "assistant", "channel": "final", "content": "Two files."},
    ]
    made = api.create(model=script.model, input="Sure?", tools=[SHELL], previous_input_messages=previous)
    items = api.input_items(made["id"])
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "message",
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]
    assert (items[2]["phase"], items[3]["input"], items[5]["name"]) == ("commentary", "ls", "wiki__search")


def test_a_response_with_previous_messages_can_be_continued(api: Api, script: Script) -> None:
    script.say("Yes.").say("Still.")
    previous = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello, Ada."}]
    first = api.create(model=script.model, input="Sure?", previous_input_messages=previous)
    api.create(model=script.model, input="And now?", previous_response_id=first["id"])
    assert [message["content"] for message in script.messages[1]] == [
        "I am Ada.",
        "Hello, Ada.",
        "Sure?",
        "Yes.",
        "And now?",
    ]


def test_outputs_are_matched_to_calls_of_the_same_name_in_order(api: Api, script: Script) -> None:
    script.say("Yes.")
    call_message = {"role": "assistant", "recipient": "functions.look"}
    previous = [
        {**call_message, "content": '{"a":1}'},
        {**call_message, "content": '{"a":2}', "call_id": "call_second"},
        {"role": "tool", "name": "functions.look", "call_id": "call_second", "content": "two"},
        {"role": "tool", "name": "functions.look", "content": "one"},
    ]
    api.create(model=script.model, input="So?", tools=[LOOK], previous_input_messages=previous)
    asked, first, second, _ = script.messages[0]
    assert [call["id"] for call in asked["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert (first["content"][0]["text"] if isinstance(first["content"], list) else first["content"]) == "one"


@pytest.mark.parametrize(
    ("previous", "param", "code"),
    [
        ([{"content": "Hi"}], "previous_input_messages[0].role", "missing_required_parameter"),
        ([{"role": "king", "content": "Hi"}], "previous_input_messages[0].role", "invalid_value"),
        (
            [{"role": "user", "author": {"role": "tool"}, "content": "Hi"}],
            "previous_input_messages[0].role",
            "invalid_value",
        ),
        ([{"role": "user"}], "previous_input_messages[0].content", "missing_required_parameter"),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            "previous_input_messages[0].content[0].type",
            "invalid_value",
        ),
        ([{"role": "tool", "content": "x"}], "previous_input_messages[0].name", "missing_required_parameter"),
        ([{"role": "tool", "name": "functions.look", "content": "x"}], "previous_input_messages[0]", "invalid_value"),
        ([{"role": "user", "content": "Hi", "mood": "bad"}], "previous_input_messages[0].mood", "unknown_parameter"),
        ("Hi", "previous_input_messages", "invalid_type"),
    ],
)
def test_invalid_messages_are_refused(api: Api, script: Script, previous: Any, param: str, code: str) -> None:
    got = api.post("/responses", {"model": script.model, "input": "Hi", "previous_input_messages": previous})
    assert error(got) == (400, param, code)


def test_a_call_without_its_output_is_refused(api: Api, script: Script) -> None:
    previous = [{"role": "assistant", "recipient": "functions.look", "content": "{}"}]
    got = api.post("/responses", {"model": script.model, "input": "Hi", "previous_input_messages": previous})
    assert got.status_code == 400
    assert got.json()["error"]["message"].startswith("No tool output found for function call ")


def test_previous_messages_exclude_other_sources_of_history(api: Api, script: Script) -> None:
    previous = [{"role": "user", "content": "Hi"}]
    body = {"model": script.model, "input": "Hi", "previous_input_messages": previous, "previous_response_id": "resp_1"}
    got = api.post("/responses", body)
    assert error(got) == (400, None, "mutually_exclusive_parameters")


def test_an_empty_input_requires_previous_messages(api: Api, script: Script) -> None:
    got = api.post("/responses", {"model": script.model, "input": "", "previous_input_messages": []})
    assert error(got)[0] == 400


# -- request id --------------------------------------------------------------------------------------------------------


def test_the_request_id_is_shown_and_stored(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi", request_id="mine-1")
    assert response["request_id"] == "mine-1"
    assert "mine-1" not in response["id"]
    with scope.team(caller.team.pk):
        assert Response.objects.get().client_request_id == "mine-1"


def test_the_header_takes_precedence_over_request_id(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    body = {"model": script.model, "input": "Hi", "request_id": "mine-1"}
    assert api.post("/responses", body, headers={"X-Client-Request-Id": "mine-2"}).status_code == 200
    with scope.team(caller.team.pk):
        assert Response.objects.get().client_request_id == "mine-2"


@pytest.mark.parametrize("name", ["", "x" * 513, "ä"])
def test_a_request_id_with_control_characters_is_refused(api: Api, script: Script, name: str) -> None:
    got = api.post("/responses", {"model": script.model, "input": "Hi", "request_id": name})
    assert error(got)[:2] == (400, "request_id")

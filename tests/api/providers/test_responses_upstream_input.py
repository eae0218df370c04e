"""Requests to an upstream with the Responses API: parameters, conversation and tools."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.responses_upstream import (
    added,
    answer,
    call_events,
    custom_call,
    done,
    function,
    function_call,
    message,
    message_events,
    reasoning,
    responses_script,
    texts,
)
from tests.support.upstream import Script, ScriptedUpstream


def test_parameters_that_the_client_did_not_send_are_omitted(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    api.create(model=responses_api_script.model, input="Hi")
    assert responses_api_script.bodies == [
        {
            "model": responses_api_script.model,
            "input": [{"type": "message", "role": "user", "content": "Hi"}],
            "stream": False,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
    ]
    assert responses_api_script.received[0].headers["Authorization"] == "Bearer upstream-secret"


def test_parameters_keep_their_names(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    sent: dict[str, Any] = {
        "instructions": "Be kind.",
        "max_output_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "top_logprobs": 2,
        "reasoning": {"effort": "high", "summary": "auto"},
        "service_tier": "flex",
        "safety_identifier": "somebody",
        "prompt_cache_key": "a key",
        "user": "u",
    }
    api.create(model=responses_api_script.model, input="Hi", include=["message.output_text.logprobs"], **sent)
    assert {name: responses_api_script.bodies[0].get(name) for name in sent} == sent
    assert responses_api_script.bodies[0]["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]


def test_cache_breakpoints_and_image_details_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    parts: list[dict[str, Any]] = [
        {"type": "input_text", "text": "Look", **mark},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "original", **mark},
    ]
    options = {"mode": "explicit"}
    api.create(
        model=responses_api_script.model, input=[{"role": "user", "content": parts}], prompt_cache_options=options
    )
    assert responses_api_script.bodies[0]["input"][0]["content"] == parts
    assert responses_api_script.bodies[0]["prompt_cache_options"] == options


def test_text_format_and_verbosity_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events('{"a":1}')))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    sent = {"type": "json_schema", "name": "n", "schema": schema, "strict": False}
    api.create(model=responses_api_script.model, input="Hi", text={"format": sent, "verbosity": "low"})
    assert responses_api_script.bodies[0]["text"] == {"format": sent, "verbosity": "low"}


def test_tools_and_tool_choice_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(call_events("look", "{}")))
    tools = [function("look"), function("listen")]
    choice = {"type": "function", "name": "look"}
    api.create(model=responses_api_script.model, input="Hi", tools=tools, tool_choice=choice, parallel_tool_calls=False)
    body = responses_api_script.bodies[0]
    assert body["tools"][0] == {
        "type": "function",
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {}},
        "strict": None,
    }
    assert (len(body["tools"]), body["tool_choice"], body["parallel_tool_calls"]) == (2, choice, False)


def test_tools_outside_allowed_tools_are_not_sent(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(call_events("look", "{}")))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    api.create(
        model=responses_api_script.model, input="Hi", tools=[function("look"), function("listen")], tool_choice=allowed
    )
    assert [tool["name"] for tool in responses_api_script.bodies[0]["tools"]] == ["look"]
    assert responses_api_script.bodies[0]["tool_choice"] == "auto"


def test_items_are_sent_without_ids(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(
        answer(message_events("Let me see."), call_events("look", "{}", index=1)), answer(message_events("A tree."))
    )
    first = api.create(model=responses_api_script.model, input="What is there?", tools=[function("look")])
    output = {"type": "function_call_output", "call_id": "call_look", "output": "a tree"}
    api.create(model=responses_api_script.model, input=[output], previous_response_id=first["id"])
    assert responses_api_script.bodies[1]["input"] == [
        {"type": "message", "role": "user", "content": "What is there?"},
        {"type": "message", "role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "call_look", "name": "look", "arguments": "{}"},
        output,
    ]


def test_content_parts_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "original"}
    text = {"type": "input_text", "text": "This?"}
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [text, image]}
    api.create(model=responses_api_script.model, input=[call, output, {"role": "user", "content": [text, image]}])
    assert responses_api_script.bodies[0]["input"] == [
        call,
        output,
        {"type": "message", "role": "user", "content": [text, image]},
    ]


def test_refusals_and_phases_are_sent_back_unchanged(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    comment = {"role": "assistant", "content": "Wait.", "phase": "commentary"}
    api.create(model=responses_api_script.model, input=[refusal, comment, {"role": "user", "content": "Go on."}])
    sent = responses_api_script.bodies[0]["input"]
    assert [{"type": "message", **refusal}, {"type": "message", **comment}] == sent[:2]


def test_additional_fields_of_items_are_sent_to_the_upstream(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    more = {"later": {"a": 1}}
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look.", **more}], **more}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do.", **more}]}
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}", **more}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a cat", **more}
    phased = {"type": "message", "role": "user", "content": "Well?", "phase": "commentary"}
    items = [{"id": "msg_1", **asked}, {**said, **more}, call, {"id": "fco_1", **output}, phased]
    api.create(model=responses_api_script.model, input=items)
    assert responses_api_script.bodies[0]["input"] == [asked, {**said, **more}, call, output, phased]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_additional_fields_of_the_answer_are_stored_and_sent_back(
    api: Api, responses_api_script: Script, is_streamed: bool
) -> None:
    more = {"later": {"a": 1}}
    cited = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 1, **more}
    said = message("I look.", **more)
    said["content"] = [{**said["content"][0], "annotations": [cited], **more}]
    thought = reasoning("Hm.", encrypted_content="theirs", **more)
    called = function_call("look", "{}", caller={"type": "direct"}, **more)
    events = [
        *(done(0, thought), added(1, message("")), *texts(1, "I look."), done(1, said)),
        *(added(2, function_call("look", "")), done(2, called)),
    ]
    responses_api_script.then(answer(events), answer(message_events("A tree.")))
    request: dict[str, Any] = {"model": responses_api_script.model, "input": "Hi", "tools": [function("look")]}
    if is_streamed:
        with api.stream(**request) as live:
            first = live.rest()[-1]["response"]
    else:
        first = api.create(**request)
    assert [item["later"] for item in first["output"]] == [more["later"]] * 3
    assert first["output"][1]["content"] == said["content"]
    assert api.retrieve(first["id"])["output"] == first["output"]
    output = {"type": "function_call_output", "call_id": "call_look", "output": "a tree"}
    second = api.create(model=responses_api_script.model, input=[output], previous_response_id=first["id"])
    entries = responses_api_script.bodies[1]["input"]
    assert [entry.get("later") for entry in entries] == [None, *[more["later"]] * 3, None]
    assert (first["output"][2]["caller"], entries[3]["caller"]) == ({"type": "direct"}, {"type": "direct"})
    assert entries[2]["content"] == [{"type": "output_text", "text": "I look.", **more}]
    listed = api.input_items(second["id"])
    assert [item.get("later") for item in listed] == [None, *[more["later"]] * 3, None]


def test_developer_messages_use_the_role_the_model_supports(
    api: Api, responses_api_script: Script, responses_upstream: ScriptedUpstream
) -> None:
    with responses_script(responses_upstream, developer_role=True) as modern:
        for script, role in ((responses_api_script, "system"), (modern, "developer")):
            script.then(answer(message_events("Hello")))
            api.create(model=script.model, input=[{"role": "developer", "content": "Be kind."}])
            assert script.bodies[0]["input"][0]["role"] == role


def test_a_pending_asynchronous_call_gets_a_placeholder_output(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(call_events("look", "{}")), answer(message_events("Still looking.")))
    tools = [{**function("look"), "async": True}]
    first = api.create(model=responses_api_script.model, input="Hi", tools=tools)
    api.create(model=responses_api_script.model, input="And?", previous_response_id=first["id"], tools=tools)
    call, output = responses_api_script.bodies[1]["input"][1:3]
    assert (call["type"], output["type"], output["call_id"]) == ("function_call", "function_call_output", "call_look")


@pytest.mark.slow
def test_custom_tools_are_passed_on_if_supported(api: Api, responses_upstream: ScriptedUpstream) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-z -]+"}
    tools = [{"type": "custom", "name": "sh", "description": "Runs.", "format": grammar}]
    with responses_script(responses_upstream, custom_tools=True) as script:
        script.then(answer([done(0, custom_call("sh", "ls -l"))]), answer(message_events("Two files.")))
        first = api.create(model=script.model, input="Hi", tools=tools, tool_choice={"type": "custom", "name": "sh"})
        output = {"type": "custom_tool_call_output", "call_id": "call_sh", "output": "a b"}
        api.create(model=script.model, input=[output], previous_response_id=first["id"], tools=tools)
        assert (script.bodies[0]["tools"], script.bodies[0]["tool_choice"]) == (tools, {"type": "custom", "name": "sh"})
        assert script.bodies[1]["input"][1:] == [
            {"type": "custom_tool_call", "call_id": "call_sh", "name": "sh", "input": "ls -l"},
            output,
        ]


def test_custom_tools_become_functions_if_not_supported(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(
        answer(call_events("sh", '{"inp', 'ut":"ls \\', '"-l\\""}')), answer(message_events("Two files."))
    )
    tools = [{"type": "custom", "name": "sh"}]
    first = api.create(model=responses_api_script.model, input="Hi", tools=tools)
    (call,) = first["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "sh", 'ls "-l"')
    output = {"type": "custom_tool_call_output", "call_id": "call_sh", "output": "a b"}
    api.create(model=responses_api_script.model, input=[output], previous_response_id=first["id"], tools=tools)
    assert responses_api_script.bodies[0]["tools"][0]["parameters"]["required"] == ["input"]
    assert responses_api_script.bodies[1]["input"][1:] == [
        {"type": "function_call", "call_id": "call_sh", "name": "sh", "arguments": '{"input":"ls \\"-l\\""}'},
        {"type": "function_call_output", "call_id": "call_sh", "output": "a b"},
    ]


def test_the_computer_tool_becomes_a_function_with_a_screenshot_output(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(
        answer(call_events("computer", '{"actions":[{"type":"screenshot"}]}')), answer(message_events("A tree."))
    )
    first = api.create(model=responses_api_script.model, input="Hi", tools=[{"type": "computer"}])
    (call,) = first["output"]
    assert (call["type"], call["actions"]) == ("computer_call", [{"type": "screenshot"}])
    screen = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    output = {"type": "computer_call_output", "call_id": "call_computer", "output": screen}
    api.create(
        model=responses_api_script.model, input=[output], previous_response_id=first["id"], tools=[{"type": "computer"}]
    )
    *_, answered = responses_api_script.bodies[1]["input"]
    assert answered["type"] == "function_call_output"
    assert [part["type"] for part in answered["output"]] == ["input_text", "input_image"]


def test_surplus_parallel_calls_are_dropped(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(call_events("look", "{}"), call_events("listen", "{}", index=1)))
    tools = [function("look"), function("listen")]
    made = api.create(model=responses_api_script.model, input="Hi", tools=tools, parallel_tool_calls=False)
    assert [item["name"] for item in made["output"]] == ["look"]


def test_calls_are_dropped_with_tool_choice_none(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hm."), call_events("look", "{}", index=1)))
    made = api.create(model=responses_api_script.model, input="Hi", tools=[function("look")], tool_choice="none")
    assert [item["type"] for item in made["output"]] == ["message"]


def test_hosted_calls_are_sent_with_their_outputs(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello")))
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": "wiki", "name": "find", "arguments": '{"q":1}'}
    asked = {**call, "type": "mcp_approval_request", "id": "mcpr_1"}
    approved = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    made = {**call, "output": "a tree", "approval_request_id": "mcpr_1"}
    api.create(model=responses_api_script.model, input=[asked, approved, made, {"role": "user", "content": "So?"}])
    assert responses_api_script.bodies[0]["input"][:2] == [
        {"type": "function_call", "call_id": "mcp_1", "name": "wiki__find", "arguments": '{"q":1}'},
        {"type": "function_call_output", "call_id": "mcp_1", "output": "a tree"},
    ]
    assert len(responses_api_script.bodies[0]["input"]) == 3

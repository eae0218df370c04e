"""Requests that `POST /v1/chat/completions` rejects before it calls an upstream, JSON and streams alike."""

from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tests.support.api import Api, error
from tests.support.chunks import completion
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, whole

CHAT = "/chat/completions"
HI: dict[str, Any] = {"role": "user", "content": "Hi"}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look"}}
DRAW: dict[str, Any] = {"type": "custom", "custom": {"name": "draw"}}
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "A cat."}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
Refusal = tuple[int, str | None, str | None]


def rejection(api: Api, body: dict[str, Any]) -> Refusal:
    """Return the error for a body, which is the same for a stream. A call of the upstream fails the test."""
    answer = api.post(CHAT, body)
    if "stream_options" not in body:
        assert api.post(CHAT, {**body, "stream": True}).json() == answer.json()
    return error(answer)


def message_of(api: Api, body: dict[str, Any]) -> str:
    """Return the error message of a body."""
    message: str = api.post(CHAT, body).json()["error"]["message"]
    return message


# -- messages ----------------------------------------------------------------------------------------------------------


def of_user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


MESSAGES: dict[str, tuple[list[Any], str, str | None]] = {
    "no role": ([{"content": "Hi"}], "messages[0].role", "missing_required_parameter"),
    "another's role": ([HI, {"role": "robot", "content": "Hi"}], "messages[1].role", "invalid_value"),
    "no content": ([{"role": "user"}], "messages[0].content", "missing_required_parameter"),
    "null": ([{"role": "user", "content": None}], "messages[0].content", "invalid_type"),
    "a number": ([{"role": "system", "content": 1}], "messages[0].content", "invalid_type"),
    "no parts": ([of_user()], "messages[0].content", "empty_array"),
    "an unknown part": ([of_user({"type": "smell"})], "messages[0].content[0].type", "invalid_value"),
    "a part of an answer": (
        [of_user({"type": "refusal", "refusal": "No."})],
        "messages[0].content[0].type",
        "invalid_value",
    ),
    "a part without type": ([of_user({"text": "Hi"})], "messages[0].content[0].type", "missing_required_parameter"),
    "a part that is none": ([of_user("Hi")], "messages[0].content[0]", "invalid_type"),
    "a text without text": (
        [of_user({"type": "text"})],
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    "an image without URL": (
        [of_user({"type": "image_url", "image_url": {}})],
        "messages[0].content[0].image_url.url",
        "missing_required_parameter",
    ),
    "an image of the system": (
        [{"role": "system", "content": [IMAGE]}],
        "messages[0].content[0].type",
        "invalid_value",
    ),
    "an image of a tool": ([ASKS, {**ANSWER, "content": [IMAGE]}], "messages[1].content[0].type", "invalid_value"),
    "an image of the assistant": (
        [{"role": "assistant", "content": [IMAGE]}],
        "messages[0].content[0].type",
        "invalid_value",
    ),
    "an image without URL in a field of the upstream's": (
        [HI, {"role": "assistant", "content": "A cat.", "images": [{"type": "image_url", "image_url": {"url": ""}}]}],
        "messages[1].images[0].image_url.url",
        "invalid_image_url",
    ),
    "an unknown key": ([{**HI, "colour": "red"}], "messages[0].colour", "unknown_parameter"),
    "an assistant that says nothing": ([{"role": "assistant"}], "messages[0].content", "missing_required_parameter"),
    "an assistant that says null": ([{"role": "assistant", "content": None}], "messages[0].content", "invalid_type"),
    "a call without id": (
        [{"role": "assistant", "tool_calls": [{"type": "function", "function": CALL["function"]}]}],
        "messages[0].tool_calls[0].id",
        "missing_required_parameter",
    ),
    "an answer to no call in particular": (
        [ASKS, {"role": "tool", "content": "A cat."}],
        "messages[1].tool_call_id",
        "missing_required_parameter",
    ),
    "an answer to nobody": ([HI, ANSWER], "messages[1].role", None),
    "an answer to another call": ([ASKS, {**ANSWER, "tool_call_id": "call_2"}], "messages[1].tool_call_id", None),
    "an answer that comes late": ([ASKS, HI, ANSWER], "messages[1].role", None),
    "a call without answer": ([HI, ASKS], "messages", None),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_invalid_messages_are_rejected(api: Api, script: Script, what: str) -> None:
    messages, param, code = MESSAGES[what]
    assert rejection(api, {"model": script.model, "messages": messages}) == (400, param, code)


def test_tool_messages_out_of_order_get_openais_error_messages(api: Api, script: Script) -> None:
    assert message_of(api, {"model": script.model, "messages": [HI, ANSWER]}) == (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
    )
    assert message_of(api, {"model": script.model, "messages": [ASKS, HI]}) == (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "The following tool_call_ids did not have response messages: call_1"
    )


def test_valid_messages_are_forwarded_unchanged(api: Api, script: Script) -> None:
    script.then(whole(completion("Hello")))
    second = {"id": "call_2", "type": "custom", "custom": {"name": "draw", "input": "a cat"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        of_user({"type": "text", "text": "Hi"}, {**IMAGE, "image_url": {**IMAGE["image_url"], "detail": "low"}}),
        of_user({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        {**ASKS, "tool_calls": [CALL, second], "reasoning_content": "Hm.", "refusal": None},
        {**ANSWER, "tool_call_id": "call_2"},
        {**ANSWER, "name": "look"},
        {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "A cat."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": []},
    ]
    assert api.post(CHAT, {"model": script.model, "messages": messages}).status_code == 200
    assert script.messages[0] == messages


def test_extra_fields_of_assistant_messages_are_returned_to_the_upstream(api: Api, script: Script) -> None:
    script.then(whole(completion("Hello")))
    call = {**CALL, "extra_content": {"signature": "abc"}, "function": {**CALL["function"], "x": 1}}
    messages = [{**ASKS, "tool_calls": [call], "reasoning_details": [{"text": "Hm."}]}, ANSWER]
    assert api.post(CHAT, {"model": script.model, "messages": messages}).status_code == 200
    assert script.messages[0] == messages


# -- parameters --------------------------------------------------------------------------------------------------------


def schema(**values: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "cat", "schema": {}, **values}}}


def function(**values: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": values}]}


PARAMETERS: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": "red"}, "colour", "unknown_parameter"),
    ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 129}, "n", "integer_above_max_value"),
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"top_p": -0.1}, "top_p", "decimal_below_min_value"),
    ({"presence_penalty": 2.5}, "presence_penalty", "decimal_above_max_value"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "decimal_below_min_value"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"logit_bias": {"50256": -101}}, "logit_bias.50256", "decimal_below_min_value"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "array_above_max_length"),
    ({"stop": 1}, "stop", "invalid_type"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"service_tier": "first class"}, "service_tier", "invalid_value"),
    ({"verbosity": "chatty"}, "verbosity", "invalid_value"),
    ({"modalities": ["smell"]}, "modalities[0]", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour", "unknown_parameter"),
    ({"metadata": {"a": "b"}}, "metadata", "invalid_value"),
    ({"store": True, "metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"store": True, "metadata": {"a": "b" * 513}}, "metadata.a", "string_above_max_length"),
    ({"store": "yes"}, "store", "invalid_type"),
    ({"response_format": "json"}, "response_format", "invalid_type"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "missing_required_parameter",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
        "missing_required_parameter",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "cat"}}},
        "response_format.json_schema.schema",
        "missing_required_parameter",
    ),
    (schema(name="a cat"), "response_format.json_schema.name", "invalid_value"),
    (schema(schema={"type": "cat"}), "response_format.json_schema.schema", "invalid_json_schema"),
    ({"tools": [{}]}, "tools[0].type", "missing_required_parameter"),
    ({"tools": [{"type": "magic"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"tools": ["look"]}, "tools[0]", "invalid_type"),
    (function(), "tools[0].function.name", "missing_required_parameter"),
    (function(name="look at"), "tools[0].function.name", "invalid_value"),
    (function(name=""), "tools[0].function.name", "empty_string"),
    (function(name="n" * 65), "tools[0].function.name", "string_above_max_length"),
    (function(name="look", parameters=[]), "tools[0].function.parameters", "invalid_type"),
    (function(name="look", colour=1), "tools[0].function.colour", "unknown_parameter"),
    ({"tools": [LOOK, DRAW, LOOK]}, "tools[2].function.name", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "tool_choice", "invalid_value"),
    ({"tools": [LOOK], "tool_choice": "look"}, "tool_choice", "invalid_value"),
    ({"tools": [LOOK], "tool_choice": {"type": "magic"}}, "tool_choice.type", "invalid_value"),
    (
        {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "hear"}}},
        "tool_choice",
        "invalid_value",
    ),
    (
        {"tools": [LOOK], "tool_choice": {"type": "custom", "custom": {"name": "look"}}},
        "tool_choice",
        "invalid_value",
    ),
    (
        {
            "tools": [LOOK],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [DRAW]}},
        },
        "tool_choice",
        "invalid_value",
    ),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "invalid_value"),
    ({"functions": []}, "functions", "empty_array"),
    ({"functions": [{"name": "look"}, {"name": "look"}]}, "functions[1].name", "invalid_value"),
    ({"function_call": "auto"}, "function_call", "invalid_value"),
    ({"functions": [{"name": "look"}], "function_call": {"name": "hear"}}, "function_call", "invalid_value"),
]


@pytest.mark.parametrize(("given", "param", "code"), PARAMETERS, ids=lambda value: str(value)[:60])
def test_invalid_parameters_are_rejected_with_param_and_code(
    api: Api, script: Script, given: dict[str, Any], param: str, code: str
) -> None:
    assert rejection(api, {"model": script.model, "messages": [HI], **given}) == (400, param, code)


def test_a_misspelled_parameter_gets_a_suggestion(api: Api, script: Script) -> None:
    body = {"model": script.model, "messages": [HI], "temprature": 1}
    assert message_of(api, body) == "Unknown parameter: 'temprature'. Did you mean 'temperature'?"


KNOWN: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "frequency_penalty": -2,
    "function_call": {"name": "look"},
    "functions": [{"name": "look", "parameters": {}}],
    "logit_bias": {"50256": -100},
    "logprobs": True,
    "max_completion_tokens": 1,
    "modalities": ["text", "audio"],
    "n": 128,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "Hello"},
    "presence_penalty": 2,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "cat", "schema": {}, "strict": True}},
    "safety_identifier": "u1",
    "seed": 5,
    "service_tier": "flex",
    "stop": ["a", "b"],
    "temperature": 2,
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [LOOK]}},
    "tools": [LOOK, DRAW],
    "top_logprobs": 20,
    "top_p": 0,
    "user": "u1",
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
}


OTHERS = {"model", "messages", "max_tokens", "metadata", "moderation", "store", "stream_options"}


def test_every_parameter_of_the_sdk_is_covered() -> None:
    assert KNOWN.keys() | OTHERS == CompletionCreateParamsBase.__annotations__.keys()


def test_every_valid_parameter_is_forwarded(api: Api, script: Script) -> None:
    script.then(whole(completion("Hello")))
    assert api.post(CHAT, {"model": script.model, "messages": [HI], **KNOWN}).status_code == 200
    # The output limit has the name that most servers know.
    expected = {"max_tokens" if name == "max_completion_tokens" else name: value for name, value in KNOWN.items()}
    assert {name: script.bodies[0].get(name) for name in expected} == expected


# -- capabilities of models -------------------------------------------------------------------------------------------

EXTRA: dict[str, Any] = {
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize("name", EXTRA)
def test_extra_sampling_is_rejected_for_models_without_it(api: Api, script: Script, name: str) -> None:
    body = {"model": script.model, "messages": [HI], name: EXTRA[name]}
    assert rejection(api, body) == (400, name, "unsupported_parameter")


def test_extra_sampling_is_forwarded_to_models_that_support_it(api: Api, script: Script) -> None:
    describe(script, extra_sampling=True).then(whole(completion("Hello")))
    assert api.post(CHAT, {"model": script.model, "messages": [HI], **EXTRA}).status_code == 200
    assert {name: script.bodies[0].get(name) for name in EXTRA} == EXTRA


FILE: dict[str, Any] = {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,QQ=="}}
CANNOT: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"vision": False}, {"messages": [HI, of_user(IMAGE)]}, "messages[1].content[0]", "unsupported_value"),
    ({"max_images": 1}, {"messages": [of_user(IMAGE, IMAGE)]}, "messages[0].content[1]", "unsupported_value"),
    ({"files": False}, {"messages": [of_user(FILE)]}, "messages[0].content[0]", "unsupported_value"),
    (
        {"files": True},
        {"messages": [of_user({"type": "file", "file": {"file_id": "file-1"}})]},
        "messages[0].content[0].file.file_id",
        "unsupported_value",
    ),
    ({"logprobs": False}, {"logprobs": True}, "logprobs", "unsupported_parameter"),
    ({"reasoning_efforts": ["low"]}, {"reasoning_effort": "high"}, "reasoning_effort", "unsupported_value"),
]


@pytest.mark.parametrize(("can", "given", "param", "code"), CANNOT, ids=lambda value: str(value)[:40])
def test_unsupported_features_of_a_model_are_rejected(
    api: Api, script: Script, can: dict[str, Any], given: dict[str, Any], param: str, code: str
) -> None:
    describe(script, **can)
    assert rejection(api, {"model": script.model, "messages": [HI], **given}) == (400, param, code)


def test_files_are_forwarded_to_models_that_support_them(api: Api, script: Script) -> None:
    describe(script, files=True).then(whole(completion("Hello")))
    assert api.post(CHAT, {"model": script.model, "messages": [of_user(FILE)]}).status_code == 200
    assert script.messages[0] == [of_user(FILE)]


@pytest.mark.parametrize(("knows", "role"), [(True, "developer"), (False, "system")])
def test_developer_messages_become_system_messages_for_older_models(
    api: Api, script: Script, knows: bool, role: str
) -> None:
    describe(script, developer_role=knows).then(whole(completion("Hello")))
    messages = [{"role": "developer", "content": "Be brief."}, HI]
    assert api.post(CHAT, {"model": script.model, "messages": messages}).status_code == 200
    assert script.messages[0] == [{"role": role, "content": "Be brief."}, HI]

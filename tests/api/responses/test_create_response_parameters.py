"""Every parameter of `POST /v1/responses` is honoured, refused, or only stored and echoed, if that is its meaning."""

from typing import Any

import pytest

from responses.schema import CreateResponse
from tests.support.api import Api, error
from tests.support.chunks import chunk
from tests.support.upstream import Script, stream

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True},
}
BARE_TOOL = {"type": "function", "name": "look"}
JSON_SCHEMA = {"type": "json_schema", "name": "thing", "schema": SCHEMA}

HONOURED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # Parameters of the request, parameters for the upstream, and values in the response.
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}, {"temperature": 0.5}),
    "an integer as a temperature": ({"temperature": 0}, {"temperature": 0}, {"temperature": 0}),
    "top_p": ({"top_p": 0.25}, {"top_p": 0.25}, {"top_p": 0.25}),
    "presence_penalty": ({"presence_penalty": -2}, {"presence_penalty": -2}, {"presence_penalty": -2}),
    "frequency_penalty": ({"frequency_penalty": 2}, {"frequency_penalty": 2}, {"frequency_penalty": 2}),
    "max_output_tokens": ({"max_output_tokens": 16}, {"max_tokens": 16}, {"max_output_tokens": 16}),
    "service_tier": ({"service_tier": "flex"}, {"service_tier": "flex"}, {"service_tier": "default"}),
    "safety_identifier": ({"safety_identifier": "u1"}, {"safety_identifier": "u1"}, {"safety_identifier": "u1"}),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}),
    "user": ({"user": "u1"}, {"user": "u1"}, {"user": "u1"}),
    "reasoning": (
        {"reasoning": {"effort": "low"}},
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "low", "summary": None}},
    ),
    "a summary as it is to be had": (
        {"reasoning": {"summary": "auto"}},
        {},
        {"reasoning": {"effort": None, "summary": "auto"}},
    ),
    "the older name of the summary": (
        {"reasoning": {"generate_summary": "auto"}},
        {},
        {"reasoning": {"effort": None, "summary": "auto"}},
    ),
    "which reasoning is read again": (
        {"reasoning": {"context": "all_turns", "mode": "standard"}},
        {},
        {"reasoning": {"effort": None, "summary": None, "context": "all_turns", "mode": "standard"}},
    ),
    "a context of the server's choice": (
        {"reasoning": {"context": "auto"}},
        {},
        {"reasoning": {"effort": None, "summary": None, "context": "current_turn"}},
    ),
    "prompt_cache_options": (
        {"prompt_cache_options": {"mode": "explicit"}},
        {"prompt_cache_options": {"mode": "explicit"}},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    ),
    "a comparison of caches": (
        {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
        {},
        {
            "prompt_cache_options": {"mode": "implicit", "ttl": "30m", "comparison_response_id": "resp_1"},
            "prompt_cache_diagnostics": {"type": "unavailable"},
        },
    ),
    "prompt_cache_retention": (
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_retention": "24h"},
    ),
    "images as they are": (
        {"image": {"context_compression": "auto"}},
        {},
        {"image": {"context_compression": "disabled"}},
    ),
    "the access that everybody has": (
        {"access_programs": {"cyber": "standard"}},
        {},
        {"access_programs": {"cyber": "standard"}},
    ),
    "an answer": ({"generate": True}, {}, {}),
    "verbosity": (
        {"text": {"verbosity": "low"}},
        {"verbosity": "low"},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    ),
    "plain text": (
        {"text": {"format": {"type": "text"}}},
        {},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
    ),
    "some JSON": (
        {"text": {"format": {"type": "json_object"}}},
        {"response_format": {"type": "json_object"}},
        {"text": {"format": {"type": "json_object"}, "verbosity": "medium"}},
    ),
    "JSON of a schema": (
        {"text": {"format": {**JSON_SCHEMA, "description": "A thing.", "strict": True}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "thing", "description": "A thing.", "schema": SCHEMA, "strict": True},
            }
        },
        {"text": {"format": {**JSON_SCHEMA, "description": "A thing.", "strict": True}, "verbosity": "medium"}},
    ),
    "tools": ({"tools": [TOOL]}, {"tools": [CHAT_TOOL]}, {"tools": [TOOL]}),
    "a tool with nothing but a name": (
        {"tools": [BARE_TOOL]},
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"tools": [{**BARE_TOOL, "description": None, "parameters": None, "strict": None}]},
    ),
    "tool_choice": (
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [CHAT_TOOL], "tool_choice": "required"},
        {"tool_choice": "required"},
    ),
    "one tool forced": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}},
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tool_choice": {"type": "function", "name": "look"}},
    ),
    "parallel_tool_calls": (
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"tools": [CHAT_TOOL], "parallel_tool_calls": False},
        {"parallel_tool_calls": False},
    ),
    "parallel_tool_calls without tools": ({"parallel_tool_calls": False}, {}, {"parallel_tool_calls": False}),
    "logprobs": (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 2},
        {"top_logprobs": 2},
    ),
    "max_tool_calls": ({"max_tool_calls": 3}, {}, {"max_tool_calls": 3}),
    "truncation": ({"truncation": "auto"}, {}, {"truncation": "auto"}),
    "background": ({"background": False}, {}, {"background": False}),
    "metadata": ({"metadata": {"a": "b"}}, {}, {"metadata": {"a": "b"}}),
    "store": ({"store": False}, {}, {"store": False}),
    "stream": ({"stream": False}, {}, {}),
}


@pytest.mark.parametrize("name", HONOURED)
def test_parameters_are_honoured(api: Api, script: Script, name: str) -> None:
    sent, upstream, shown = HONOURED[name]
    if sent.get("tool_choice") is None:
        script.say('{"a": "b"}')
    else:
        script.call(look="{}")
    response = api.create(model=script.model, input="Hi", **sent)
    always = {"model", "messages", "stream", "stream_options"}
    assert {key: value for key, value in script.bodies[0].items() if key not in always} == upstream
    assert {key: response[key] for key in shown} == shown


def test_null_counts_as_absent(api: Api, script: Script) -> None:
    """OpenAI's own clients send null for parameters that were not set."""
    script.say("Hello").say("Hello")
    nulls = dict.fromkeys(name for name in CreateResponse.model_fields if name not in {"model", "input"})
    with_nulls = api.create(model=script.model, input="Hi", **nulls)
    without = api.create(model=script.model, input="Hi")
    own = ("id", "created_at", "completed_at", "output")
    assert [with_nulls | dict.fromkeys(own)] == [without | dict.fromkeys(own)]
    assert script.bodies[0] == script.bodies[1]


def test_null_counts_as_absent_for_unsupported_parameters(api: Api, script: Script) -> None:
    script.say("Hello")
    refused = dict.fromkeys(REFUSED)
    api.create(model=script.model, input="Hi", **refused)


REFUSED: dict[str, tuple[Any, str]] = {
    "multi_agent": ({}, "multi_agent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_parameters_are_rejected_by_name(api: Api, name: str) -> None:
    value, param = REFUSED[name]
    answer = api.post("/responses", {"model": "m", "input": "Hi", name: value})
    assert error(answer) == (400, param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"image": {"context_compression": "enabled"}}, "image.context_compression"),
        ({"tools": [{"type": "programmatic_tool_calling"}]}, "tools[0].type"),
        (
            {"tools": [BARE_TOOL, {"type": "image_generation"}], "tool_choice": {"type": "image_generation"}},
            "tools[1].type",
        ),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"include": ["web_search_call.rumours"]}, "include[0]"),
    ],
)
def test_unsupported_values_are_rejected(api: Api, body: dict[str, Any], param: str) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", **body})
    status, where, code = error(answer)
    assert (status, where) == (400, param)
    assert code in {"unsupported_value", "invalid_value"}


def test_logprobs_are_returned_on_request(api: Api, script: Script) -> None:
    token = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
    written = chunk(content="Hi", finish="stop")
    written["choices"][0]["logprobs"] = {"content": [{**token, "top_logprobs": [token]}]}
    script.then(stream(written)).then(stream(written))
    asked = api.create(model=script.model, input="Hi", include=["message.output_text.logprobs"], top_logprobs=1)
    silent = api.create(model=script.model, input="Hi")
    assert asked["output"][0]["content"][0]["logprobs"] == [{**token, "top_logprobs": [token]}]
    assert silent["output"][0]["content"][0]["logprobs"] == []
    assert api.retrieve(asked["id"]) == asked


def test_a_forced_tool_must_be_offered(api: Api) -> None:
    body = {"model": "m", "input": "Hi", "tools": [BARE_TOOL], "tool_choice": {"type": "function", "name": "listen"}}
    assert error(api.post("/responses", body))[:2] == (400, "tool_choice")


def test_tool_choice_required_without_tools_is_rejected(api: Api) -> None:
    assert error(api.post("/responses", {"model": "m", "input": "Hi", "tool_choice": "required"}))[:2] == (
        400,
        "tool_choice",
    )


def test_duplicate_tool_names_are_rejected(api: Api) -> None:
    body = {"model": "m", "input": "Hi", "tools": [BARE_TOOL, BARE_TOOL]}
    assert error(api.post("/responses", body))[:2] == (400, "tools[1].name")


def test_stream_options_without_a_stream_are_rejected(api: Api) -> None:
    body = {"model": "m", "input": "Hi", "stream_options": {"include_obfuscation": False}}
    assert error(api.post("/responses", body))[:2] == (400, "stream_options")


def test_the_cyber_access_program_is_refused(api: Api) -> None:
    body = {"model": "m", "input": "Hi", "access_programs": {"cyber": "daybreak_red"}}
    assert error(api.post("/responses", body)) == (403, "access_programs.cyber", "access_program_not_granted")


@pytest.mark.parametrize("how", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
def test_a_response_without_output_can_be_continued(api: Api, script: Script, how: dict[str, Any]) -> None:
    warm = api.create(model=script.model, input="My name is Ada.", **how)
    assert (warm["status"], warm["output"], warm["usage"]) == ("completed", [], None)
    script.say("Ada")
    api.create(model=script.model, input="What is my name?", previous_response_id=warm["id"])
    assert [message["content"] for message in script.messages[0]] == ["My name is Ada.", "What is my name?"]

"""Every body and event against the SDK's types, strictly: nothing missing, no wrong type, no key that they do not know.

The SDK itself is lenient: it would hand a user whatever we send.
"""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel

from tests.support.api import Api, ok
from tests.support.chunks import calls, chunk, completion, text
from tests.support.upstream import Answer, Cut, Script, refusal, stream, whole

EVENTS: dict[str, type[BaseModel]] = {
    get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}
# Beyond the SDK's types: from the wire and the Open Responses document, and the name that older SDKs read.
EXTRAS = {"store", "presence_penalty", "frequency_penalty", "obfuscation", "name", "bytes"}
LOGPROB = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
LOGPROBS = {"content": [{**LOGPROB, "top_logprobs": [LOGPROB]}]}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"type": "json_schema", "name": "thing", "schema": {"type": "object"}, "strict": True}


def with_logprobs() -> dict[str, Any]:
    written = chunk(content="Hi", finish="stop")
    written["choices"][0]["logprobs"] = LOGPROBS
    return written


CASES: dict[str, tuple[Answer, dict[str, Any]]] = {
    "text": (stream(*text("Hel", "lo")), {}),
    "everything": (
        stream(*text("Hel", "lo")),
        {
            "instructions": "Be kind.",
            "metadata": {"a": "b"},
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "look"},
            "text": {"format": SCHEMA, "verbosity": "low"},
            "reasoning": {"effort": "low"},
            "temperature": 0,
            "max_output_tokens": 16,
            "max_tool_calls": 1,
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "service_tier": "flex",
        },
    ),
    "calls": (stream(*calls(look="{}", listen="{}")), {}),
    "reasoning": (stream(chunk(reasoning="Hm."), *text("Yes")), {}),
    "a refusal": (stream(chunk(refusal="No."), chunk(finish="stop")), {}),
    "logprobs": (stream(with_logprobs()), {"include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    "cut by its length": (stream(*text("Hel", finish="length")), {}),
    "a failure": (stream(chunk(content="Hel"), Cut()), {}),
    "a refused request": (refusal(400), {}),
}


def check(kind: type[BaseModel], body: dict[str, Any]) -> None:
    """The body is what the type says, and the type knows all of it."""
    assert set(unknown(kind.model_validate(body, strict=True))) <= EXTRAS


def unknown(value: object) -> Iterator[str]:
    """The keys that the types do not know, at any depth."""
    match value:
        case BaseModel():
            yield from value.model_extra or {}
            for name in type(value).model_fields:
                yield from unknown(getattr(value, name))
        case list():
            for entry in value:
                yield from unknown(entry)


@pytest.mark.parametrize("case", CASES)
def test_each_event_is_of_its_type(api: Api, script: Script, case: str) -> None:
    answer, asks = CASES[case]
    script.then(answer)
    for event in api.events(model=script.model, input="Hi", **asks):
        # The wire's nested error is the one event that the SDK does not type: it raises it.
        if event["type"] != "error":
            check(EVENTS[event["type"]], event)


@pytest.mark.parametrize("case", CASES)
def test_what_is_stored_is_a_response(api: Api, script: Script, case: str) -> None:
    answer, asks = CASES[case]
    script.then(answer)
    events = api.events(model=script.model, input="Hi", **asks)
    check(Response, api.retrieve(events[0]["response"]["id"]))
    for listed in ok(api.get("/responses"))["data"]:
        check(Response, listed)


def test_input_items_are_a_list_of_items(api: Api, script: Script) -> None:
    script.call(look="{}").say("Bye.")
    first = api.create(model=script.model, input="Hi")
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    outputs = [{"type": "function_call_output", "call_id": "call_look", "output": [image]}]
    said = [{"role": "assistant", "content": "Hm."}, {"role": "user", "content": [image]}]
    second = api.create(model=script.model, input=[*outputs, *said], previous_response_id=first["id"])
    check(ResponseItemList, ok(api.get(f"/responses/{second['id']}/input_items")))


def test_models_are_models(api: Api) -> None:
    for model in ok(api.get("/models"))["data"]:
        check(Model, model)


def test_completions_are_completions(api: Api, script: Script) -> None:
    done = {**completion("Hello"), "object": "chat.completion"}
    script.then(whole(done), whole(done))
    body = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}]}
    check(ChatCompletion, ok(api.post("/chat/completions", body)))
    with api.stream("/chat/completions", **body) as live:
        for piece in live.events:
            check(ChatCompletionChunk, piece)

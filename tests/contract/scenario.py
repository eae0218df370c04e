"""Typical use of the OpenAI SDK. It needs only the SDK, so any of its versions can run it:

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python scenario.py '{"create": "model", …}'

runs each step against its model and prints the SDK's version.
"""

# ruff: noqa: PT017 - pytest is not there

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

TOOL: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    "strict": False,
}


OUTPUT_MESSAGES = ["function_call_output", "message", "message"]


class Cat(BaseModel):
    """Schema for `parse`."""

    name: str
    lives: int


def create(client: OpenAI, model: str) -> None:
    """One response as JSON."""
    response = client.responses.create(model=model, input="Hi", instructions="Be kind.", metadata={"a": "b"})
    assert response.output_text == "Hello"
    assert (response.status, response.metadata, response.model) == ("completed", {"a": "b"}, model)
    assert response.usage is not None
    assert response.usage.total_tokens == 10
    assert (response._request_id or "").startswith("req_")


def retrieve(client: OpenAI, model: str) -> None:
    """A retrieved response equals the created one."""
    created = client.responses.create(model=model, input="Hi")
    assert client.responses.retrieve(created.id) == created


def stream(client: OpenAI, model: str) -> None:
    """`create(stream=True)` yields the stored response."""
    events = list(client.responses.create(model=model, input="Hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
    last = events[-1]
    assert last.type == "response.completed"
    assert client.responses.retrieve(last.response.id) == last.response


def stream_helper(client: OpenAI, model: str) -> None:
    """`responses.stream()`, which accumulates and checks the events."""
    with client.responses.stream(model=model, input="Hi") as live:
        deltas = [event.delta for event in live if event.type == "response.output_text.delta"]
        final = live.get_final_response()
    assert "".join(deltas) == final.output_text == "Hello"
    assert client.responses.retrieve(final.id).output_text == "Hello"


def stream_left_early(client: OpenAI, model: str) -> None:
    """A stream that is closed after its first words."""
    with client.responses.stream(model=model, input="Hi") as live:
        assert next(event.delta for event in live if event.type == "response.output_text.delta") == "Hel"


def tools(client: OpenAI, model: str) -> None:
    """A function is called, and its output is fed back with the whole history, as the SDK dumps it."""
    first = client.responses.create(model=model, input="Look!", tools=[TOOL])
    call = first.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look", {"at": "it"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "a cat"}
    history: Any = [{"role": "user", "content": "Look!"}, *[item.model_dump() for item in first.output], output]
    second = client.responses.create(model=model, input=history, tools=[TOOL])
    assert second.output_text == "A cat."


def streamed_tools(client: OpenAI, model: str) -> None:
    """The helper accumulates parallel calls; the next response takes their outputs."""
    listen: Any = {**TOOL, "name": "listen"}
    with client.responses.stream(model=model, input="Look!", tools=[TOOL, listen]) as live:
        first = live.get_final_response()
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "a cat"}
        for item in first.output
        if item.type == "function_call"
    ]
    assert len(outputs) == 2
    second = client.responses.create(model=model, input=outputs, previous_response_id=first.id)
    assert second.output_text == "Two cats."


def feed_back(client: OpenAI, model: str) -> None:
    """The listed input items, dumped with every null of the SDK, are an input as well."""
    first = client.responses.create(model=model, input="Look!", tools=[TOOL])
    call_id: Any = getattr(first.output[-1], "call_id", None)
    image: Any = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    parts: Any = [{"type": "input_text", "text": "a"}, image]
    output: Any = {"type": "function_call_output", "call_id": call_id, "output": parts}
    seen: Any = {"role": "user", "content": parts}
    second = client.responses.create(model=model, input=[output, seen], previous_response_id=first.id)
    shown: Any = ["message.input_image.image_url"]
    listed = list(client.responses.input_items.list(second.id, order="asc", include=shown))
    dumped: Any = [item.model_dump() for item in [*listed, *second.output]]
    assert [item["type"] for item in dumped] == ["message", *[item.type for item in first.output], *OUTPUT_MESSAGES]
    assert client.responses.create(model=model, input=dumped).output_text == "Bye."


def chain(client: OpenAI, model: str) -> None:
    """Each response continues the previous one; the input items of the last one list the whole chain, page by page."""
    previous: str | None = None
    for word in ("a", "b", "c"):
        previous = client.responses.create(model=model, input=word, previous_response_id=previous).id
    assert previous is not None
    items = list(client.responses.input_items.list(previous, limit=2, order="asc"))
    texts = [part.text for item in items for part in item.content]  # type: ignore[union-attr]
    assert texts == ["a", "1", "b", "2", "c"]


def delete(client: OpenAI, model: str) -> None:
    """A deleted response no longer exists."""
    created = client.responses.create(model=model, input="Hi")
    client.responses.delete(created.id)
    try:
        client.responses.retrieve(created.id)
    except openai.NotFoundError as error:
        assert error.status_code == 404
        assert (error.request_id or "").startswith("req_")
    else:
        raise AssertionError("it is still there")


def parse(client: OpenAI, model: str) -> None:
    """Structured output into a pydantic class, whole and streamed."""
    parsed = client.responses.parse(model=model, input="A cat!", text_format=Cat)
    assert parsed.output_parsed == Cat(name="Tom", lives=9)
    with client.responses.stream(model=model, input="A cat!", text_format=Cat) as live:
        assert live.get_final_response().output_parsed == Cat(name="Tom", lives=9)


def errors(client: OpenAI, model: str) -> None:
    """Errors are raised as the SDK's exceptions, with message, code and parameter."""
    wrong: Any = "hot"
    try:
        client.responses.create(model=model, input="Hi", temperature=wrong)
    except openai.BadRequestError as error:
        assert (error.param, error.code, error.type) == ("temperature", "invalid_type", "invalid_request_error")
    else:
        raise AssertionError("it was accepted")
    try:
        client.with_options(api_key="sk-wrong").models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"
    else:
        raise AssertionError("it was let in")


def broken_stream(client: OpenAI, model: str) -> None:
    """A broken upstream raises at the error event, after the events before it."""
    seen: list[str] = []
    try:
        for event in client.responses.create(model=model, input="Hi", stream=True):
            seen.append(event.type)
    except openai.APIError as error:
        assert error.code == "server_error"
        assert seen[-1] == "response.output_item.done"
    else:
        raise AssertionError(seen)


def raw(client: OpenAI, model: str) -> None:
    """The raw response has headers and can be parsed."""
    answer = client.responses.with_raw_response.create(model=model, input="Hi")
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.parse().output_text == "Hello"


def chat(client: OpenAI, model: str) -> None:
    """Chat completions, whole and streamed."""
    messages: Any = [{"role": "user", "content": "Hi"}]
    assert client.chat.completions.create(model=model, messages=messages).choices[0].message.content == "Hello"
    chunks = list(client.chat.completions.create(model=model, messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"


def models(client: OpenAI, model: str) -> None:
    """Names with slashes are listed and found."""
    assert model in [listed.id for listed in client.models.list()]
    assert client.models.retrieve(model).id == model


def asynchronous(client: OpenAI, model: str) -> None:
    """The asynchronous client does the same."""
    asyncio.run(_asynchronous(AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0), model))


async def _asynchronous(client: AsyncOpenAI, model: str) -> None:
    async with client:
        created = await client.responses.create(model=model, input="Hi")
        assert created.output_text == "Hello"
        async with client.responses.stream(model=model, input="b", previous_response_id=created.id) as live:
            final = await live.get_final_response()
        assert final.output_text == "Hello again"
        items = [item async for item in client.responses.input_items.list(final.id, limit=1)]
        assert len(items) == 3
        await client.responses.delete(created.id)


STEPS: dict[str, Callable[[OpenAI, str], None]] = {
    step.__name__: step
    for step in (
        create,
        retrieve,
        stream,
        stream_helper,
        stream_left_early,
        tools,
        streamed_tools,
        feed_back,
        chain,
        delete,
        parse,
        errors,
        broken_stream,
        raw,
        chat,
        models,
        asynchronous,
    )
}


if __name__ == "__main__":
    with OpenAI(max_retries=0) as sdk:
        for name, its_model in json.loads(sys.argv[1]).items():
            STEPS[name](sdk, its_model)
    sys.stdout.write(openai.__version__)

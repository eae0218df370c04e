"""The unmodified `openai` SDK with the demo upstream."""

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from demo_upstream.app import running

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say hello world"}]
TIME: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
async def client() -> AsyncIterator[AsyncOpenAI]:
    async with running() as url, AsyncOpenAI(base_url=url, api_key="any key", max_retries=0) as client:
        yield client


async def test_the_sdk_gets_a_completion(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(model="demo-d0", messages=HELLO)
    assert completion.choices[0].message.content == "hello world"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 5


async def test_the_sdk_streams_a_completion(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == ["", "hello", " world", None]
    assert chunks[-1].usage is not None


async def test_the_sdks_stream_helper_collects_calls(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="demo-d0", messages=[{"role": "user", "content": "get_time city=Rome"}], tools=[TIME]
    ) as stream:
        completion = await stream.get_final_completion()
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert (calls[0].function.name, calls[0].function.arguments) == ("get_time", '{"city": "Rome"}')


class Person(BaseModel):
    name: str
    age: int


async def test_the_sdk_parses_structured_output(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.parse(
        model="demo-d0", messages=[{"role": "user", "content": "name=Ada, 36"}], response_format=Person
    )
    assert completion.choices[0].message.parsed == Person(name="Ada", age=36)


async def test_the_sdk_gets_embeddings(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="demo-embedding", input=["blue whale", "grey whale"])
    assert [len(entry.embedding) for entry in answer.data] == [256, 256]


async def test_the_sdk_lists_and_retrieves_models(client: AsyncOpenAI) -> None:
    assert "demo" in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve("demo")).owned_by == "demo"


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("demo-embedding", openai.BadRequestError),
        ("unknown", openai.NotFoundError),
    ],
)
async def test_errors_are_raised_as_the_sdks_types(
    client: AsyncOpenAI, model: str, error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error):
        await client.chat.completions.create(model=model, messages=HELLO)

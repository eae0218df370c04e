"""The SDK's `chat.completions` resource: stored completions, and the helpers that stream and parse."""

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.support.chunks import calls, completion, text
from tests.support.upstream import Script, stream, whole

HI: Any = [{"role": "user", "content": "Hi"}]
CAT = '{"name": "Tom", "lives": 9}'


class Cat(BaseModel):
    """Schema for parsed answers."""

    name: str
    lives: int


def create(client: OpenAI, script: Script, **more: Any) -> ChatCompletion:
    """Create a stored completion."""
    script.then(whole(completion("Hello")))
    made: ChatCompletion = client.chat.completions.create(model=script.model, messages=HI, store=True, **more)
    return made


def test_stored_completions_are_listed_page_by_page(client: OpenAI, script: Script) -> None:
    made = [create(client, script, metadata={"number": str(number)}) for number in range(3)]
    assert list(client.chat.completions.list(limit=2)) == made
    assert [one.id for one in client.chat.completions.list(order="desc", limit=1)] == [one.id for one in made[::-1]]
    assert list(client.chat.completions.list(metadata={"number": "1"}, model=script.model)) == [made[1]]


def test_a_stored_completion_is_retrieved_updated_and_deleted(client: OpenAI, script: Script) -> None:
    made = create(client, script)
    assert client.chat.completions.retrieve(made.id) == made
    assert client.chat.completions.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    gone = client.chat.completions.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "chat.completion.deleted")
    with pytest.raises(NotFoundError):
        client.chat.completions.retrieve(made.id)


def test_the_messages_of_a_stored_completion_are_listed(client: OpenAI, script: Script) -> None:
    parts: Any = [{"type": "text", "text": "Hi"}]
    script.then(whole(completion("Hello")))
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    made = client.chat.completions.create(model=script.model, messages=messages, store=True)
    system, user = client.chat.completions.messages.list(made.id, limit=1)
    assert (system.role, system.content, system.content_parts) == ("system", "Be brief.", None)
    assert user.content_parts is not None
    assert [part.to_dict() for part in user.content_parts] == parts


def test_the_stream_helper_yields_the_stored_completion(client: OpenAI, script: Script) -> None:
    script.then(stream(*text("Hel", "lo")))
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(model=script.model, messages=HI, store=True, stream_options=options) as live:
        text_of_deltas = "".join(event.delta for event in live if event.type == "content.delta")
        final = live.get_final_completion()
    kept = client.chat.completions.retrieve(final.id)
    assert kept.choices[0].message.content == final.choices[0].message.content == text_of_deltas == "Hello"
    assert kept.usage == final.usage is not None


def test_the_stream_helper_yields_the_stored_tool_calls(client: OpenAI, script: Script) -> None:
    script.then(stream(*calls(look='{"at": "it"}', hear="{}")))
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "hear")]
    with client.chat.completions.stream(model=script.model, messages=HI, store=True, tools=tools) as live:
        final = live.get_final_completion()
    kept = client.chat.completions.retrieve(final.id).choices[0].message.tool_calls or []
    called = [
        (call.id, call.function.name, call.function.arguments) for call in final.choices[0].message.tool_calls or []
    ]
    assert called == [("call_look", "look", '{"at": "it"}'), ("call_hear", "hear", "{}")]
    assert [
        (call.id, call.function.name, call.function.arguments) for call in kept if call.type == "function"
    ] == called


def test_answers_are_parsed(client: OpenAI, script: Script) -> None:
    script.then(whole(completion(CAT)), stream(*text(CAT)))
    parsed = client.chat.completions.parse(model=script.model, messages=HI, response_format=Cat)
    assert parsed.choices[0].message.parsed == Cat(name="Tom", lives=9)
    with client.chat.completions.stream(model=script.model, messages=HI, response_format=Cat) as live:
        assert live.get_final_completion().choices[0].message.parsed == Cat(name="Tom", lives=9)
    assert script.bodies[0]["response_format"]["json_schema"]["name"] == "Cat"


def test_a_dumped_sdk_message_is_accepted_as_input(client: OpenAI, script: Script) -> None:
    answer = completion("")
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer["choices"][0]["message"] |= {"content": None, "tool_calls": [call]}
    script.then(whole(answer), whole(completion("A cat.")))
    first = client.chat.completions.create(model=script.model, messages=HI)
    history: Any = [
        *HI,
        first.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": "call_1", "content": "x"},
    ]
    assert client.chat.completions.create(model=script.model, messages=history).choices[0].message.content == "A cat."


def test_a_rejected_stream_raises_before_its_first_chunk(client: OpenAI, script: Script) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model=script.model, messages=[], stream=True)
    assert (refused.value.param, refused.value.code) == ("messages", "empty_array")

"""The SDK's `conversations` resource, and the session of openai-agents that is based on it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.conversations import Message

from tests.support.api import Caller
from tests.support.upstream import Script
from tests.support.web import WebProcess

UNTRACED = RunConfig(tracing_disabled=True)


def text_of(item: object) -> str:
    """Return the text of a message."""
    assert isinstance(item, Message)
    text: str = item.content[0].text  # type: ignore[union-attr]
    return text


def test_a_conversation_is_created_retrieved_updated_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "cats"}, items=[{"role": "user", "content": "Hi"}])
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"topic": "dogs"}).metadata == {"topic": "dogs"}
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(made.id)


def test_items_are_added_retrieved_listed_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create()
    added = client.conversations.items.create(
        made.id, items=[{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    )
    assert [text_of(item) for item in added.data] == ["one", "two"]
    first, second = added.data
    assert client.conversations.items.retrieve(second.id or "", conversation_id=made.id) == second
    assert client.conversations.items.delete(first.id or "", conversation_id=made.id) == made
    assert list(client.conversations.items.list(made.id)) == [second]


def test_items_are_listed_across_pages(client: OpenAI) -> None:
    made = client.conversations.create()
    for number in range(5):
        client.conversations.items.create(made.id, items=[{"role": "user", "content": str(number)}])
    assert [text_of(item) for item in client.conversations.items.list(made.id, order="asc", limit=2)] == list("01234")
    assert [text_of(item) for item in client.conversations.items.list(made.id, limit=2)] == list("43210")


def test_include_is_applied(client: OpenAI) -> None:
    call = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["cats"], "results": []}
    made = client.conversations.create(items=[call])  # type: ignore[list-item]
    (plain,) = client.conversations.items.list(made.id)
    (full,) = client.conversations.items.list(made.id, include=["file_search_call.results"])
    assert [plain.to_dict()["results"], full.to_dict()["results"]] == [None, []]


# -- openai-agents -----------------------------------------------------------------------------------------------------


@function_tool
def look(place: str) -> str:
    """Look at a place."""
    return f"a cat on the {place}"


@pytest.fixture
async def asking(web: WebProcess, caller: Caller) -> AsyncIterator[AsyncOpenAI]:
    """The asynchronous SDK, which agents use."""
    async with AsyncOpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0) as client:
        yield client


@pytest.fixture
def session(asking: AsyncOpenAI) -> OpenAIConversationsSession:
    """A session that keeps its items in a conversation."""
    return OpenAIConversationsSession(openai_client=asking)


def texts(items: list[Any]) -> list[str]:
    """Return the texts of messages."""
    return [item["content"][0]["text"] for item in items]


@pytest.mark.slow
async def test_a_session_adds_reads_pops_and_clears(session: OpenAIConversationsSession) -> None:
    await session.add_items([{"role": "user", "content": str(number)} for number in range(45)])
    assert texts(await session.get_items(limit=2)) == ["43", "44"]
    assert texts([await session.pop_item()]) == ["44"]
    assert texts(await session.get_items()) == [str(number) for number in range(44)]
    await session.clear_session()
    assert await session.get_items() == []


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_remembers_through_its_session(
    asking: AsyncOpenAI, session: OpenAIConversationsSession, script: Script, streamed: bool
) -> None:
    script.call(look='{"place": "sofa"}').say("A ", "cat.").say("You are welcome.")
    model = OpenAIResponsesModel(model=script.model, openai_client=asking)
    agent = Agent[Any](name="Watcher", model=model, tools=[look])
    for question in ("What is on the sofa?", "Thanks."):
        if streamed:
            running = Runner.run_streamed(agent, question, session=session, run_config=UNTRACED)
            assert [event async for event in running.stream_events()]
        else:
            await Runner.run(agent, question, session=session, run_config=UNTRACED)
    read = [(message["role"], message.get("content")) for message in script.messages[-1]]
    assert [role for role, _ in read] == ["user", "assistant", "tool", "assistant", "user"]
    assert [content for role, content in read if role in {"tool", "user"}][1:] == ["a cat on the sofa", "Thanks."]
    kept: list[Any] = await session.get_items()
    assert [item["type"] for item in kept] == [
        *("message", "function_call", "function_call_output", "message"),
        *("message", "message"),
    ]

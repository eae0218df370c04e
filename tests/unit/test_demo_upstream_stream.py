"""Formats of an answer: chunks, completion, usage, limits, logprobs, reasoning, pace."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo_upstream import tokens
from tests.support.demo_upstream import Demo, talking
from tests.support.machine_clock import machine_time

TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "required": ["city"]}}}
WITH_USAGE = {"include_usage": True}
SCENARIOS: list[dict[str, Any]] = [
    {"asked": "Tell me a joke."},
    {"asked": "call get_time in Rome and get_time in Oslo", "tools": [TIME]},
    {"asked": "say hi", "model": "demo-reasoning-d0"},
    {"asked": "say one two three four", "max_tokens": 3},
    {"asked": "call get_time in New York", "tools": [TIME], "max_tokens": 2},
    {"asked": "say one two three", "logprobs": True, "top_logprobs": 2},
    {"asked": "say one two three", "stop": "three"},
]


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


def deltas(chunks: list[Any], field: str) -> list[Any]:
    """Return one field of all deltas that have it."""
    return [choice["delta"][field] for chunk in chunks for choice in chunk["choices"] if field in choice["delta"]]


def folded(chunks: list[Any]) -> dict[str, Any]:
    """Return the message that the chunks add up to."""
    message: dict[str, Any] = {"role": deltas(chunks, "role")[0], "refusal": None}
    for field in ("content", "reasoning_content"):
        message[field] = "".join(deltas(chunks, field)) or None
    calls: list[Any] = []
    for (delta,) in deltas(chunks, "tool_calls"):
        if "id" in delta:
            calls.append({key: value for key, value in delta.items() if key != "index"})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return message | ({"tool_calls": calls} if calls else {})


@pytest.mark.slow
@given(st.text())
def test_tokens_concatenate_to_the_text(text: str) -> None:
    assert "".join(tokens.split(text)) == text


def test_a_token_is_a_word_with_the_space_before_it() -> None:
    assert tokens.split("two  words \n") == ["two", "  words", " \n"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: " ".join(map(str, scenario)))
async def test_a_stream_has_the_same_content_as_a_completion(demo: Demo, scenario: dict[str, Any]) -> None:
    whole = await demo.complete(**scenario)
    chunks = await demo.chunks(**scenario, stream_options=WITH_USAGE)
    choice = whole["choices"][0]
    message = {"reasoning_content": None, **choice["message"]}
    assert folded(chunks) == {**message, "content": message["content"] or None}
    assert chunks[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]


async def test_the_demo_streams_word_by_word(demo: Demo) -> None:
    chunks = await demo.chunks("say one two three")
    assert deltas(chunks, "content") == ["", "one", " two", " three"]
    assert deltas(chunks, "role") == ["assistant"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, None, "stop"]


async def test_chunks_share_an_id_and_a_time(demo: Demo) -> None:
    chunks = await demo.chunks("say one two")
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1


async def test_the_stream_consists_of_server_sent_events(demo: Demo) -> None:
    body = {"model": "demo-d0", "stream": True, "messages": [{"role": "user", "content": "say hi"}]}
    async with demo.session.post(f"{demo.url}/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_call_opens_with_its_name_and_continues_with_its_arguments(demo: Demo) -> None:
    chunks = await demo.chunks("call get_time in New York", tools=[TIME])
    (opening,), *rest = deltas(chunks, "tool_calls")
    assert opening["function"] == {"name": "get_time", "arguments": ""}
    assert [delta[0]["function"]["arguments"] for delta in rest] == ['{"city":', ' "New', ' York"}']


async def test_usage_comes_last_and_alone_and_only_on_request(demo: Demo) -> None:
    without = await demo.chunks("say hi")
    *others, last = await demo.chunks("say hi", stream_options=WITH_USAGE)
    assert all("usage" not in chunk for chunk in without)
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []


async def test_usage_counts_words(demo: Demo) -> None:
    history = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "say one two three"}]
    assert (await demo.complete(history))["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 3,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_usage_counts_tools_calls_and_images(demo: Demo) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"city": "Rome"}'}}
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    alone, offered = await demo.complete(history), await demo.complete(history, tools=[TIME])
    assert alone["usage"]["prompt_tokens"] == 1 + (1 + 2) + 1
    assert offered["usage"]["prompt_tokens"] > alone["usage"]["prompt_tokens"]


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_is_cut_at_the_token_limit(demo: Demo, limit: str) -> None:
    completion = await demo.complete("say one two three", **{limit: 2})
    assert completion["choices"][0]["message"]["content"] == "one two"
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 2


async def test_an_answer_that_just_fits_is_not_cut(demo: Demo) -> None:
    completion = await demo.complete("say one two three", max_tokens=3)
    assert completion["choices"][0]["finish_reason"] == "stop"


async def test_arguments_of_a_call_are_cut_at_the_token_limit(demo: Demo) -> None:
    completion = await demo.complete("call get_time in New York", tools=[TIME], max_tokens=2)
    assert completion["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":'
    assert completion["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("stop", "answer"), [(" two", "one"), (["never", "ree"], "one two th"), ("one", "")])
async def test_the_demo_ends_before_a_stop_sequence(demo: Demo, stop: object, answer: str) -> None:
    completion = await demo.complete("say one two three", stop=stop)
    assert completion["choices"][0]["message"]["content"] == answer
    assert completion["choices"][0]["finish_reason"] == "stop"


async def test_the_demo_reasons_before_it_answers(demo: Demo) -> None:
    chunks = await demo.chunks("say hi", model="demo-reasoning-d0", stream_options=WITH_USAGE)
    kinds = [next(iter(chunk["choices"][0]["delta"]), "") for chunk in chunks[1:-2]]
    thought = deltas(chunks, "reasoning_content")
    assert kinds == ["reasoning_content"] * len(thought) + ["content"]
    assert "the first that fits is “echoes”" in "".join(thought)
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(thought)}


async def test_reasoning_effort_determines_the_amount_of_reasoning(demo: Demo) -> None:
    spent = []
    for effort in ("none", "low", "medium", "high"):
        completion = await demo.complete("say hi", model="demo-reasoning-d0", reasoning_effort=effort)
        spent.append(completion["usage"]["completion_tokens_details"]["reasoning_tokens"])
    assert spent[0] == 0
    assert spent == sorted(set(spent))


async def test_reasoning_counts_against_the_token_limit(demo: Demo) -> None:
    completion = await demo.complete("say hi", model="demo-reasoning-d0", max_completion_tokens=4)
    message = completion["choices"][0]["message"]
    assert (message["content"], completion["choices"][0]["finish_reason"]) == ("", "length")
    assert message["reasoning_content"] == "I go through my"


async def test_the_demo_gives_a_logprob_for_each_token(demo: Demo) -> None:
    completion = await demo.complete("say hé two", logprobs=True, top_logprobs=3)
    first, second = completion["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["bytes"], second["token"]) == ("hé", [104, 195, 169], " two")
    assert first["logprob"] < 0
    assert [len(entry["top_logprobs"]) for entry in (first, second)] == [3, 3]
    assert first["top_logprobs"][0]["token"] == "hé"


async def test_logprobs_are_logarithms_of_probabilities(demo: Demo) -> None:
    completion = await demo.complete("say the cat of it", logprobs=True, top_logprobs=20)
    for entry in completion["choices"][0]["logprobs"]["content"]:
        chances = [math.exp(other["logprob"]) for other in entry["top_logprobs"]]
        assert sum(chances) <= 1
        assert len({other["token"] for other in entry["top_logprobs"]}) == 20


async def test_chunks_have_the_logprobs_of_the_completion(demo: Demo) -> None:
    scenario: dict[str, Any] = {"asked": "say one two", "logprobs": True}
    whole = await demo.complete(**scenario)
    chunks = await demo.chunks(**scenario)
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole["choices"][0]["logprobs"]["content"]
    assert streamed[0]["top_logprobs"] == []


async def test_calls_have_no_logprobs(demo: Demo) -> None:
    completion = await demo.complete("call get_time", tools=[TIME], logprobs=True)
    assert completion["choices"][0]["logprobs"] is None


async def test_the_model_name_sets_the_pace(demo: Demo) -> None:
    arrivals = []
    async for line in demo.lines("say one two three four", model="demo-d50"):
        if line != "[DONE]" and orjson.loads(line)["choices"][0]["delta"].get("content"):
            arrivals.append(time.monotonic())
    pauses = [later - earlier for earlier, later in pairwise(arrivals)]
    assert len(pauses) == 3
    assert sum(pauses) >= 0.14


async def test_a_completion_takes_as_long_as_the_stream(demo: Demo) -> None:
    begun = time.monotonic()
    await demo.ask("say one two three four", model="demo-d50")
    assert time.monotonic() - begun >= 0.2


async def test_answers_have_a_creation_time(demo: Demo) -> None:
    completion = await demo.complete("say hi")
    assert abs(completion["created"] - time.time()) < 60


@pytest.mark.parametrize("model", ["demo", "demo-d50", "demo-d5000"])
async def test_closing_a_stream_stops_it_immediately(demo: Demo, model: str) -> None:
    await demo.ask("say hi")
    idle = len(asyncio.all_tasks())
    async with aclosing(demo.lines("say " + "word " * 500, model=model)) as lines:
        await anext(lines)
    begun = machine_time()
    # The server runs in this event loop: a request in progress is a task of its own.
    while len(asyncio.all_tasks()) > idle:
        await asyncio.sleep(0.01)
        # Less than the pause of five seconds before the next token.
        assert machine_time() - begun < 4

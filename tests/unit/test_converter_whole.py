"""An answer that is not streamed gives the same items, calls and usage as the stream with the same content."""

from collections.abc import Iterable
from typing import Any

import pytest

from engine.converter.base import TurnConverter
from engine.converter.chat import ChatConverter
from engine.converter.responses_api import ResponsesConverter
from engine.converter.segments import ReasoningContent
from engine.events.types import Event
from engine.turn import CallForm, FunctionTool, Sampling, TurnResult
from gateway.chat.chunks import CompletionAccumulator
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.responses_upstream import answer, call_events, message_events, reasoning_events
from tests.support.runs import on_the_wire, without_ids
from tests.support.streams import assert_items
from tests.unit.test_responses_converter import converter as responses_converter

DETAILED = {
    "prompt_tokens": 9,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
HI = {"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "Ho", "logprob": -2.0}]}
SOURCE = {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2}
CITED = {"type": "url_citation", "url_citation": SOURCE}
SIGNED = {"extra_content": {"google": {"thought_signature": "sig"}}}
CUSTOM = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "draw", "input": "a cat"}}


def with_logprobs(piece: Chunk) -> Chunk:
    return {**piece, "choices": [{**piece["choices"][0], "logprobs": {"content": [HI]}}]}


STREAMS: dict[str, list[Chunk]] = {
    "text": text("Hel", "lo"),
    "text that is cut": text("Hel", "lo", finish="length"),
    "text that was filtered": text("Hel", finish="content_filter"),
    "nothing": text(),
    "a refusal": [chunk(refusal="No"), chunk(refusal="pe"), chunk(finish="stop"), usage()],
    "calls": calls(look='{"x": 1}', listen="{}"),
    "text and calls": [*text("Look:")[:2], *calls(look="{}")],
    "a custom call": [chunk(tool_calls=[CUSTOM]), chunk(finish="tool_calls"), usage()],
    "a legacy call": [chunk(function_call={"name": "look", "arguments": "{}"}), chunk(finish="function_call")],
    "calls with extras": [
        chunk(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{}"}, **SIGNED}]),
        chunk(finish="tool_calls"),
        usage(),
    ],
    "reasoning": [chunk(reasoning_content="Hm"), chunk(reasoning_content="."), *text("Hi")],
    "reasoning under another name": [chunk(reasoning="Hm."), *text("Hi")],
    "reasoning and calls": [chunk(reasoning_content="Hm."), *calls(look="{}")],
    "think tags": text("<think>Hm.</think>", "Hi"),
    "log probabilities": [with_logprobs(chunk(content="Hi")), chunk(finish="stop"), usage()],
    "citations": [chunk(content="Hi"), chunk(annotations=[CITED]), chunk(finish="stop"), usage()],
    "detailed usage": [*text("Hi")[:-1], usage(**DETAILED)],
    "no usage": text("Hi")[:-1],
    "a tier": [{**piece, "service_tier": "flex"} for piece in text("Hi")],
}


class Cipher:
    """A cipher that shows what it encrypts."""

    def encrypt(self, content: ReasoningContent) -> str:
        return repr(content)

    def decrypt(self, token: str) -> ReasoningContent | None:
        return None


def chat_converter(kind: str) -> ChatConverter:
    sampling = Sampling(
        tools=(FunctionTool(name="look"), FunctionTool(name="listen"), FunctionTool(name="draw", form=CallForm.CUSTOM)),
        logprobs=True,
        top_logprobs=1,
    )
    return ChatConverter(first_output_index=0, sampling=sampling, cipher=Cipher(), think_tags=kind == "think tags")


def result_of(converter: TurnConverter, events: Iterable[Event], *, done: bool) -> TurnResult:
    """End the turn and return its result, and assert that its events are a valid stream of its items."""
    wire = on_the_wire([*events, *converter.end(done=done)])
    result = converter.result()
    assert_items(wire)
    assert [event["item"] for event in wire if event["type"] == "response.output_item.done"] == result.items
    return result


def comparable(result: TurnResult) -> Any:
    """Return the result without the time of its first token, and without generated ids."""
    fields = {name: getattr(result, name) for name in ("finish", "finish_reason", "stop_sequence", "service_tier")}
    made = [(call.call_id, call.name, call.arguments) for call in result.calls]
    return fields, result.usage, result.failure, without_ids([result.items, made])


@pytest.mark.parametrize("kind", STREAMS)
def test_a_completion_gives_the_same_result_as_its_chunks(kind: str) -> None:
    streamed, whole, accumulator = chat_converter(kind), chat_converter(kind), CompletionAccumulator()
    events: list[Event] = []
    for piece in STREAMS[kind]:
        accumulator.add(piece)
        if not streamed.over:
            events += streamed.feed([piece])
    expected = result_of(streamed, events, done=True)
    result = result_of(whole, whole.whole(accumulator.completion()), done=False)
    assert comparable(result) == comparable(expected)
    assert result.first_token_at is None
    assert expected.first_token_at is not None or not expected.items


RESPONSES: dict[str, list[list[dict[str, Any]]]] = {
    "text": [message_events("Hel", "lo")],
    "a call": [call_events("look", '{"x":', "1}")],
    "reasoning, text and a call": [
        reasoning_events("Hm", ".", encrypted_content="theirs"),
        message_events("Hi", index=1),
        call_events("look", "{}", index=2),
    ],
    "nothing": [[]],
}


@pytest.mark.parametrize("kind", RESPONSES)
def test_a_response_gives_the_same_result_as_its_events(kind: str) -> None:
    pieces = [piece for piece in answer(*RESPONSES[kind]).pieces if isinstance(piece, dict)]
    streamed, whole = made_converter(), made_converter()
    expected = result_of(streamed, [event for piece in pieces for event in streamed.feed([piece])], done=True)
    output = [piece["item"] for piece in pieces if piece["type"] == "response.output_item.done"]
    body = {**pieces[-1]["response"], "output": output}
    result = result_of(whole, whole.whole(body), done=False)
    assert comparable(result) == comparable(expected)
    assert result.first_token_at is None


def made_converter() -> ResponsesConverter:
    return responses_converter(FunctionTool(name="look"))

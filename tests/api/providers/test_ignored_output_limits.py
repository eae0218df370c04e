"""Output limits that the upstream ignores: an answer is ended as soon as it certainly exceeds its limit."""

from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.chunks import chunk, completion, usage
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import McpServer
from tests.support.responses_upstream import (
    answer,
    call_events,
    done,
    function_call,
    message,
    message_events,
    unstreamed,
)
from tests.support.upstream import Answer, Gate, Script, stream, whole

LIMIT = 16
# The most characters that 16 tokens may have.
MOST_BYTES, MOST_BYTES_OF_FEW_PIECES = 6 * LIMIT + 64, 12 * LIMIT + 256
WORDS = [chunk(content="word ") for _ in range(1000)]
HI = [{"role": "user", "content": "Hi"}]


def endless(*first: dict[str, Any]) -> Answer:
    """Return an answer that writes until its client leaves."""
    return stream(*first, *WORDS, Gate())


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or ())


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_a_stream_ends_at_its_limit(api: Api, script: Script, worker: object, background: bool) -> None:
    script.then(endless())
    events = api.events(model=script.model, input="Hi", max_output_tokens=LIMIT, background=background)
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert LIMIT * 4 < len(text_of(response)) <= MOST_BYTES
    assert text_of(api.retrieve(response["id"])) == text_of(response)


def test_reasoning_counts_towards_the_limit(api: Api, script: Script) -> None:
    script.then(endless(*(chunk(reasoning_content="think ") for _ in range(100))))
    response = api.events(model=script.model, input="Hi", max_output_tokens=LIMIT)[-1]["response"]
    assert response["status"] == "incomplete"
    assert [item["type"] for item in response["output"]] == ["reasoning"]


@pytest.mark.parametrize(("reported", "most"), [(3, MOST_BYTES_OF_FEW_PIECES), (2000, MOST_BYTES)])
def test_a_document_is_cut_at_the_limit(api: Api, script: Script, reported: int, most: int) -> None:
    script.then(whole({**completion("word " * 1000), "usage": {"prompt_tokens": 7, "completion_tokens": reported}}))
    response = api.create(model=script.model, input="Hi", max_output_tokens=LIMIT)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert len(text_of(response)) == most
    assert response["usage"]["output_tokens"] == reported


def test_multibyte_characters_are_not_cut(api: Api, script: Script) -> None:
    script.then(whole(completion("港" * 1000)))
    response = api.create(model=script.model, input="Hi", max_output_tokens=LIMIT)
    assert set(text_of(response)) == {"港"}
    assert len(text_of(response)) == MOST_BYTES_OF_FEW_PIECES // 3


def test_an_answer_within_the_limit_is_complete_despite_long_words(api: Api, script: Script) -> None:
    script.then(stream(*(chunk(content=" straightforwardly") for _ in range(LIMIT)), chunk(finish="stop"), usage()))
    response = api.events(model=script.model, input="Hi", max_output_tokens=LIMIT)[-1]["response"]
    assert (response["status"], len(text_of(response))) == ("completed", 18 * LIMIT)


def test_a_call_beyond_the_limit_is_not_made(reaching: Api, script: Script, served: McpServer) -> None:
    opening = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "box__add", "arguments": '{"a":2,'}}
    more = [chunk(tool_calls=[{"index": 0, "function": {"arguments": "      "}}]) for _ in range(1000)]
    script.then(stream(chunk(tool_calls=[opening]), *more, Gate()))
    response = reaching.events(model=script.model, input="2+3?", tools=[tool(served)], max_output_tokens=LIMIT)[-1]
    assert response["response"]["status"] == "incomplete"
    assert served.calls == []


def test_a_message_ends_at_its_limit(api: Api, script: Script) -> None:
    script.then(endless())
    with api.stream("/messages", model=script.model, messages=HI, max_tokens=LIMIT) as live:
        events = live.rest()
    (delta,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    assert delta["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chat_completion_ends_at_its_limit(api: Api, script: Script, name: str) -> None:
    body = {"model": script.model, "messages": HI, name: LIMIT}
    script.then(endless())
    with api.stream("/chat/completions", **body) as live:
        choices = [event["choices"][0] for event in live.rest()]
    assert choices[-1]["finish_reason"] == "length"
    assert len("".join(choice["delta"].get("content") or "" for choice in choices)) <= MOST_BYTES + len("word ")
    script.then(whole(completion("word " * 1000)))
    (choice,) = ok(api.post("/chat/completions", body))["choices"]
    assert (choice["finish_reason"], len(choice["message"]["content"])) == ("length", MOST_BYTES_OF_FEW_PIECES)


def test_the_text_before_a_call_beyond_the_limit_is_complete(api: Api, script: Script) -> None:
    words = "Let me look. " * 24
    answer = completion(words)
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"' + "x" * 1000}}
    answer["choices"][0]["message"]["tool_calls"] = [call]
    script.then(whole(answer))
    body = {"model": script.model, "messages": HI, "max_tokens": LIMIT}
    (choice,) = ok(api.post("/chat/completions", body))["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", words)


WRITTEN: dict[str, tuple[Answer, int]] = {
    "a stream": (answer(message_events(*["word "] * 1000)), MOST_BYTES),
    "a stream without deltas": (answer([done(0, message("word " * 1000))]), MOST_BYTES_OF_FEW_PIECES),
    "only the end": (answer(output=[message("word " * 1000)]), MOST_BYTES_OF_FEW_PIECES),
    "a document": (unstreamed(message("word " * 1000)), MOST_BYTES_OF_FEW_PIECES),
    "a counted document": (
        unstreamed(message("word " * 1000), usage={"input_tokens": 7, "output_tokens": 2000}),
        MOST_BYTES,
    ),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_an_answer_of_a_responses_upstream_ends_at_its_limit(api: Api, responses_api_script: Script, what: str) -> None:
    written, most = WRITTEN[what]
    responses_api_script.then(written)
    response = api.events(model=responses_api_script.model, input="Hi", max_output_tokens=LIMIT)[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert len(text_of(response)) == most
    assert text_of(api.retrieve(response["id"])) == text_of(response)


@pytest.mark.parametrize("how", ["streamed", "whole"])
def test_a_call_of_a_responses_upstream_beyond_the_limit_is_not_made(
    reaching: Api, responses_api_script: Script, served: McpServer, how: str
) -> None:
    arguments = ['{"a":2,', *[" "] * 1000, '"b":3}']
    call = function_call("box__add", "".join(arguments))
    written = answer(call_events("box__add", *arguments)) if how == "streamed" else unstreamed(call)
    responses_api_script.then(written)
    body = {"model": responses_api_script.model, "input": "2+3?", "tools": [tool(served)], "max_output_tokens": LIMIT}
    assert reaching.create(**body)["status"] == "incomplete"
    assert served.calls == []


def test_an_answer_of_a_responses_upstream_within_the_limit_is_complete(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events(*[" straightforwardly"] * LIMIT)))
    response = api.create(model=responses_api_script.model, input="Hi", max_output_tokens=LIMIT)
    assert (response["status"], len(text_of(response))) == ("completed", 18 * LIMIT)


def test_an_answer_without_a_limit_is_complete(api: Api, script: Script) -> None:
    script.then(stream(*WORDS, chunk(finish="stop"), usage()))
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert (response["status"], len(text_of(response))) == ("completed", 5000)

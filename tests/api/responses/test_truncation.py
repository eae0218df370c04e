"""The `truncation` parameter: a context that is too long is refused, or loses its oldest items."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, refusal, whole

WORDS = "x" * 400  # a hundred tokens
TURNS = [{"role": role, "content": f"{number} {WORDS}"} for number, role in enumerate(["user", "assistant"] * 2)]
LONG: list[dict[str, Any]] = [{"role": "developer", "content": "Be kind."}, *TURNS, {"role": "user", "content": "Hi"}]


def first_words(script: Script, call: int = -1) -> list[str]:
    """Return the first word of each message the upstream received."""
    return [message["content"].split()[0] for message in script.bodies[call]["messages"]]


def test_input_beyond_the_context_window_is_refused_before_the_upstream_call(api: Api, script: Script) -> None:
    describe(script, context_window=250)
    answer = api.post("/responses", {"model": script.model, "input": LONG})
    assert error(answer) == (400, "input", "context_length_exceeded")
    assert "context window" in answer.json()["error"]["message"]


def test_auto_drops_the_oldest_messages(api: Api, script: Script) -> None:
    describe(script, context_window=250).say("Hello")
    response = api.create(model=script.model, input=LONG, truncation="auto")
    assert first_words(script) == ["Be", "2", "3", "Hi"]
    assert response["truncation"] == "auto"


def test_dropped_messages_stay_stored(api: Api, script: Script) -> None:
    describe(script, context_window=250).say("Hello")
    response = api.create(model=script.model, input=LONG, truncation="auto")
    assert len(api.input_items(response["id"])) == len(LONG)


def test_a_single_message_beyond_the_window_is_refused_with_auto(api: Api, script: Script) -> None:
    describe(script, context_window=250)
    body = {"model": script.model, "input": WORDS * 3, "truncation": "auto"}
    assert error(api.post("/responses", body)) == (400, "input", "context_length_exceeded")


def test_a_call_is_dropped_with_its_output(api: Api, script: Script) -> None:
    describe(script, context_window=250).say("Hello")
    call = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_a", "output": WORDS}
    api.create(
        model=script.model, input=[call, output, *TURNS[:2], {"role": "user", "content": "Hi"}], truncation="auto"
    )
    assert [message["role"] for message in script.bodies[0]["messages"]] == ["user", "assistant", "user"]


def test_input_for_an_unknown_context_window_is_sent_unchanged(api: Api, script: Script) -> None:
    assert api.create(model=script.say("Hello").model, input=LONG)["truncation"] == "disabled"


TOO_LONG = {
    "OpenAI": whole(
        {"error": {"message": "Too long.", "type": "invalid_request_error", "code": "context_length_exceeded"}},
        status=400,
    ),
    "vLLM": refusal(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
    "llama.cpp": refusal(400, "the request exceeds the available context size"),
}


@pytest.mark.parametrize("server", TOO_LONG)
def test_context_length_errors_of_upstreams_are_recognised(api: Api, script: Script, server: str) -> None:
    script.then(TOO_LONG[server])
    answer = api.post("/responses", {"model": script.model, "input": LONG})
    assert error(answer) == (400, "input", "context_length_exceeded")


def test_auto_retries_with_a_shorter_input_after_a_context_length_error(api: Api, script: Script) -> None:
    script.then(TOO_LONG["vLLM"]).say("Hello")
    response = api.create(model=script.model, input=LONG, truncation="auto")
    assert response["status"] == "completed"
    assert first_words(script) == ["Be", "3", "Hi"]


def test_a_second_context_length_error_fails_the_response(api: Api, script: Script) -> None:
    script.then(TOO_LONG["vLLM"], TOO_LONG["vLLM"])
    answer = api.post("/responses", {"model": script.model, "input": LONG, "truncation": "auto", "stream": True})
    assert error(answer) == (400, "input", "context_length_exceeded")

"""`truncation` of `POST /v1/responses`: a conversation that is too long is refused, or loses its beginning."""

from typing import Any

import pytest

from tests.support.api import Api, error
from tests.support.capable import describe
from tests.support.upstream import Script, refusal, whole

WORDS = "x" * 400  # a hundred tokens
TURNS = [{"role": role, "content": f"{number} {WORDS}"} for number, role in enumerate(["user", "assistant"] * 2)]
LONG: list[dict[str, Any]] = [{"role": "developer", "content": "Be kind."}, *TURNS, {"role": "user", "content": "Hi"}]


def said(script: Script, call: int = -1) -> list[str]:
    """The first words of each message that the upstream got."""
    return [message["content"].split()[0] for message in script.bodies[call]["messages"]]


def test_what_is_longer_than_the_window_is_refused_before_the_model_is_asked(api: Api, script: Script) -> None:
    describe(script, context_window=250)
    answer = api.post("/responses", {"model": script.model, "input": LONG})
    assert error(answer) == (400, "input", "context_length_exceeded")
    assert "context window" in answer.json()["error"]["message"]


def test_auto_drops_from_the_beginning(api: Api, script: Script) -> None:
    describe(script, context_window=250).say("Hello")
    response = api.create(model=script.model, input=LONG, truncation="auto")
    assert said(script) == ["Be", "2", "3", "Hi"]
    assert response["truncation"] == "auto"


def test_what_is_dropped_stays_stored(api: Api, script: Script) -> None:
    describe(script, context_window=250).say("Hello")
    response = api.create(model=script.model, input=LONG, truncation="auto")
    assert len(api.input_items(response["id"])) == len(LONG)


def test_what_cannot_be_dropped_and_is_too_long_is_refused_all_the_same(api: Api, script: Script) -> None:
    describe(script, context_window=250)
    body = {"model": script.model, "input": WORDS * 3, "truncation": "auto"}
    assert error(api.post("/responses", body)) == (400, "input", "context_length_exceeded")


def test_a_call_goes_with_its_output(api: Api, script: Script) -> None:
    describe(script, context_window=250).say("Hello")
    call = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_a", "output": WORDS}
    api.create(
        model=script.model, input=[call, output, *TURNS[:2], {"role": "user", "content": "Hi"}], truncation="auto"
    )
    assert [message["role"] for message in script.bodies[0]["messages"]] == ["user", "assistant", "user"]


def test_a_window_that_nobody_knows_is_the_upstreams_to_know(api: Api, script: Script) -> None:
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
def test_an_upstream_that_cannot_read_so_much_is_understood(api: Api, script: Script, server: str) -> None:
    script.then(TOO_LONG[server])
    answer = api.post("/responses", {"model": script.model, "input": LONG})
    assert error(answer) == (400, "input", "context_length_exceeded")


def test_auto_asks_such_an_upstream_once_more_with_less(api: Api, script: Script) -> None:
    script.then(TOO_LONG["vLLM"]).say("Hello")
    response = api.create(model=script.model, input=LONG, truncation="auto")
    assert response["status"] == "completed"
    assert said(script) == ["Be", "3", "Hi"]


def test_what_stays_too_long_fails(api: Api, script: Script) -> None:
    script.then(TOO_LONG["vLLM"], TOO_LONG["vLLM"])
    events = api.events(model=script.model, input=LONG, truncation="auto")
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"

"""Every scenario with Anthropic's SDK, unmodified."""

from typing import Any

import pytest

from tests.support.api import Caller, MakeCaller
from tests.support.chunks import calls, chunk, text
from tests.support.clients import client
from tests.support.sampling import sampled
from tests.support.upstream import Answer, Cut, Script, refusal, stream
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow
CAT = {"name": "Tom", "lives": 9}
HELLO = stream(*text("Hel", "lo"))
CALL = stream(chunk(reasoning="Hm."), chunk(content="Let me see."), *calls(look='{"place": "sofa"}'))
ANSWERS: dict[str, list[Answer]] = {
    "text": [HELLO],
    "streaming": [HELLO],
    "raw_streaming": [HELLO],
    "tools": [CALL, stream(*text("A cat."))],
    "tool_runner": [CALL, stream(*text("A cat."))],
    "structured": [stream(*text('{"name": "Tom", "lives": 9}'))],
    "chain": [stream(*text("Hi, Tom.")), stream(*text("Tom."))],
    "thinking": [stream(chunk(reasoning="A cat "), chunk(reasoning="purrs."), *text("Purr."))],
    "stop_sequence": [stream(*text("one E", "ND two"))],
    "count": [],
    "asynchronous": [HELLO, HELLO],
    "errors": [refusal(429), refusal(503), stream(chunk(content="Hel"), Cut())],
}
RESULTS: dict[str, dict[str, Any]] = {
    "text": {"text": "Hello", "stop": "end_turn", "tokens": [7, 3]},
    "streaming": {"text": "Hello", "pieces": ["Hel", "lo"], "stop": "end_turn", "tokens": [7, 3]},
    "raw_streaming": {
        "events": [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    },
    "tools": {"text": "A cat.", "stop": ["tool_use", "end_turn"]},
    "tool_runner": {"text": "A cat."},
    "structured": {"object": CAT},
    "chain": {"text": "Tom."},
    "thinking": {"thinking": "A cat purrs.", "signed": True, "text": "Purr."},
    "stop_sequence": {"text": "one ", "stop": "stop_sequence", "sequence": "END"},
    "count": {"counted": True},
    "asynchronous": {"texts": ["Hello", "Hello"]},
    "errors": {
        "a wrong key": ["AuthenticationError", "authentication_error", True],
        "an unknown model": ["NotFoundError", "not_found_error", True],
        "a wrong value": ["BadRequestError", "invalid_request_error", True],
        "a full upstream": ["RateLimitError", "rate_limit_error", True],
        "a busy upstream": ["OverloadedError", "overloaded_error", True],
        "a broken stream": ["APIStatusError", "api_error", True],
    },
}


@pytest.mark.parametrize("scenario", sampled(ANSWERS, 4, key="anthropic"))
def test_the_sdk_completes_the_scenario(
    web: WebProcess, caller: Caller, make_caller: MakeCaller, script: Script, scenario: str
) -> None:
    script.then(*ANSWERS[scenario])
    if scenario == "errors":
        caller = make_caller(allowed_models=[script.model])
    address = {"ANTHROPIC_BASE_URL": web.url, "ANTHROPIC_API_KEY": caller.secret}
    assert client("anthropic").run(scenario, environment=address, model=script.model) == RESULTS[scenario]
    if scenario in {"tools", "tool_runner"}:
        read = script.messages[-1]
        assert [message["role"] for message in read] == ["user", "assistant", "tool"]
        assert read[-1]["content"] == "a cat on the sofa"

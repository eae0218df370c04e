"""Every scenario with each of the clients that speak the Responses API, all unmodified."""

from itertools import product
from typing import Any

import pytest

from tests.support.api import Caller
from tests.support.chunks import calls, chunk, text
from tests.support.clients import client
from tests.support.mcp_servers import McpServer
from tests.support.sampling import sampled
from tests.support.upstream import Answer, Script, stream
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow
CLIENTS = ("agents", "langchain", "llama_index", "openai_node", "pydantic_ai", "vercel")
AT_NIGHT = ("agent_framework", "agents_js")
SUMMARY = {"type": "reasoning.summary", "summary": "Let me think.", "index": 0}
CAT = {"name": "Tom", "lives": 9}
ANSWERS: dict[str, list[Answer]] = {
    "text": [stream(*text("Hel", "lo"))],
    "streaming": [stream(*text("Hel", "lo"))],
    "tools": [
        stream(chunk(reasoning="Hm."), chunk(content="Let me see."), *calls(look='{"place": "sofa"}')),
        stream(*text("A cat.")),
    ],
    "structured": [stream(*text('{"name": "Tom", "lives": 9}'))],
    "chain": [stream(*text("Hi, Tom.")), stream(*text("Tom."))],
    "reasoning": [stream(chunk(reasoning_details=[SUMMARY]), *text("Hello"))],
    "mcp": [stream(*calls(box__add='{"a":2,"b":3}')), stream(*text("It is ", "5."))] * 2,
}
RESULTS: dict[str, dict[str, Any]] = {
    "text": {"text": "Hello"},
    "streaming": {"text": "Hello", "pieces": ["Hel", "lo"]},
    "tools": {"text": "A cat."},
    "structured": {"object": CAT},
    "chain": {"text": "Tom."},
    "reasoning": {"text": "Hello", "reasoning": "Let me think."},
    "mcp": {"text": "It is 5.", "pieces": ["It is ", "5."]},
}
CASES: list[Any] = [(name, scenario) for name in CLIENTS for scenario in sampled(ANSWERS, 1, key=name)]
CASES += [pytest.param(*case, marks=pytest.mark.nightly) for case in product(AT_NIGHT, ANSWERS)]


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_the_client_completes_the_scenario(
    reaching_web: WebProcess, caller: Caller, script: Script, served: McpServer, name: str, scenario: str
) -> None:
    script.then(*ANSWERS[scenario])
    address = {"OPENAI_BASE_URL": f"{reaching_web.url}/v1", "OPENAI_API_KEY": caller.secret}
    assert client(name).run(scenario, environment=address, model=script.model, mcp=served.url) == RESULTS[scenario]
    read = script.messages[-1]
    match scenario:
        case "tools":
            assert read[-1]["role"] == "tool"
            assert "a cat on the sofa" in read[-1]["content"]
        case "structured":
            assert script.bodies[0]["response_format"]["type"] == "json_schema"
        case "chain":
            said = [message["content"] for message in read if message["role"] != "system"]
            assert said == ["I am Tom.", "Hi, Tom.", "Who am I?"]
        case "mcp":
            assert served.calls == [("add", {"a": 2, "b": 3})] * 2

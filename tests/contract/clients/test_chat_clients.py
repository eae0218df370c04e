"""Scenarios with clients that ask for chat completions, all unmodified."""

from typing import Any

import pytest

from tests.support.api import Caller
from tests.support.chunks import calls, text
from tests.support.clients import client, watched
from tests.support.upstream import Answer, Script, stream
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow
CAT = {"name": "Tom", "lives": 9}
CAT_TEXT = '{"name": "Tom", "lives": 9}'
LOOK = stream(*calls(look='{"place": "sofa"}'))
HELLO = {"text": "Hello"}
STREAMED = {"text": "Hello", "pieces": ["Hel", "lo"]}
A_CAT = {"text": "A cat."}
SAID: list[Answer] = [stream(*text("Hel", "lo"))]
SEEN: list[Answer] = [LOOK, stream(*text("A cat."))]
STRUCTURED: list[Answer] = [stream(*text('{"name": "Tom", ', '"lives": 9}'))]
USUAL: dict[str, tuple[list[Answer], dict[str, Any]]] = {
    "text": (SAID, HELLO),
    "streaming": (SAID, STREAMED),
    "tools": (SEEN, A_CAT),
    "structured": (STRUCTURED, {"object": CAT}),
}
# DSPy reads fields from the text of an answer and names the tool in one of them.
FIELDS = "[[ ## answer ## ]]\nHello\n\n[[ ## completed ## ]]\n"
STEP = (
    "[[ ## next_thought ## ]]\nHm.\n\n[[ ## next_tool_name ## ]]\n{}\n\n[[ ## next_tool_args ## ]]\n{}\n\n"
    "[[ ## completed ## ]]"
)
SOLVED = "[[ ## reasoning ## ]]\nI saw it.\n\n[[ ## answer ## ]]\nA cat.\n\n[[ ## completed ## ]]"
SCENARIOS: dict[str, dict[str, tuple[list[Answer], dict[str, Any]]]] = {
    "crewai": USUAL,
    "dspy": {
        "text": ([stream(*text(FIELDS))], HELLO),
        "streaming": ([stream(*text("[[ ## answer ## ]]\n", "Hel", "lo", "\n\n[[ ## completed ## ]]\n"))], HELLO),
        "tools": (
            [
                stream(*text(STEP.format("look", '{"place": "sofa"}'))),
                stream(*text(STEP.format("finish", "{}"))),
                stream(*text(SOLVED)),
            ],
            A_CAT,
        ),
        "structured": (STRUCTURED, {"object": CAT}),
    },
    "instructor": {
        "structured": ([stream(*calls(Cat=CAT_TEXT))], {"object": CAT}),
        "schema": (STRUCTURED, {"object": CAT}),
        "responses": ([stream(*calls(Cat=CAT_TEXT))], {"object": CAT}),
        "streaming": ([stream(*calls(Cat=CAT_TEXT))], {"object": CAT}),
    },
    "semantic_kernel": {**USUAL, "tools": ([stream(*calls(**{"Eyes-look": '{"place": "sofa"}'})), SEEN[1]], A_CAT)},
    "smolagents": {
        **USUAL,
        "tools": ([LOOK, stream(*calls(final_answer='{"answer": "A cat."}'))], A_CAT),
    },
}
# One light case in CI.
CASES = [
    (name, scenario)
    if (name, scenario) == ("instructor", "structured")
    else pytest.param(name, scenario, marks=pytest.mark.nightly)
    for name, scenarios in SCENARIOS.items()
    for scenario in scenarios
]


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_the_client_completes_the_scenario(
    web: WebProcess, caller: Caller, script: Script, name: str, scenario: str
) -> None:
    answers, expected = SCENARIOS[name][scenario]
    script.then(*answers)
    address = {"OPENAI_BASE_URL": f"{web.url}/v1", "OPENAI_API_KEY": caller.secret}
    with watched() as silent:
        result = client(name).run(scenario, environment={**silent, **address}, model=script.model)
    assert {key: result[key] for key in expected} == expected
    if scenario == "tools":
        assert "a cat on the sofa" in str(script.messages[1][-1]["content"])


@pytest.mark.nightly
def test_the_client_completes_the_scenario_through_litellm(web: WebProcess, caller: Caller, script: Script) -> None:
    """All in one test, because its proxy takes long to start."""
    steps = {**USUAL, "response": (SAID, HELLO), "streamed_response": (SAID, {"pieces": ["Hel", "lo"]})}
    steps |= {"streaming": (SAID, {"pieces": ["Hel", "lo"]}), "response_with_tools": (SEEN, A_CAT)}
    for answers, _ in steps.values():
        script.then(*answers)
    address = {"OPENAI_BASE_URL": f"{web.url}/v1", "OPENAI_API_KEY": caller.secret}
    with watched() as silent:
        environment = {**silent, **address}
        results = client("litellm").run("run", environment=environment, model=script.model, scenarios=[*steps])
    assert dict(zip(steps, results, strict=True)) == {name: result for name, (_, result) in steps.items()}
    outputs = [message["content"] for messages in script.messages for message in messages if message["role"] == "tool"]
    assert outputs == ["a cat on the sofa"] * 2

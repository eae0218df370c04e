"""The unmodified Vercel AI SDK in Node: an agent calls a tool, with and without streaming."""

import pytest

from tests.support.api import Caller
from tests.support.clients import client
from tests.support.upstream import Script
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", ["agent", "streamed_agent"])
def test_an_agent_calls_a_tool_and_answers(web: WebProcess, caller: Caller, script: Script, scenario: str) -> None:
    script.call(look='{"place": "sofa"}').say("A ", "cat.")
    address = {"OPENAI_BASE_URL": f"{web.url}/v1", "OPENAI_API_KEY": caller.secret}
    result = client("vercel").run(scenario, model=script.model, environment=address)
    assert (result["text"], "".join(result["pieces"])) == ("A cat.", "A cat." if scenario == "streamed_agent" else "")
    assert result["steps"] == [
        {"finish": "tool-calls", "calls": [["look", {"place": "sofa"}]]},
        {"finish": "stop", "calls": []},
    ]
    assert (result["tokens"], result["warnings"]) == (20, [])
    assert script.messages[1][-1]["content"] == "a cat on the sofa"

"""The unmodified Claude Code: `claude -p` and `--resume` with its tools, over `POST /v1/messages`."""

from typing import Any

import pytest

from tests.support.api import Caller
from tests.support.chunks import calls, chunk, text, usage
from tests.support.clients import client, watched
from tests.support.upstream import Script, refusal, stream
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow


class ClaudeCode:
    """Runs of the program with a key of the platform."""

    def __init__(self, url: str, secret: str) -> None:
        self._environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": secret}

    def run(self, script: Script, *prompts: str, **arguments: Any) -> dict[str, Any]:
        """Run prompts in one session, and return the events of each run and the files that are left.

        Nothing but the server may be contacted.
        """
        with watched() as silent:
            result: dict[str, Any] = client("claude_code").run(
                "print", environment={**silent, **self._environment}, model=script.model, prompts=prompts, **arguments
            )
        return result


@pytest.fixture
def claude(web: WebProcess, caller: Caller) -> ClaudeCode:
    """The program with the key of `caller`."""
    return ClaudeCode(web.url, caller.secret)


def final(run: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a run."""
    event: dict[str, Any] = run["events"][-1]
    assert event["type"] == "result", run
    return event


def test_a_session_is_continued(claude: ClaudeCode, script: Script) -> None:
    script.then(stream(*text("Hi, ", "Tom.")), stream(*text("Tom.")))
    runs = claude.run(script, "I am Tom.", "Who am I?")["runs"]
    assert [(final(run)["result"], final(run)["is_error"]) for run in runs] == [("Hi, Tom.", False), ("Tom.", False)]
    assert "I am Tom." in str(script.messages[1])
    assert "Hi, Tom." in str(script.messages[1])


def test_tools_run_and_their_results_are_read(claude: ClaudeCode, script: Script) -> None:
    writing = stream(chunk(reasoning="A file."), *calls(Write='{"file_path":"note.txt","content":"Hello"}'))
    script.then(writing, stream(*text("Done.")))
    result = claude.run(script, "Write a note.", tools=["Write"])
    assert final(result["runs"][0])["result"] == "Done."
    assert result["files"] == {"note.txt": "Hello"}
    called, answered = script.messages[1][-2:]
    assert called["tool_calls"][0]["function"]["name"] == "Write"
    assert (answered["role"], "note.txt" in answered["content"]) == ("tool", True)


def test_the_reported_usage_equals_the_usage_of_the_server(claude: ClaudeCode, script: Script) -> None:
    script.then(stream(chunk(content="Hello"), chunk(finish="stop"), usage()))
    spent = final(claude.run(script, "Hi")["runs"][0])["usage"]
    assert (spent["input_tokens"], spent["output_tokens"]) == (7, 3)


def test_a_wrong_key_is_reported_at_once(web: WebProcess, script: Script) -> None:
    (run,) = ClaudeCode(web.url, "sk-wrong").run(script, "Hi")["runs"]
    assert final(run)["is_error"]
    assert "API key" in final(run)["result"]
    # It repeats other errors for three minutes.
    assert run["seconds"] < 60


def test_a_request_to_an_overloaded_server_is_repeated(claude: ClaudeCode, script: Script) -> None:
    script.then(refusal(429, headers={"Retry-After": "3"}), stream(*text("Hello")))
    (run,) = claude.run(script, "Hi")["runs"]
    assert (final(run)["result"], len(script.bodies)) == ("Hello", 2)

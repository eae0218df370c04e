"""Unmodified command-line programs: llm, aider and opencode."""

import json
import platform
from typing import Any

import pytest

from tests.support.api import Caller
from tests.support.chunks import calls, text
from tests.support.clients import client, watched
from tests.support.upstream import Script, stream
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
LOOK = 'def look(place: str) -> str:\n    """Look at a place."""\n    return f"a cat on the {place}"\n'
EDIT = "note.txt\n```\n<<<<<<< SEARCH\nHello\n=======\nGood morning\n>>>>>>> REPLACE\n```\n"
is_linux = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="the lock has the program for Linux"
)


class Program:
    """Runs of a program with a key of the platform. It contacts nothing else."""

    def __init__(self, url: str, secret: str) -> None:
        self._address = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": secret}

    def run(self, name: str, script: Script, **arguments: Any) -> Any:
        """Run it with arguments for its script, and return what that prints."""
        with watched() as silent:
            return client(name).run("run", environment={**silent, **self._address}, model=script.model, **arguments)


@pytest.fixture
def program(web: WebProcess, caller: Caller) -> Program:
    """A program with the key of `caller`."""
    return Program(web.url, caller.secret)


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
class TestLlm:
    """llm. Its model is described in `extra-openai-models.yaml`."""

    def outputs(self, program: Program, script: Script, endpoint: str, *prompts: list[str]) -> list[str]:
        """Return what it prints for each of the prompts."""
        runs = program.run("llm", script, endpoint=endpoint, prompts=prompts)
        assert [run["status"] for run in runs] == [0] * len(prompts), runs
        return [run["output"].strip() for run in runs]

    @pytest.mark.parametrize("options", [[], ["--no-stream"]])
    def test_a_program_answers(self, program: Program, script: Script, endpoint: str, options: list[str]) -> None:
        assert self.outputs(program, script.say("Hel", "lo"), endpoint, ["Hi", *options]) == ["Hello"]

    def test_a_program_continues_a_conversation(self, program: Program, script: Script, endpoint: str) -> None:
        script.say("Hi, Tom.").say("Tom.")
        assert self.outputs(program, script, endpoint, ["I am Tom."], ["--continue", "Who am I?"])[1] == "Tom."
        assert [message["content"] for message in script.messages[1]] == ["I am Tom.", "Hi, Tom.", "Who am I?"]

    def test_functions_of_a_program_are_called(self, program: Program, script: Script, endpoint: str) -> None:
        script.call(look='{"place": "sofa"}').say("A cat.")
        found = self.outputs(program, script, endpoint, ["What is on the sofa?", "--functions", LOOK])
        assert found == ["A cat."]
        assert script.messages[1][-1]["content"] == "a cat on the sofa"

    def test_a_schema_is_respected(self, program: Program, script: Script, endpoint: str) -> None:
        script.say('{"name": "Tom", "lives": 9}')
        (output,) = self.outputs(program, script, endpoint, ["A cat!", "--schema", "name, lives int"])
        assert json.loads(output) == {"name": "Tom", "lives": 9}
        assert script.bodies[0]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("options", [["--stream"], ["--no-stream"]])
def test_aider_edits_a_file(program: Program, script: Script, options: list[str]) -> None:
    script.say("I change it.\n\n", EDIT).say("docs: Greet properly")
    options = [*options, "--edit-format", "diff"]
    result = program.run("aider", script, message="Greet.", files={"note.txt": "Hello\n"}, options=options)
    assert (result["status"], result["files"]) == (0, {"note.txt": "Good morning\n"}), result
    assert result["commits"] == ["docs: Greet properly", "Begin"]
    assert "Hello" in str(script.messages[0])


def said(run: dict[str, Any]) -> str:
    """Return the text that opencode shows in a run."""
    assert run["status"] == 0, run
    return "".join(event["part"]["text"] for event in run["events"] if event["type"] == "text")


@is_linux
@pytest.mark.parametrize("package", ["@ai-sdk/openai", "@ai-sdk/openai-compatible"])
class TestOpencode:
    """opencode, with the provider for responses and the one for chat completions."""

    def test_a_session_is_continued(self, program: Program, script: Script, package: str) -> None:
        script.say("Hi, ", "Tom.").say("Tom.")
        result = program.run("opencode", script, package=package, prompts=["I am Tom.", "Who am I?"])
        assert [said(run) for run in result["runs"]] == ["Hi, Tom.", "Tom."]
        assert "Hi, Tom." in str(script.messages[1])

    def test_tools_run_and_their_results_are_read(self, program: Program, script: Script, package: str) -> None:
        script.then(stream(*calls(bash='{"command": "echo a cat > note.txt; cat note.txt", "description": "Write"}')))
        script.then(stream(*text("Done.")))
        result = program.run("opencode", script, package=package, prompts=["Write a note."])
        assert said(result["runs"][0]) == "Done."
        assert result["files"] == {"note.txt": "a cat\n"}
        assert (script.messages[1][-1]["role"], "a cat" in script.messages[1][-1]["content"]) == ("tool", True)

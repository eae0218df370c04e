"""Unmodified command-line programs: llm and aider."""

import json
from typing import Any

import pytest

from tests.support.api import Caller
from tests.support.clients import client, watched
from tests.support.upstream import Script
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
LOOK = 'def look(place: str) -> str:\n    """Look at a place."""\n    return f"a cat on the {place}"\n'
EDIT = "note.txt\n```\n<<<<<<< SEARCH\nHello\n=======\nGood morning\n>>>>>>> REPLACE\n```\n"


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
    def test_it_answers(self, program: Program, script: Script, endpoint: str, options: list[str]) -> None:
        assert self.outputs(program, script.say("Hel", "lo"), endpoint, ["Hi", *options]) == ["Hello"]

    def test_it_continues_a_conversation(self, program: Program, script: Script, endpoint: str) -> None:
        script.say("Hi, Tom.").say("Tom.")
        assert self.outputs(program, script, endpoint, ["I am Tom."], ["--continue", "Who am I?"])[1] == "Tom."
        assert [message["content"] for message in script.messages[1]] == ["I am Tom.", "Hi, Tom.", "Who am I?"]

    def test_its_functions_are_called(self, program: Program, script: Script, endpoint: str) -> None:
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

"""The unmodified Codex CLI: `codex exec` and `resume` over HTTP and WebSocket, with its tools and sandboxes."""

import base64
from collections.abc import Iterator
from itertools import product
from typing import Any

import orjson
import pytest

from tests.support.api import Caller
from tests.support.chunks import chunk, text, usage
from tests.support.clients import client
from tests.support.mcp_servers import McpServer
from tests.support.sampling import sampled
from tests.support.search_engine import engine, search_server
from tests.support.upstream import Script, ScriptedUpstream, stream
from tests.support.web import WebProcess

pytestmark = pytest.mark.slow
TRANSPORTS = ("http", "websocket")
# Codex chooses the tools by model: a custom tool for patches and a tool search, or tools in an `additional_tools` item.
# A model that it does not know gets functions only.
MODELS = ("gpt-5.5", "gpt-6-sol", "unknown")
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+Hello\n*** End Patch\n"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@pytest.fixture
def any_model(upstream: ScriptedUpstream, model: str) -> Iterator[Script]:
    """The answers of a model of one kind."""
    with upstream.script(None if model == "unknown" else model) as script:
        yield script


@pytest.fixture
def gpt_5(upstream: ScriptedUpstream) -> Iterator[Script]:
    """The answers of a model for which Codex has a tool for patches."""
    with upstream.script("gpt-5.5") as script:
        yield script


@pytest.fixture
def gpt_6(upstream: ScriptedUpstream) -> Iterator[Script]:
    """The answers of a model that calls Codex' tools from programs."""
    with upstream.script("gpt-6-sol") as script:
        yield script


class Codex:
    """Runs of the CLI with the key of a team."""

    def __init__(self, url: str, secret: str) -> None:
        self._environment = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": secret}

    def run(self, script: Script, *prompts: str, **options: Any) -> dict[str, Any]:
        """Run prompts in one session, and return the events of each run and the files that are left.

        Asserts that every run succeeds and that nothing but the server was contacted.
        """
        result: dict[str, Any] = client("codex").run(
            "exec", environment=self._environment, model=script.model, prompts=prompts, **options
        )
        for run in result["runs"]:
            assert run["status"] == 0, run
        assert result["connections"] == []
        return result


@pytest.fixture
def codex(web: WebProcess, caller: Caller) -> Codex:
    """The CLI with the key of `caller`."""
    return Codex(web.url, caller.secret)


def items(run: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the items of a run of one type."""
    done = [event["item"] for event in run["events"] if event["type"] == "item.completed"]
    return [item for item in done if item["type"] == kind]


def answer(run: dict[str, Any]) -> str:
    """Return the last message of a run."""
    return str(items(run, "agent_message")[-1]["text"])


def command(line: str) -> str:
    return orjson.dumps({"cmd": line, "login": False}).decode()


@pytest.mark.parametrize(("model", "transport"), sampled(product(MODELS, TRANSPORTS), 3, key="codex answers"))
def test_codex_answers(codex: Codex, any_model: Script, transport: str) -> None:
    (run,) = codex.run(any_model.say("Hel", "lo"), "Hi", transport=transport)["runs"]
    assert answer(run) == "Hello"
    assert run["events"][-1]["type"] == "turn.completed"
    assert run["events"][-1]["usage"]["output_tokens"] > 0
    assert any_model.messages[0][-1]["content"] == "Hi"


@pytest.mark.parametrize("model", sampled(MODELS, 2, key="codex provider"))
def test_codex_answers_with_its_own_provider(codex: Codex, any_model: Script) -> None:
    """The provider that Codex uses for OpenAI, with this server's address."""
    runs = codex.run(any_model.say("Hello").say("Bye"), "Hi", "Again", provider="built-in")["runs"]
    assert [answer(run) for run in runs] == ["Hello", "Bye"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sandbox", ["read-only", "danger-full-access"])
def test_codex_runs_a_command(codex: Codex, script: Script, transport: str, sandbox: str) -> None:
    script.call(exec_command=command("cat note.txt; echo more > more.txt")).say("Read.")
    note = base64.b64encode(b"a cat on the sofa\n").decode()
    result = codex.run(script, "Read the note.", transport=transport, sandbox=sandbox, files={"note.txt": note})
    (run,) = result["runs"]
    assert answer(run) == "Read."
    assert "a cat on the sofa" in script.messages[1][-1]["content"]
    assert ("more.txt" in result["files"]) == (sandbox == "danger-full-access")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_codex_applies_a_patch(codex: Codex, gpt_5: Script, transport: str) -> None:
    gpt_5.call(apply_patch=orjson.dumps({"input": PATCH}).decode()).say("Done.")
    result = codex.run(gpt_5, "Write a file.", transport=transport, sandbox="danger-full-access")
    assert base64.b64decode(result["files"]["new.txt"]) == b"Hello\n"
    assert answer(result["runs"][0]) == "Done."
    assert "new.txt" in gpt_5.messages[1][-1]["content"]


@pytest.mark.parametrize(("model", "transport"), sampled(product(MODELS, TRANSPORTS), 3, key="codex resume"))
def test_codex_resumes_a_session(codex: Codex, any_model: Script, transport: str) -> None:
    any_model.say("One.").say("Two.")
    runs = codex.run(any_model, "First", "Second", transport=transport)["runs"]
    assert [answer(run) for run in runs] == ["One.", "Two."]
    said = [message["content"] for message in any_model.messages[1] if message["role"] in ("user", "assistant")]
    assert said[-3:] == ["First", "One.", "Second"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_codex_returns_structured_output(codex: Codex, script: Script, transport: str) -> None:
    schema = {
        "type": "object",
        "properties": {"lives": {"type": "integer"}},
        "required": ["lives"],
        "additionalProperties": False,
    }
    (run,) = codex.run(script.say('{"lives": 9}'), "A cat", transport=transport, schema=schema)["runs"]
    assert orjson.loads(answer(run)) == {"lives": 9}
    assert script.bodies[0]["response_format"]["json_schema"]["schema"] == schema


def test_codex_sends_images(codex: Codex, script: Script) -> None:
    codex.run(script.say("A dot."), "What is it?", files={"dot.png": PNG}, images=["dot.png"])
    contents = [message["content"] for message in script.messages[0] if isinstance(message["content"], list)]
    (image,) = [part for content in contents for part in content if part["type"] == "image_url"]
    assert image["image_url"]["url"].startswith("data:image/")


def test_codex_views_an_image_with_a_tool(codex: Codex, script: Script) -> None:
    script.call(view_image='{"path": "dot.png"}').say("A dot.")
    result = codex.run(script, "Look at it.", sandbox="danger-full-access", files={"dot.png": PNG})
    assert answer(result["runs"][0]) == "A dot."
    *_, output, images = script.messages[1]
    assert (output["role"], images["role"]) == ("tool", "user")
    assert output["content"] == "[Image 1: it follows in a user message.]"
    assert images["content"][0]["text"].startswith("Image 1 of the output of 'view_image'")
    assert images["content"][1]["type"] == "image_url"


def test_codex_shows_reasoning(codex: Codex, script: Script) -> None:
    script.then(stream(chunk(reasoning="Hm."), *text("Hello")))
    assert answer(codex.run(script, "Hi")["runs"][0]) == "Hello"


def test_codex_calls_several_tools_in_turn(codex: Codex, script: Script) -> None:
    script.call(exec_command=command("echo one")).call(exec_command=command("echo two")).say("Done.")
    (run,) = codex.run(script, "Count.", transport="websocket", sandbox="danger-full-access")["runs"]
    assert [item["aggregated_output"] for item in items(run, "command_execution")] == ["one\n", "two\n"]
    assert answer(run) == "Done."


def test_codex_calls_tools_from_a_program(codex: Codex, gpt_6: Script) -> None:
    program = 'const result = await tools.exec_command({cmd: "echo hi"}); text(result.output);'
    gpt_6.call(functions__exec=orjson.dumps({"input": program}).decode()).say("Done.")
    (run,) = codex.run(gpt_6, "Say hi.", transport="websocket", sandbox="danger-full-access")["runs"]
    assert [item["aggregated_output"] for item in items(run, "command_execution")] == ["hi\n"]
    assert gpt_6.messages[1][-1]["content"].endswith("hi\n")


def test_codex_delegates_to_another_agent(codex: Codex, script: Script) -> None:
    script.call(multi_agent_v1__spawn_agent='{"message": "Look around."}').always(stream(*text("Hello")))
    (run,) = codex.run(script, "Delegate.", sandbox="danger-full-access")["runs"]
    assert answer(run) == "Hello"
    assert any("agent_id" in str(messages[-1]["content"]) for messages in script.messages)


def test_codex_finds_tools_of_its_mcp_servers(codex: Codex, gpt_5: Script, served: McpServer) -> None:
    gpt_5.call(tool_search='{"query": "add"}').call(mcp__box__add='{"a": 2, "b": 3}').say("It is 5.")
    settings = [f'mcp_servers.box.url="{served.url}"', 'mcp_servers.box.default_tools_approval_mode="approve"']
    (run,) = codex.run(gpt_5, "Add.", sandbox="danger-full-access", config=settings)["runs"]
    assert answer(run) == "It is 5."
    assert "mcp__box__add" in gpt_5.messages[1][-1]["content"]
    assert served.calls == [("add", {"a": 2, "b": 3})]


def test_codex_searches_the_web(reaching_web: WebProcess, caller: Caller, gpt_5: Script) -> None:
    gpt_5.call(web_search='{"queries": ["cats"]}').say("They purr.").say("Sure.")
    with search_server() as served:
        engine(caller.team, served)
        codex = Codex(reaching_web.url, caller.secret)
        runs = codex.run(gpt_5, "Do cats purr?", "Sure?", sandbox="danger-full-access", config=['web_search="live"'])[
            "runs"
        ]
    assert [item["query"] for item in items(runs[0], "web_search")] == ["cats"]
    assert [answer(run) for run in runs] == ["They purr.", "Sure."]


def test_codex_compacts_a_long_session(codex: Codex, gpt_6: Script) -> None:
    long = usage(prompt_tokens=9000, completion_tokens=3, total_tokens=9003)
    gpt_6.then(stream(*text("One.")[:-1], long)).say("Notes.").say("Two.")
    settings = ["model_auto_compact_token_limit=5000"]
    runs = codex.run(gpt_6, "First", "Second", provider="built-in", config=settings)["runs"]
    assert [answer(run) for run in runs] == ["One.", "Two."]
    assert "Notes." in str(gpt_6.messages[2])

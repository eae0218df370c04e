"""Hosted shell: commands of models run in a real sandbox; their items and events match the API."""

from typing import Any

import orjson
import pytest

from tests.support.api import Api, ok
from tests.support.background import ended
from tests.support.sandboxes import Sandbox, fault
from tests.support.skills import inline, skill_files, zipped
from tests.support.streams import types
from tests.support.upstream import Script
from tests.support.workers import WorkerProcess

TOOL: dict[str, Any] = {"type": "shell", "environment": {"type": "container_auto"}}


def commands(*texts: str, **limits: int) -> str:
    return orjson.dumps({"commands": texts, **limits}).decode()


def ask(api: Api, script: Script, **body: Any) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = api.create(model=script.model, input="Work.", **{"tools": [TOOL], **body})["output"]
    return output


def test_commands_run_in_order(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell=commands("echo hello > a.txt", "cat a.txt; echo no >&2; exit 3")).say("Done.")
    call, output, message = ask(api, script)
    container = call["environment"]["container_id"]
    assert (call["type"], call["status"]) == ("shell_call", "completed")
    assert call["action"]["commands"] == ["echo hello > a.txt", "cat a.txt; echo no >&2; exit 3"]
    assert ok(api.get(f"/containers/{container}/files"))["data"][0]["path"] == "/mnt/data/a.txt"
    assert (output["type"], output["call_id"]) == ("shell_call_output", call["call_id"])
    assert output["output"] == [
        {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "hello\n", "stderr": "no\n", "outcome": {"type": "exit", "exit_code": 3}},
    ]
    assert message["content"][0]["text"] == "Done."
    assert orjson.loads(script.messages[1][-1]["content"])[1]["stdout"] == "hello\n"


def test_the_stream_has_the_documented_events(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell=commands("echo hello")).say("Done.")
    events = api.events(model=script.model, input="Go.", tools=[TOOL])
    assert [kind.removeprefix("response.") for kind in types(events)][2:11] == [
        "output_item.added",
        "shell_call_command.added",
        "shell_call_command.delta",
        "shell_call_command.done",
        "output_item.done",
        "output_item.added",
        "shell_call_output_content.delta",
        "shell_call_output_content.done",
        "output_item.done",
    ]
    assert (events[2]["item"]["action"]["commands"], events[7]["item"]["output"]) == ([], [])
    assert events[8]["delta"] == {"stdout": "hello\n", "stderr": ""}
    assert events[9]["output"] == events[10]["item"]["output"]


def test_a_later_response_reads_the_output_and_reuses_the_container(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell=commands("echo 42 > n.txt")).say("Kept.")
    first = api.create(model=script.model, input="Keep it.", tools=[TOOL])
    script.call(shell=commands("cat n.txt")).say("It is 42.")
    _, output, _ = ask(api, script, previous_response_id=first["id"])
    assert output["output"][0]["stdout"] == "42\n"


@pytest.mark.slow
def test_limits_set_by_the_model_are_enforced(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell=commands("yes", timeout_ms=300, max_output_length=10)).say("Done.")
    _, output, _ = ask(api, script)
    [one] = output["output"]
    assert (one["stdout"], one["outcome"]) == ("y\ny\ny\ny\ny\n", {"type": "timeout"})
    assert output["max_output_length"] == 10


def test_shell_and_code_interpreter_share_a_container(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell=commands("echo 42 > n.txt"))
    script.call(code_interpreter='{"code":"int(open(\\"n.txt\\").read())"}').say("It is 42, as n.txt says.")
    both = [TOOL, {"type": "code_interpreter", "container": {"type": "auto"}}]
    call, _, program, message = ask(api, script, tools=both, include=["code_interpreter_call.outputs"])
    assert program["outputs"] == [{"type": "logs", "logs": "42"}]
    assert program["container_id"] == call["environment"]["container_id"]
    assert message["content"][0]["annotations"][0]["filename"] == "n.txt"


@pytest.mark.slow
def test_a_named_container_is_used_in_the_background(
    api: Api, script: Script, sandbox: Sandbox, worker: WorkerProcess
) -> None:
    container = ok(api.post("/containers", {"name": "work"}))["id"]
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
    script.call(shell=commands("pwd")).say("There.")
    queued = api.create(model=script.model, input="Go.", tools=[tool], background=True)
    call, output, _ = ended(api, queued["id"])["output"]
    assert call["environment"]["container_id"] == container
    assert output["output"][0]["stdout"] == "/mnt/data\n"


def test_invalid_calls_are_answered_with_an_error(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell='{"commands":"ls"}').say("Done.")
    _, output, _ = ask(api, script)
    assert output["output"][0]["stderr"] == "error: 'commands' must be an array of strings"


@pytest.mark.parametrize(
    ("environment", "status", "param"),
    [
        ({"type": "container_reference", "container_id": "cntr_1"}, 404, "tools[0].environment.container_id"),
        ({"type": "container_auto", "memory_limit": "64g"}, 400, "tools[0].environment.memory_limit"),
        ({"type": "container_auto", "skills": [{"type": "inline"}]}, 400, "tools[0].environment.skills[0].name"),
        (
            {"type": "container_auto", "skills": [{"type": "skill_reference", "skill_id": "skill_nothing"}]},
            404,
            "tools[0].environment.skills[0].skill_id",
        ),
        (
            {"type": "container_auto", "skills": [inline("sums", b"not a zip")]},
            400,
            "tools[0].environment.skills[0].source.data",
        ),
        (
            {"type": "container_auto", "skills": [inline("Sums!", zipped(skill_files()))]},
            400,
            "tools[0].environment.skills[0].name",
        ),
        (
            {"type": "container_auto", "skills": [inline("sums", zipped(skill_files()))] * 2},
            400,
            "tools[0].environment.skills[1]",
        ),
        (
            {"type": "container_auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}},
            400,
            "tools[0].environment.network_policy",
        ),
    ],
)
def test_an_unavailable_environment_is_rejected_by_name(
    environment: Any, status: int, param: str, api: Api, script: Script, sandbox: Sandbox
) -> None:
    tools = [{"type": "shell", "environment": environment}]
    answer = api.post("/responses", {"model": script.model, "input": "Go.", "tools": tools})
    assert fault(answer, status)["param"] == param

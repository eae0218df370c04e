"""Skills of the hosted shell: mounted in the container, described to the model, and read by its commands."""

from typing import Any

import pytest

from tests.api.skills.test_skills import create
from tests.api.tools.test_hosted_shell import ask, commands
from tests.support.api import Api, ok
from tests.support.background import ended
from tests.support.sandboxes import Sandbox, fault
from tests.support.skills import inline, skill_files, zipped
from tests.support.upstream import Script
from tests.support.workers import WorkerProcess

READ = commands("cat /mnt/skills/*/SKILL.md", "python3 /mnt/skills/sums/add.py")


@pytest.fixture
def skill(api: Api) -> str:
    """A skill of the caller's team with two versions, of which the first is the default."""
    made = str(ok(create(api, skill_files(**{"add.py": "print(1)"})))["id"])
    ok(create(api, skill_files(description="Add better.", **{"add.py": "print(2)"}), path=f"/skills/{made}/versions"))
    return made


def shell(*skills: dict[str, Any]) -> dict[str, Any]:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": list(skills)}}


def reference(skill: str, **version: str) -> dict[str, Any]:
    return {"type": "skill_reference", "skill_id": skill, **version}


def stdout(items: list[dict[str, Any]]) -> list[str]:
    return [one["stdout"] for item in items if item["type"] == "shell_call_output" for one in item["output"]]


def description(script: Script) -> str:
    """Return the description of the shell that the model was offered first."""
    return str(script.bodies[0]["tools"][0]["function"]["description"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "printed", "described"),
    [
        ({}, "1\n", "Add numbers."),
        ({"version": "2"}, "2\n", "Add better."),
        ({"version": "latest"}, "2\n", "Add better."),
    ],
)
def test_a_referenced_skill_is_mounted_and_described(
    api: Api, script: Script, sandbox: Sandbox, skill: str, version: dict[str, str], printed: str, described: str
) -> None:
    script.call(shell=READ).say("Done.")
    manifest, output = stdout(ask(api, script, tools=[shell(reference(skill, **version))]))
    assert (described in manifest, output) == (True, printed)
    assert f"- sums in /mnt/skills/sums: {described}" in description(script)


def test_an_inline_skill_is_mounted_and_shown_as_it_was_sent(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(shell=READ).say("Done.")
    sent = inline("sums", zipped(skill_files("other", **{"add.py": "print(3)"})), "From the request.")
    response = api.create(model=script.model, input="Work.", tools=[shell(sent)])
    assert response["tools"][0]["environment"]["skills"] == [sent]
    assert stdout(response["output"])[1] == "3\n"
    assert "- sums in /mnt/skills/sums: From the request." in description(script)


@pytest.mark.slow
def test_a_background_response_has_its_skills(
    api: Api, script: Script, sandbox: Sandbox, skill: str, worker: WorkerProcess
) -> None:
    script.call(shell=READ).say("Done.")
    queued = api.create(model=script.model, input="Work.", tools=[shell(reference(skill))], background=True)
    assert stdout(ended(api, queued["id"])["output"])[1] == "1\n"


@pytest.mark.slow
def test_a_later_response_replaces_a_version_in_the_same_container(
    api: Api, script: Script, sandbox: Sandbox, skill: str
) -> None:
    script.call(shell=READ).say("Done.").call(shell=READ).say("Done.")
    first = api.create(model=script.model, input="Work.", tools=[shell(reference(skill))])
    newer = [shell(reference(skill, version="2"))]
    second = api.create(model=script.model, input="Again.", tools=newer, previous_response_id=first["id"])
    assert [stdout(one["output"])[1] for one in (first, second)] == ["1\n", "2\n"]
    containers = [one["output"][0]["environment"]["container_id"] for one in (first, second)]
    assert containers[0] == containers[1]


@pytest.mark.slow
def test_skills_of_a_named_container_are_described(api: Api, script: Script, sandbox: Sandbox, skill: str) -> None:
    container = ok(api.post("/containers", {"name": "work", "skills": [reference(skill)]}))["id"]
    script.call(shell=READ).say("Done.")
    named = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
    assert stdout(ask(api, script, tools=[named]))[1] == "1\n"
    assert "- sums in /mnt/skills/sums: Add numbers." in description(script)


def test_the_code_interpreter_of_the_same_request_has_the_skills(
    api: Api, script: Script, sandbox: Sandbox, skill: str
) -> None:
    both = [shell(reference(skill)), {"type": "code_interpreter", "container": {"type": "auto"}}]
    ask(api, script.say("Done."), tools=both)
    offered = [one["function"]["description"] for one in script.bodies[0]["tools"]]
    assert all("/mnt/skills/sums" in one for one in offered)


def test_another_teams_skill_is_not_found(
    outsider: Api, api: Api, script: Script, sandbox: Sandbox, skill: str
) -> None:
    body = {"model": script.model, "input": "Work.", "tools": [shell(reference(skill))]}
    refused = fault(outsider.post("/responses", body), 404)
    assert refused["param"] == "tools[0].environment.skills[0].skill_id"
    assert refused["message"] == f"Skill with id '{skill}' not found."

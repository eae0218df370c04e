"""`manage.py create_prompt`."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api
from tests.support.upstream import Script

GREETING = {"messages": [{"role": "developer", "content": "Greet {{customer}}."}]}


@pytest.fixture
def create_prompt(api: Api, tmp_path: Path) -> Any:
    """Call the command for the team of `api` and return its output with --json."""

    def call(content: Any) -> dict[str, Any]:
        file, output = tmp_path / "prompt.json", StringIO()
        file.write_text(json.dumps(content))
        options = ["--team", api.caller.team.name, "--name", "greeting", "--json"]
        call_command("create_prompt", str(file), *options, stdout=output)
        printed: dict[str, Any] = json.loads(output.getvalue())
        return printed

    return call


def test_requests_can_use_a_created_prompt(api: Api, script: Script, create_prompt: Any) -> None:
    script.say("Hello, Ada.")
    made = create_prompt({**GREETING, "model": script.model})
    assert made["team"] == api.caller.team.pk
    api.create(input="Begin.", prompt={"id": made["prompt"], "variables": {"customer": "Ada"}})
    assert [message["content"] for message in script.messages[0]] == ["Greet Ada.", "Begin."]


def test_only_changed_content_creates_a_version(create_prompt: Any) -> None:
    first = create_prompt(GREETING)
    again = create_prompt(GREETING)
    changed = create_prompt({**GREETING, "parameters": {"temperature": 0.2}})
    assert [made["version"] for made in (first, again, changed)] == [1, 1, 2]
    assert {made["prompt"] for made in (first, again, changed)} == {first["prompt"]}


def test_new_prompts_and_new_versions_are_audited(api: Api, create_prompt: Any) -> None:
    made = create_prompt(GREETING)
    create_prompt({**GREETING, "model": "demo"})
    with scope.team(api.caller.team.pk):
        lines = AuditEvent.objects.filter(target=made["prompt"]).order_by("occurred_at").values_list("action", "after")
        assert list(lines) == [
            ("prompt.created", {"name": "greeting", "version": 1}),
            ("prompt.version_added", {"name": "greeting", "version": 2}),
        ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"messages": []}, "messages"),
        ({**GREETING, "parameters": {"background": True}}, "can only be set in a request"),
        ([], "does not contain a JSON object"),
    ],
)
def test_the_error_names_invalid_content(create_prompt: Any, content: Any, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        create_prompt(content)

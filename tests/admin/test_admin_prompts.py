"""Prompt templates: edited by team leads, read by their teams, changed only by a new version."""

import json
from typing import Any

import pytest
from django.test import Client

from responses.models import PromptTemplate, PromptVersion
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import text
from tests.support.api import Caller
from tests.support.prompts import write_prompt

LIST = "/admin/responses/prompttemplate/"
MESSAGES = [{"role": "developer", "content": "Greet {{name}}."}]
NO_ROWS = {"versions-TOTAL_FORMS": "0", "versions-INITIAL_FORMS": "0"}


def page_url(prompt: PromptTemplate) -> str:
    """Return the URL of the page of a prompt."""
    return f"{LIST}{prompt.pk}/change/"


def form(**changed: Any) -> dict[str, Any]:
    """Return a complete form."""
    return {"name": "greeting", "messages": json.dumps(MESSAGES), "model": "", "parameters": "{}", **NO_ROWS, **changed}


def versions(caller: Caller) -> list[tuple[int, Any]]:
    """Return number and messages of all versions of the team."""
    with scope.team(caller.team.pk):
        return list(PromptVersion.objects.order_by("prompt_id", "number").values_list("number", "messages"))


def prompts(caller: Caller) -> list[tuple[str, int]]:
    """Return name and current version of all prompts of the team."""
    with scope.team(caller.team.pk):
        return list(PromptTemplate.objects.values_list("name", "current"))


def test_a_lead_creates_a_prompt(lead: Client, caller: Caller) -> None:
    answer = lead.post(f"{LIST}add/", form(team=caller.team.pk, model="m", parameters='{"temperature": 0.2}'))
    assert answer.status_code == 302
    assert prompts(caller) == [("greeting", 1)]
    with scope.team(caller.team.pk):
        version = PromptVersion.objects.get()
    assert (version.messages, version.model, version.parameters) == (MESSAGES, "m", {"temperature": 0.2})
    assert version.created_by.startswith("user-")


def test_saving_changed_content_creates_the_next_version(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    changed = [{"role": "user", "content": "Hello."}]
    assert lead.post(page_url(prompt), form(current="1", messages=json.dumps(changed))).status_code == 302
    assert versions(caller) == [(1, MESSAGES), (2, changed)]
    assert prompts(caller) == [("greeting", 2)]


def test_renaming_creates_no_version(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    assert lead.post(page_url(prompt), form(current="1", name="hello")).status_code == 302
    assert (prompts(caller), len(versions(caller))) == ([("hello", 1)], 1)


def test_an_older_version_can_be_made_current(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    shown = form(current="2", messages=json.dumps([{"role": "user", "content": "Hello."}]))
    lead.post(page_url(prompt), form(current="1", messages=shown["messages"]))
    assert lead.post(page_url(prompt), {**shown, "current": "1"}).status_code == 302
    assert (prompts(caller), len(versions(caller))) == ([("greeting", 1)], 2)


def test_the_page_shows_all_versions(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    lead.post(page_url(prompt), form(current="1", messages=json.dumps([{"role": "user", "content": "Hello."}])))
    page = text(lead.get(page_url(prompt)))
    assert [word in page for word in ("Greet {{name}}.", "Hello.", "Version 1", "Version 2")] == [True] * 4


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("messages", "nonsense", "valid JSON"),
        ("messages", "[]", "This field is required"),
        ("messages", '[{"role": "nobody", "content": "Hi"}]', "Supported values are"),
        ("messages", '[{"role": "user"}]', "Missing required parameter"),
        ("parameters", '{"stream": true}', "can only be set in a request"),
        ("parameters", '{"temperature": 3}', "above maximum value"),
        ("parameters", '{"heat": 3}', "can only be set in a request"),
        ("parameters", "[1]", "expected an object"),
    ],
)
def test_invalid_content_is_rejected(lead: Client, caller: Caller, field: str, value: str, message: str) -> None:
    answer = lead.post(f"{LIST}add/", form(team=caller.team.pk, **{field: value}))
    assert answer.status_code == 200
    assert message in text(answer)
    assert prompts(caller) == []


def test_versions_are_immutable(admin: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    with scope.team(caller.team.pk):
        version = PromptVersion.objects.get()
    rows = {"versions-TOTAL_FORMS": "2", "versions-INITIAL_FORMS": "1", "versions-0-id": str(version.pk)}
    changed = {"versions-0-number": "7", "versions-0-DELETE": "on", "versions-1-number": "8"}
    admin.post(page_url(prompt), form(current="1", **rows, **changed))
    assert versions(caller) == [(1, MESSAGES)]


def test_a_developer_can_read_but_not_edit(developer: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    page = text(developer.get(page_url(prompt)))
    assert "Greet {{name}}." in page
    assert '<textarea name="messages"' not in page
    assert developer.post(page_url(prompt), form(current="1", name="mine")).status_code == 403
    assert developer.get(f"{LIST}add/").status_code == 403


def test_another_team_cannot_see_or_edit_a_prompt(stranger: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    assert prompt.pk not in text(stranger.get(LIST))
    assert stranger.post(page_url(prompt), form(current="1", name="mine")).status_code == 404
    assert prompts(caller) == [(prompt.name, 1)]


def test_a_lead_cannot_create_a_prompt_for_another_team(stranger: Client, caller: Caller) -> None:
    assert stranger.post(f"{LIST}add/", form(team=caller.team.pk)).status_code == 200
    assert prompts(caller) == []


def test_creating_a_prompt_is_audited_with_its_messages(lead: Client, caller: Caller) -> None:
    lead.post(f"{LIST}add/", form(team=caller.team.pk))
    with scope.team(caller.team.pk):
        line = AuditEvent.objects.get(action="prompt.created")
    assert line.after["name"] == "greeting"
    assert "Greet {{name}}." in str(line.after["messages"])


def test_query_count_of_the_list_is_independent_of_its_rows(lead: Client, caller: Caller, count_queries: Any) -> None:
    write_prompt(caller, "One.")
    few = count_queries(lead, LIST)
    for _ in range(3):
        write_prompt(caller, "More.")
    assert count_queries(lead, LIST) == few


def test_messages_are_hidden_without_content_access(
    operator: Client, auditor: Client, developer: Client, caller: Caller
) -> None:
    prompt = write_prompt(caller, "The words of the prompt.")
    for client in (operator, auditor):
        page = text(client.get(page_url(prompt)))
        assert prompt.pk in page
        assert "The words" not in page
        client.post("/admin/content/reveal/", {"team": caller.team.pk, "reason": "a question of theirs"})
        assert "The words" in text(client.get(page_url(prompt)))
    assert "The words" in text(developer.get(page_url(prompt)))
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=prompt.pk).count() == 1

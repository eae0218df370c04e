"""Prompts: written by team leads, seen by their teams, never changed but by a next version."""

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


def page_of(prompt: PromptTemplate) -> str:
    """The address of a prompt's page."""
    return f"{LIST}{prompt.pk}/change/"


def form(**changed: Any) -> dict[str, Any]:
    """A filled form."""
    return {"name": "greeting", "messages": json.dumps(MESSAGES), "model": "", "parameters": "{}", **NO_ROWS, **changed}


def versions(caller: Caller) -> list[tuple[int, Any]]:
    """Number and messages of all versions of the team."""
    with scope.team(caller.team.pk):
        return list(PromptVersion.objects.order_by("prompt_id", "number").values_list("number", "messages"))


def prompts(caller: Caller) -> list[tuple[str, int]]:
    """Name and current version of all prompts of the team."""
    with scope.team(caller.team.pk):
        return list(PromptTemplate.objects.values_list("name", "current"))


def test_a_lead_writes_a_prompt(lead: Client, caller: Caller) -> None:
    answer = lead.post(f"{LIST}add/", form(team=caller.team.pk, model="m", parameters='{"temperature": 0.2}'))
    assert answer.status_code == 302
    assert prompts(caller) == [("greeting", 1)]
    with scope.team(caller.team.pk):
        version = PromptVersion.objects.get()
    assert (version.messages, version.model, version.parameters) == (MESSAGES, "m", {"temperature": 0.2})
    assert version.created_by.startswith("user-")


def test_saving_something_else_makes_the_next_version(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    changed = [{"role": "user", "content": "Hello."}]
    assert lead.post(page_of(prompt), form(current="1", messages=json.dumps(changed))).status_code == 302
    assert versions(caller) == [(1, MESSAGES), (2, changed)]
    assert prompts(caller) == [("greeting", 2)]


def test_a_new_name_is_no_new_version(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    assert lead.post(page_of(prompt), form(current="1", name="hello")).status_code == 302
    assert (prompts(caller), len(versions(caller))) == ([("hello", 1)], 1)


def test_an_older_version_is_made_current(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    shown = form(current="2", messages=json.dumps([{"role": "user", "content": "Hello."}]))
    lead.post(page_of(prompt), form(current="1", messages=shown["messages"]))
    assert lead.post(page_of(prompt), {**shown, "current": "1"}).status_code == 302
    assert (prompts(caller), len(versions(caller))) == ([("greeting", 1)], 2)


def test_the_page_shows_all_versions(lead: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    lead.post(page_of(prompt), form(current="1", messages=json.dumps([{"role": "user", "content": "Hello."}])))
    page = text(lead.get(page_of(prompt)))
    assert [word in page for word in ("Greet {{name}}.", "Hello.", "Version 1", "Version 2")] == [True] * 4


@pytest.mark.parametrize(
    ("field", "value", "told"),
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
def test_it_refuses_what_no_request_could_use(lead: Client, caller: Caller, field: str, value: str, told: str) -> None:
    answer = lead.post(f"{LIST}add/", form(team=caller.team.pk, **{field: value}))
    assert answer.status_code == 200
    assert told in text(answer)
    assert prompts(caller) == []


def test_nobody_changes_a_version(admin: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    with scope.team(caller.team.pk):
        version = PromptVersion.objects.get()
    rows = {"versions-TOTAL_FORMS": "2", "versions-INITIAL_FORMS": "1", "versions-0-id": str(version.pk)}
    changed = {"versions-0-number": "7", "versions-0-DELETE": "on", "versions-1-number": "8"}
    admin.post(page_of(prompt), form(current="1", **rows, **changed))
    assert versions(caller) == [(1, MESSAGES)]


def test_a_developer_reads_and_writes_nothing(developer: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    page = text(developer.get(page_of(prompt)))
    assert "Greet {{name}}." in page
    assert '<textarea name="messages"' not in page
    assert developer.post(page_of(prompt), form(current="1", name="mine")).status_code == 403
    assert developer.get(f"{LIST}add/").status_code == 403


def test_a_stranger_sees_and_changes_nothing(stranger: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "Greet {{name}}.")
    assert prompt.pk not in text(stranger.get(LIST))
    assert stranger.post(page_of(prompt), form(current="1", name="mine")).status_code == 404
    assert prompts(caller) == [(prompt.name, 1)]


def test_a_lead_writes_for_no_other_team(stranger: Client, caller: Caller) -> None:
    assert stranger.post(f"{LIST}add/", form(team=caller.team.pk)).status_code == 200
    assert prompts(caller) == []


def test_what_was_written_stands_in_the_audit_log(lead: Client, caller: Caller) -> None:
    lead.post(f"{LIST}add/", form(team=caller.team.pk))
    with scope.team(caller.team.pk):
        line = AuditEvent.objects.get(action="prompt.created")
    assert line.after["name"] == "greeting"
    assert "Greet {{name}}." in str(line.after["messages"])


def test_the_list_takes_no_more_queries_for_more_rows(lead: Client, caller: Caller, count_queries: Any) -> None:
    write_prompt(caller, "One.")
    few = count_queries(lead, LIST)
    for _ in range(3):
        write_prompt(caller, "More.")
    assert count_queries(lead, LIST) == few


def test_what_a_prompt_says_is_content(operator: Client, auditor: Client, developer: Client, caller: Caller) -> None:
    prompt = write_prompt(caller, "The words of the prompt.")
    for client in (operator, auditor):
        page = text(client.get(page_of(prompt)))
        assert prompt.pk in page
        assert "The words" not in page
        client.post("/admin/content/reveal/", {"team": caller.team.pk, "reason": "a question of theirs"})
        assert "The words" in text(client.get(page_of(prompt)))
    assert "The words" in text(developer.get(page_of(prompt)))
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=prompt.pk).count() == 1

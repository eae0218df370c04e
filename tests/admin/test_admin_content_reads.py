"""The audit lines of excerpts that a page shows of several teams."""

from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from openai import OpenAI

from core.clock import now
from tenants import audit_seals, scope
from tenants.models import AuditEvent, Role
from tests.admin.rows import add_response, member, text
from tests.admin.test_admin_audit_log import LIST, exported
from tests.support.api import Caller, MakeCaller

RESPONSES = "/admin/responses/response/"


@pytest.fixture
def callers(make_caller: MakeCaller) -> list[Caller]:
    """Three teams with a response each."""
    made = [make_caller() for _ in range(3)]
    for caller in made:
        add_response(caller, input_preview="the question")
    return made


def reads(*callers: Caller) -> list[AuditEvent]:
    """Return the lines about read content that mention one of the teams, oldest first."""
    ids = {caller.team.pk for caller in callers}
    with scope.every_team():
        lines = list(AuditEvent.objects.filter(action="content.viewed").order_by("pk"))
    return [line for line in lines if ids & {line.team_id, *(line.team_ids or ())}]


def test_a_look_at_responses_of_several_teams_is_one_line(admin: Client, callers: list[Caller]) -> None:
    for _ in range(2):
        admin.get(RESPONSES)
    (line,) = reads(*callers)
    assert line.team_id is None
    assert {caller.team.pk for caller in callers} <= {*line.team_ids}


def test_another_team_adds_a_line_for_itself_only(
    admin: Client, callers: list[Caller], make_caller: MakeCaller
) -> None:
    admin.get(RESPONSES)
    late = make_caller()
    add_response(late, input_preview="the question")
    admin.get(RESPONSES)
    assert len(reads(*callers)) == 1
    (line,) = reads(late)
    assert (line.team_id, line.target) == (late.team.pk, late.team.pk)


def test_each_of_the_teams_sees_the_line_without_the_others(admin: Client, callers: list[Caller]) -> None:
    admin.get(RESPONSES)
    (line,) = reads(*callers)
    for caller in callers:
        lead = member(caller.team, Role.TEAM_LEAD)
        pages = [
            lead.get(LIST),
            lead.get(LIST, {"team__id__exact": caller.team.pk}),
            lead.get(f"{LIST}{line.pk}/change/"),
            lead.get(f"/admin/tenants/team/{caller.team.pk}/change/?tab=audit"),
        ]
        shown = [unescape(text(page)) for page in pages] + [exported(lead, format="jsonl")]
        for page in shown:
            assert "content.viewed" in page
            for other in callers:
                assert (other.team.pk in page or other.team.name in page) == (other is caller)


def test_other_teams_do_not_see_the_line(
    admin: Client, callers: list[Caller], stranger: Client, developer: Client
) -> None:
    admin.get(RESPONSES)
    (line,) = reads(*callers)
    assert stranger.get(f"{LIST}{line.pk}/change/").status_code == 404
    assert "content.viewed" not in text(stranger.get(LIST))
    assert developer.get(LIST).status_code == 403


def test_row_security_shows_the_line_to_its_teams_only(
    admin: Client, callers: list[Caller], make_caller: MakeCaller
) -> None:
    outsider = make_caller()
    admin.get(RESPONSES)
    (line,) = reads(*callers)
    for caller, expected in [(outsider, False), *((caller, True) for caller in callers)]:
        with scope.team(caller.team.pk):
            assert AuditEvent.objects.filter(pk=line.pk).exists() is expected


def test_the_line_is_sealed_with_its_teams(admin: Client, callers: list[Caller]) -> None:
    admin.get(RESPONSES)
    (line,) = reads(*callers)
    audit_seals.seal_pending_lines(at=now() + timedelta(minutes=2))
    with scope.every_team():
        seal, mismatch = audit_seals.verify_event(line)
        assert (seal is not None, mismatch) == (True, "")
    before: Any = line.team_ids
    assert audit_seals.digest("", [line]) != audit_seals.digest("", [_with(line, before[:-1])])


def _with(line: AuditEvent, team_ids: list[str]) -> AuditEvent:
    line.team_ids = team_ids
    return line


def test_the_admin_api_lists_the_line_for_each_project(
    admin: Client, admin_client: OpenAI, callers: list[Caller]
) -> None:
    admin.get(RESPONSES)
    (line,) = reads(*callers)
    for caller in callers:
        listed = admin_client.admin.organization.audit_logs.list(project_ids=[caller.team.pk])
        (found,) = [entry for entry in listed if entry.id == f"audit_log-{line.pk}"]
        assert found.details["project_ids"] == line.team_ids  # type: ignore[attr-defined]  # an extension

"""The audit log: origin of events, seals, export, filters."""

import csv
import io
import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, connections
from django.test import Client

from core.clock import now
from core.origin import Origin, use_origin
from tenants import audit_seals, scope, services
from tenants.audit import audit
from tenants.models import AuditEvent, AuditSeal, Membership, Model, Upstream
from tenants.services import KeySpec
from tests.admin.conftest import CountQueries
from tests.admin.rows import streamed, text
from tests.support.api import Caller, MakeCaller

LIST = "/admin/tenants/auditevent/"


def write(caller: Caller, action: str = "thing.done", **fields: Any) -> AuditEvent:
    """Write an audit event for the team of `caller`."""
    with scope.every_team():
        audit(team_id=caller.team.pk, actor="user:ada", action=action, target="thing_1", **fields)
        return AuditEvent.objects.filter(team=caller.team).latest("pk")


def audit_of(caller: Caller, *, actor: str, target: str) -> None:
    """Write an audit event of the caller's team that mentions other objects."""
    with scope.every_team():
        audit(team_id=caller.team.pk, actor=actor, action="thing.mentioned", target=target)


def as_owner(sql: str, *values: Any) -> None:
    """Run SQL as the owner of the tables, because the application may not change audit events."""
    with connections["owner"].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT set_config('app.team_ids', '*', true)")
        cursor.execute(sql, values)
        cursor.execute("COMMIT")


@pytest.fixture
def sealed(caller: Caller) -> Iterator[AuditEvent]:
    """A sealed event. Its action is restored after the test."""
    line = write(caller, after={"name": "first"})
    audit_seals.seal_pending_lines(at=now() + timedelta(minutes=2))
    yield line
    as_owner("UPDATE tenants_auditevent SET action = 'thing.done' WHERE id = %s", line.pk)


def exported(client: Client, **query: str) -> str:
    """Return the body of an export."""
    answer: Any = client.get(f"{LIST}export/", query)
    assert answer.status_code == 200
    return streamed(answer)


def test_an_event_records_address_agent_and_request(lead: Client, caller: Caller) -> None:
    with use_origin(Origin(address="203.0.113.7", agent="a browser", request_id="req_1")):
        line = write(caller)
    assert (line.address, line.agent, line.request_id) == ("203.0.113.7", "a browser", "req_1")
    assert "203.0.113.7" in text(lead.get(LIST))
    assert "a browser" in text(lead.get(f"{LIST}{line.pk}/change/"))


@pytest.mark.parametrize("change", ["UPDATE tenants_auditevent SET action = 'x'", "DELETE FROM tenants_auditevent"])
def test_the_application_role_may_not_change_or_delete_events(change: str, caller: Caller) -> None:
    line = write(caller)
    with scope.every_team(), connection.cursor() as cursor, pytest.raises(ProgrammingError, match="permission denied"):
        cursor.execute(f"{change} WHERE id = %s", [line.pk])


@pytest.mark.slow
def test_a_seal_does_not_match_a_changed_event(admin: Client, sealed: AuditEvent) -> None:
    page = f"{LIST}{sealed.pk}/change/"
    assert "Unchanged" in text(admin.get(page))
    assert list(audit_seals.verify()) == []
    as_owner("UPDATE tenants_auditevent SET action = 'thing.undone' WHERE id = %s", sealed.pk)
    assert "Broken" in text(admin.get(page))
    assert list(audit_seals.verify()) != []
    with pytest.raises(CommandError, match="do not match"):
        call_command("audit_check")


def test_a_seal_does_not_match_a_missing_event(sealed: AuditEvent) -> None:
    with scope.every_team():
        seal = AuditSeal.objects.get(first_id__lte=sealed.pk, last_id__gte=sealed.pk)
        seal.lines += 1
        assert "lines" in audit_seals.check(seal, "")


def test_recent_events_are_not_sealed_yet(caller: Caller) -> None:
    line = write(caller)
    audit_seals.seal_pending_lines()
    with scope.every_team():
        assert not AuditSeal.objects.filter(last_id__gte=line.pk).exists()


def test_an_export_applies_the_filters_and_is_audited(lead: Client, caller: Caller) -> None:
    write(caller, "thing.wanted", after={"name": "=1+1"})
    write(caller, "thing.unwanted")
    rows = [json.loads(line) for line in exported(lead, action="thing.wanted", format="jsonl").splitlines()]
    assert [row["action"] for row in rows] == ["thing.wanted"]
    table = list(csv.DictReader(io.StringIO(exported(lead, action="thing.wanted", format="csv"))))
    assert [row["target"] for row in table] == ["thing_1"]
    assert "audit_log.exported" in text(lead.get(LIST))


def test_lines_name_their_actors_and_targets(lead: Client, caller: Caller) -> None:
    with scope.every_team():
        member = Membership.objects.get(team=caller.team)
        model = Model.objects.create(
            name=f"model-{uuid.uuid4().hex}", upstream=Upstream.objects.create(name=uuid.uuid4().hex)
        )
    User.objects.filter(pk=member.user_id).update(first_name="Ada", last_name="Lovelace")
    for action, target, name in (
        ("api_key.updated", caller.key.pk, caller.key.name),
        ("team.updated", caller.team.pk, caller.team.name),
        ("membership.updated", str(member.pk), member.user.get_username()),
        ("prices.updated", f"model:{model.pk}", model.name),
        ("session.started", f"user:{member.user.get_username()}", "Ada Lovelace"),
        ("vector_store.deleted", "vs_gone", "A former name"),
    ):
        with scope.every_team():
            before = {"name": "A former name"} if name == "A former name" else None
            actor = f"key:{caller.key.pk}"
            audit(team_id=caller.team.pk, actor=actor, action=action, target=target, before=before)
        (row,) = [json.loads(line) for line in exported(lead, action=action, format="jsonl").splitlines()]
        assert (row["actor_name"], row["target_name"], row["team_name"]) == (caller.key.name, name, caller.team.name)
        page = unescape(text(lead.get(LIST, {"action": action})))
        assert name in page
        assert target in page
    tab = unescape(text(lead.get(f"/admin/tenants/team/{caller.team.pk}/change/?tab=audit")))
    assert "Ada Lovelace" in tab


def test_names_need_no_query_for_each_line(lead: Client, caller: Caller, count_queries: CountQueries) -> None:
    def add() -> None:
        key = services.create_key(team=caller.team, spec=KeySpec(name=uuid.uuid4().hex)).key
        audit_of(caller, actor=f"key:{key.pk}", target=key.pk)

    add()
    number = count_queries(lead, LIST)
    for _ in range(5):
        add()
    assert count_queries(lead, LIST) == number


def test_objects_of_other_teams_are_not_named(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    audit_of(caller, actor=f"key:{other.key.pk}", target=other.team.pk)
    (row,) = [json.loads(line) for line in exported(lead, action="thing.mentioned", format="jsonl").splitlines()]
    assert (row["actor_name"], row["target_name"]) == ("", "")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_an_export_is_complete_and_read_in_parts(lead: Client, caller: Caller, kind: str) -> None:
    number = 2300
    with scope.every_team():
        AuditEvent.objects.bulk_create(
            AuditEvent(team=caller.team, actor="user:ada", action="thing.many", target=f"thing_{index}")
            for index in range(number)
        )
    body = exported(lead, action="thing.many", format=kind)
    rows = csv.DictReader(io.StringIO(body)) if kind == "csv" else map(json.loads, body.splitlines())
    assert [row["target"] for row in rows] == [f"thing_{index}" for index in reversed(range(number))]
    with scope.every_team():
        event = AuditEvent.objects.filter(team=caller.team, action="audit_log.exported").latest("pk")
    assert event.after["lines"] == number


def test_cells_of_a_csv_export_never_start_a_formula(lead: Client, caller: Caller) -> None:
    formulas = [("=cmd()", "+1"), ("-1", "@SUM(A1)"), ("\t=1", "\n=1"), ("\r=1", "＝1")]
    with scope.every_team():
        for actor, target in formulas:
            audit(team_id=caller.team.pk, actor=actor, action="thing.wanted", target=target)
    rows = csv.DictReader(io.StringIO(exported(lead, action="thing.wanted", format="csv"), newline=""))
    cells = [(row["actor"], row["target"]) for row in rows]
    assert sorted(cells) == sorted((f"'{actor}", f"'{target}") for actor, target in formulas)


def test_an_export_contains_no_events_of_other_teams(stranger: Client, caller: Caller) -> None:
    write(caller, "thing.secret")
    assert "thing.secret" not in exported(stranger, format="jsonl")
    assert stranger.get(f"{LIST}export/", {"format": "xml"}).status_code == 404


def test_a_developer_may_not_read_the_audit_log(developer: Client) -> None:
    assert [developer.get(f"{LIST}{path}").status_code for path in ("", "export/")] == [403, 403]


def test_the_audit_log_is_filtered_by_area_and_address(lead: Client, caller: Caller) -> None:
    write(caller, "api_key.made_up")
    assert "api_key.made_up" in text(lead.get(LIST, {"area": "api_key."}))
    assert "api_key.made_up" not in text(lead.get(LIST, {"area": "team."}))
    assert "api_key.made_up" not in text(lead.get(LIST, {"address": "203.0.113.99"}))

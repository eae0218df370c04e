"""Changes made in the admin are recorded in the audit log."""

import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tenants import scope
from tenants.models import AuditEvent, Membership, Role, Team, Upstream
from tests.admin.rows import member, text
from tests.support.api import Caller

LIST = "/admin/tenants/auditevent/"
NO_ROWS = {"TOTAL_FORMS": "0", "INITIAL_FORMS": "0"}


def events(action: str, target: object) -> list[AuditEvent]:
    """Audit events of an action on a row, oldest first."""
    with scope.every_team():
        return list(AuditEvent.objects.filter(action=action, target=str(target)).order_by("pk"))


def unique(word: str) -> str:
    """Return a unique name."""
    return f"{word} {uuid.uuid4().hex}"


def actor_of(client: Client) -> str:
    """Return the actor that the audit log records for this client."""
    return f"user:{User.objects.get(pk=client.session['_auth_user_id']).username}"


def test_creating_a_team_is_audited(admin: Client) -> None:
    name = unique("team")
    form = {
        "name": name,
        "disconnect_grace_seconds": "",
        "log_retention_hours": "48",
        "weight": "1",
        "full_text_search": "on",
        "allow_fallback_models": "on",
        "tools": "*",
    }
    assert admin.post("/admin/tenants/team/add/", form).status_code == 302
    with scope.every_team():
        team = Team.objects.get(name=name)
    (event,) = events("team.created", team.pk)
    assert (event.actor, event.team_id) == (actor_of(admin), team.pk)
    assert event.after == {"name": name, "disconnect_grace_seconds": None, "log_retention_hours": 48}


def test_a_change_is_audited_with_the_old_values(admin: Client, caller: Caller) -> None:
    boxes = {"full_text_search": "on", "allow_fallback_models": "on"}
    kept = {"log_retention_hours": "24", "weight": "1", "tools": "*", **boxes}
    form = {"name": caller.team.name, "disconnect_grace_seconds": "0", **kept}
    admin.post(f"/admin/tenants/team/{caller.team.pk}/change/", form)
    (event,) = events("team.updated", caller.team.pk)
    assert (event.before, event.after) == ({"disconnect_grace_seconds": 30}, {"disconnect_grace_seconds": 0})


def test_adding_changing_and_removing_members_is_audited(admin: Client, caller: Caller) -> None:
    user = User.objects.create(username=unique("user"))
    url = f"/admin/tenants/team/{caller.team.pk}/members/"
    admin.post(url, {"do": "add", "person": user.username, "role": "developer"})
    with scope.every_team():
        pk = Membership.objects.get(user=user).pk
    admin.post(url, {"do": "change", "member": pk, "role": "auditor", "content": "yes"})
    admin.post(url, {"do": "remove", "member": pk, "sure": "1"})
    actions = [f"membership.{verb}" for verb in ("created", "updated", "deleted")]
    found = [events(action, pk) for action in actions]
    assert [[event.team_id for event in lines] for lines in found] == [[caller.team.pk]] * 3
    change = found[1][0]
    assert change.before == {"role": "developer", "view_content": None}
    assert change.after == {"role": "auditor", "view_content": True}


def test_creating_and_revoking_a_key_is_audited_with_the_actor(lead: Client, caller: Caller) -> None:
    form = {"team": caller.team.pk, "name": unique("key"), "scopes": ["*"], "tools": ["*"], "lifetime": ""}
    lead.post("/admin/tenants/apikey/add/", form)
    lead.post(f"/admin/tenants/apikey/{caller.key.pk}/revoke/")
    with scope.every_team():
        made = AuditEvent.objects.get(action="api_key.created", after__name=form["name"])
    (revoked,) = events("api_key.revoked", caller.key.pk)
    assert [made.actor, revoked.actor] == [actor_of(lead)] * 2


def test_the_api_key_of_an_upstream_is_masked_in_the_audit_log(admin: Client) -> None:
    name = unique("upstream")
    shown = {"name": name, "address": "http://127.0.0.1:9/v1", "wire_api": "responses"}
    form = {**shown, "new_api_key": "very-secret"}
    assert admin.post("/admin/tenants/upstream/add/", form).status_code == 302
    upstream = Upstream.objects.defer("api_key").get(name=name)
    (event,) = events("upstream.created", upstream.pk)
    assert event.after == {**shown, "new_api_key": "•••"}
    admin.post(f"/admin/tenants/upstream/{upstream.pk}/delete/", {"post": "yes"})
    assert len(events("upstream.deleted", upstream.pk)) == 1


@pytest.mark.slow
def test_changes_of_users_are_audited_with_masked_passwords(admin: Client) -> None:
    name, password = unique("user").replace(" ", "-"), "a rather long password 7"
    form = {"username": name, "password1": password, "password2": password, "is_staff": "on"}
    assert admin.post("/admin/auth/user/add/", form).status_code == 302
    user = User.objects.get(username=name)
    again = {"password1": password + "!", "password2": password + "!", "usable_password": "true"}
    assert admin.post(f"/admin/auth/user/{user.pk}/password/", again).status_code == 302
    (created,), (changed,) = events("user.created", user.pk), events("user.password_changed", user.pk)
    assert created.after.items() >= {"username": name, "password1": "•••", "password2": "•••"}.items()
    assert password not in str([created.after, changed.before, changed.after])


def test_a_form_with_errors_is_not_audited(admin: Client, caller: Caller) -> None:
    form = {
        "name": "",
        "disconnect_grace_seconds": "-1",
        "log_retention_hours": "24",
        "weight": "1",
        "tools": "*",
    }
    assert admin.post(f"/admin/tenants/team/{caller.team.pk}/change/", form).status_code == 200
    assert events("team.updated", caller.team.pk) == []


@pytest.mark.parametrize(("role", "status"), [(Role.TEAM_LEAD, 200), (Role.AUDITOR, 200), (Role.DEVELOPER, 403)])
def test_only_leads_and_auditors_may_read_the_audit_log(role: Role, status: int, caller: Caller) -> None:
    assert member(caller.team, role).get(LIST).status_code == status


def test_the_audit_log_is_filtered_by_target_and_action(admin: Client, caller: Caller) -> None:
    queries = [{"target": caller.key.pk, "action": f"api_key.{verb}"} for verb in ("created", "revoked")]
    (event,) = [event.pk for event in events("api_key.created", caller.key.pk)]
    assert [f"{LIST}{event}/change/" in text(admin.get(LIST, query)) for query in queries] == [True, False]


@pytest.mark.parametrize("path", ["change/", "delete/"])
def test_audit_events_cannot_be_changed_or_deleted_in_the_admin(path: str, admin: Client, caller: Caller) -> None:
    (event,) = events("api_key.created", caller.key.pk)
    assert admin.post(f"{LIST}{event.pk}/{path}", {"post": "yes", "actor": "nobody"}).status_code == 403
    assert len(events("api_key.created", caller.key.pk)) == 1

"""Roles in the admin: visibility of teams, permissions of staff, and content access."""

from datetime import timedelta

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from console.widgets import ConsoleAdmin
from core.clock import now
from tenants import scope
from tenants.console.content_access import audit_read
from tenants.console.viewer import viewer_of
from tenants.models import AuditEvent, Membership, Reveal, Role, StaffMember, StaffRole, Team
from tests.admin.rows import add_response, sign_in, text
from tests.support.api import Caller

REASON = "a customer asks why the answer was cut"


def request_of(client: Client, path: str = "/admin/") -> object:
    """Return a request of the user of a browser."""
    request = RequestFactory().get(path)
    request.user = User.objects.get(pk=client.session["_auth_user_id"])
    return request


def reveal(client: Client, team: Team, **fields: str) -> int:
    """Request content access to a team and return the HTTP status."""
    return client.post("/admin/content/reveal/", {"team": team.pk, "reason": REASON, **fields}).status_code


def reads(client: Client, team: Team) -> bool:
    """Return whether the user has content access to a team."""
    return viewer_of(request_of(client)).may_read(team.pk)  # type: ignore[arg-type]  # a request is all that it is


@pytest.mark.slow
@pytest.mark.parametrize("staff", list(StaffRole))
def test_staff_see_the_rows_of_every_team(staff: StaffRole, caller: Caller) -> None:
    response = add_response(caller)
    seen = sign_in(staff=staff)
    assert response.pk in text(seen.get("/admin/responses/response/"))
    for page in ("tenants/team", "tenants/apikey", "tenants/auditevent", "tenants/upstream", "auth/user"):
        assert seen.get(f"/admin/{page}/").status_code == 200, page


def test_an_operator_manages_upstreams_but_assigns_no_roles(operator: Client, caller: Caller) -> None:
    assert operator.get("/admin/tenants/upstream/add/?plain=1").status_code == 200
    assert operator.get("/admin/auth/user/add/").status_code == 403
    assert operator.get("/admin/tenants/membership/add/").status_code == 403


def test_only_administrators_can_extend_their_own_permissions(
    operator: Client, platform_auditor: Client, lead: Client, developer: Client, auditor: Client
) -> None:
    for client in (operator, platform_auditor, lead, developer, auditor):
        user = User.objects.get(pk=client.session["_auth_user_id"])
        form = {"username": user.username, "is_active": "on", "is_staff": "on", "is_superuser": "on"}
        staff = {"staff_member-TOTAL_FORMS": "1", "staff_member-INITIAL_FORMS": "0", "staff_member-0-role": "operator"}
        # 404 for those who see no users at all.
        assert client.post(f"/admin/auth/user/{user.pk}/change/", {**form, **staff}).status_code in {403, 404}
        user.refresh_from_db()
        assert not user.is_superuser
    for client in (developer, auditor):
        with scope.every_team():
            own = Membership.objects.get(user_id=client.session["_auth_user_id"])
        page = f"/admin/tenants/membership/{own.pk}/change/"
        assert client.post(page, {"role": "team_lead", "view_content": "on"}).status_code == 403
        with scope.every_team():
            assert Membership.objects.get(pk=own.pk).role == own.role
    assert StaffMember.objects.filter(user_id=lead.session["_auth_user_id"]).count() == 0


def test_a_platform_auditor_cannot_create_anything(platform_auditor: Client, caller: Caller) -> None:
    for page in ("tenants/upstream", "tenants/model", "tenants/team", "tenants/apikey", "tenants/guardrail"):
        assert platform_auditor.get(f"/admin/{page}/add/").status_code == 403, page


@pytest.mark.parametrize(
    ("page", "lookup"),
    [
        ("responses/response", "input_preview__startswith"),
        ("responses/toolcall", "output__startswith"),
        ("responses/toolcall", "arguments__contains"),
        ("responses/toolcall", "error_preview__startswith"),
        ("responses/chatcompletion", "messages__icontains"),
        ("responses/batch", "errors__icontains"),
        ("responses/webhookdelivery", "data__icontains"),
        ("responses/webhookdelivery", "last_body__startswith"),
        ("responses/webhookendpoint", "secret__startswith"),
        ("tenants/apikey", "digest__startswith"),
        ("tenants/guardrail", "hook_secret__startswith"),
        ("tenants/auditevent", "after__icontains"),
    ],
)
def test_lists_cannot_be_filtered_by_hidden_columns(
    auditor: Client, platform_auditor: Client, page: str, lookup: str
) -> None:
    for client in (auditor, platform_auditor):
        assert client.get(f"/admin/{page}/", {lookup: "a"}).status_code == 400
    assert all(isinstance(each, ConsoleAdmin) for each in site._registry.values())


def test_a_user_without_a_role_sees_no_responses(caller: Caller) -> None:
    response = add_response(caller)
    assert response.pk not in text(sign_in().get("/admin/responses/response/", follow=True))


def test_content_access_depends_on_the_role(
    lead: Client, developer: Client, auditor: Client, operator: Client, admin: Client, caller: Caller
) -> None:
    people = [admin, lead, developer, auditor, operator]
    assert [reads(client, caller.team) for client in people] == [True, True, True, False, False]


def test_content_access_can_be_granted_and_revoked(developer: Client, operator: Client, caller: Caller) -> None:
    with scope.every_team():
        Membership.objects.filter(user_id=developer.session["_auth_user_id"]).update(view_content=False)
    StaffMember.objects.filter(user_id=operator.session["_auth_user_id"]).update(view_content=True)
    assert not reads(developer, caller.team)
    assert reads(operator, caller.team)


def test_a_reveal_lasts_30_minutes_and_is_audited(operator: Client, caller: Caller, make_caller: object) -> None:
    assert reveal(operator, caller.team) == 302
    assert reads(operator, caller.team)
    with scope.every_team():
        row = Reveal.objects.get(team=caller.team)
        noted = AuditEvent.objects.get(team=caller.team, action="content.revealed")
        assert timedelta(minutes=29) < row.until - now() <= timedelta(minutes=30)
        assert (noted.after["reason"], noted.target) == (REASON, caller.team.pk)
        Reveal.objects.filter(pk=row.pk).update(until=now())
    assert not reads(operator, caller.team)


def test_a_reveal_requires_a_reason(operator: Client, caller: Caller) -> None:
    assert reveal(operator, caller.team, reason="") == 200
    assert not reads(operator, caller.team)


def test_an_invisible_team_cannot_be_revealed(stranger: Client, caller: Caller) -> None:
    assert reveal(stranger, caller.team) == 404
    assert not reads(stranger, caller.team)


@pytest.mark.parametrize(
    "onward",
    [
        "https://evil.example/",
        "//evil.example/",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https:evil.example",
        "javascript:alert(1)",
        " //evil.example",
        "/\t/evil.example",
    ],
)
def test_no_redirect_leads_to_another_site(operator: Client, caller: Caller, onward: str) -> None:
    reveal_form = {"team": caller.team.pk, "reason": REASON, "next": onward}
    assert operator.post("/admin/content/reveal/", reveal_form)["Location"] == "/admin/"
    columns = operator.post("/admin/responses/response/columns/", {"column": ["id"], "back": onward})
    assert columns["Location"] == "/admin/responses/response/"
    signed_in = operator.get("/account/login/", {"next": onward})
    assert signed_in["Location"] == "/admin/"


def test_a_reveal_redirects_to_the_page_before_it(operator: Client, caller: Caller) -> None:
    form = {"team": caller.team.pk, "reason": REASON, "next": "/admin/tenants/team/"}
    assert operator.post("/admin/content/reveal/", form)["Location"] == "/admin/tenants/team/"


def test_reading_by_a_non_member_is_audited_once(admin: Client, developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    with scope.every_team():
        for client in (admin, admin, developer):
            audit_read(viewer_of(request_of(client)), response, team_id=caller.team.pk)  # type: ignore[arg-type]
        noted = AuditEvent.objects.filter(action="content.viewed", target=response.pk)
        assert [event.actor for event in noted] == [f"user:{User.objects.get(pk=admin.session['_auth_user_id'])}"]


def test_a_team_auditor_reads_the_audit_log_but_creates_no_keys(auditor: Client, caller: Caller) -> None:
    assert auditor.get("/admin/tenants/auditevent/").status_code == 200
    assert auditor.get("/admin/tenants/apikey/add/").status_code == 403
    assert Role.AUDITOR.value != StaffRole.AUDITOR.value

"""Team page: tabs, members and suspension, by role."""

import re
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from core.errors import Forbidden
from responses.models import Status
from tenants import directory, scope, services
from tenants.models import AuditEvent, Membership, Model, ModelVisibility, Role, StaffRole, Team, Upstream, UsageRecord
from tenants.prices import PriceList
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_response, member, sign_in, text
from tests.support.api import Caller, MakeCaller

TABS = ["overview", "members", "keys", "models", "webhooks", "usage", "audit", "settings", "danger"]


def page(team: Team, tab: str = "") -> str:
    """Return the URL of a tab."""
    return f"/admin/tenants/team/{team.pk}/change/?tab={tab}"


def person(**columns: Any) -> User:
    """Create a user without a team."""
    return User.objects.create(username=f"person-{uuid.uuid4().hex}", is_staff=True, **columns)


def roles(team: Team) -> dict[str, str]:
    """Return the roles of the members of a team by user name."""
    with scope.every_team():
        return {row.user.username: row.role for row in Membership.objects.filter(team=team).select_related("user")}


def submit(client: Client, team: Team, **form: Any) -> str:
    """Submit a form of the members tab and return the next page."""
    return text(client.post(f"/admin/tenants/team/{team.pk}/members/", form, follow=True))


def membership(team: Team, role: Role) -> Membership:
    """Return the membership of the first member with a role."""
    with scope.every_team():
        return Membership.objects.filter(team=team, role=role).order_by("pk")[0]


# -- tabs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tab", TABS)
def test_an_administrator_opens_each_tab(tab: str, admin: Client, caller: Caller, count_queries: CountQueries) -> None:
    answer = admin.get(page(caller.team, tab))
    assert answer.status_code == 200
    assert f'?tab={tab}" class="active"' in text(answer)
    assert count_queries(admin, page(caller.team, tab)) <= 30


def test_the_counts_of_the_list_lead_to_lists_of_the_team(
    admin: Client, caller: Caller, make_caller: MakeCaller
) -> None:
    other = make_caller()
    listed = text(admin.get("/admin/tenants/team/", {"q": caller.team.pk}))
    links = re.findall(r'href="(/admin/tenants/(?:membership|apikey)/\?[^"]+)"', listed)
    assert len(links) == 2
    for link in links:
        answer = admin.get(link)
        assert answer.status_code == 200
        assert other.key.last_four not in text(answer)


@pytest.mark.slow
def test_tabs_depend_on_the_role(lead: Client, developer: Client, auditor: Client, caller: Caller) -> None:
    shown = [
        [tab for tab in TABS if f"?tab={tab}" in text(each.get(page(caller.team)))]
        for each in (lead, developer, auditor)
    ]
    assert shown == [
        TABS[:-1],
        [tab for tab in TABS[:-1] if tab != "audit"],
        TABS[:-1],
    ]
    assert "api_key.created" not in text(developer.get(page(caller.team, "audit")))


@pytest.mark.parametrize(
    "path", ["change/?tab=members", "change/?tab=keys", "change/?tab=danger", "members/", "suspend/"]
)
def test_another_team_looks_like_an_unknown_team(path: str, stranger: Client, caller: Caller) -> None:
    found, unknown = (stranger.get(f"/admin/tenants/team/{each}/{path}") for each in (caller.team.pk, "team_unknown"))
    assert (found.status_code, found.content) == (unknown.status_code, unknown.content)
    assert found.status_code == 404
    assert caller.team.name not in text(found)


def test_the_models_tab_shows_only_models_of_the_team(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller().team
    upstream = Upstream.objects.create(name=f"up {uuid.uuid4().hex}", base_url="http://127.0.0.1:9/v1")
    names = {team.pk: f"model-{uuid.uuid4().hex}" for team in (caller.team, other)}
    with scope.every_team():
        for team_id, name in names.items():
            model = Model.objects.create(name=name, upstream=upstream)
            services.set_prices(model, PriceList.simple(input="0.4", output="1.6").entries)
            ModelVisibility.objects.create(model=model, team_id=team_id)
    shown = text(lead.get(page(caller.team, "models")))
    assert (names[caller.team.pk] in shown, names[other.pk] in shown, "$0.40 in" in shown) == (True, False, True)
    with scope.every_team():
        upstream.delete()


def test_the_keys_tab_links_to_keys_and_their_creation(lead: Client, auditor: Client, caller: Caller) -> None:
    shown = text(lead.get(page(caller.team, "keys")))
    assert caller.key.prefix in shown
    assert f"/admin/tenants/apikey/add/?team={caller.team.pk}" in shown
    assert "/admin/tenants/apikey/add/" not in text(auditor.get(page(caller.team, "keys")))


def test_only_operators_change_settings(operator: Client, lead: Client, caller: Caller) -> None:
    form = {
        "name": caller.team.name,
        "disconnect_grace_seconds": "7",
        "log_retention_hours": "24",
        "weight": "3",
        "tools": "*",
    }
    assert [each.post(page(caller.team, "settings"), form).status_code for each in (lead, operator)] == [403, 302]
    with scope.every_team():
        team = Team.objects.get(pk=caller.team.pk)
        assert (team.disconnect_grace_seconds, team.weight) == (7, 3)


def test_overview_and_usage_count_only_the_own_team(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    for who, count in ((caller, 3), (other, 5)):
        for place in range(count):
            status = Status.FAILED if place == 0 else Status.COMPLETED
            add_response(who, model=f"model of {who.team.pk}", status=status)
    with scope.every_team():
        UsageRecord.objects.create(
            team=caller.team, object_id="x", model="its-model", upstream_id="u", upstream_model="m",
            input_tokens=1200, cost="2.5", outcome="stop",
        )  # fmt: skip
    shown = " ".join(text(lead.get(page(caller.team, "overview"))).split())
    assert '<div class="c-tile-value ">3</div>' in shown
    assert '<div class="c-tile-value bad">33.3 %</div>' in shown
    used = text(lead.get(page(caller.team, "usage")))
    assert ("its-model" in used, "1,200" in used, "$2.50" in used) == (True, True, True)


# -- members -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["username", "email"])
def test_a_lead_adds_a_member_by_exact_name_or_address(by: str, lead: Client, caller: Caller) -> None:
    user = person(email=f"{uuid.uuid4().hex}@example.com")
    name = user.username if by == "username" else user.email.upper()
    assert "is now a member of" in submit(lead, caller.team, do="add", person=f" {name} ", role="auditor")
    assert roles(caller.team)[user.username] == "auditor"


def test_a_partial_name_finds_no_user(lead: Client, caller: Caller) -> None:
    user, gone = person(), person(is_active=False)
    for name in (user.username[:-1], "", "@", gone.username):
        assert user.username not in submit(lead, caller.team, do="add", person=name, role="developer")
    assert len(roles(caller.team)) == 1


def test_an_ambiguous_address_finds_no_user(lead: Client, caller: Caller) -> None:
    address = f"{uuid.uuid4().hex}@example.com"
    for _ in range(2):
        person(email=address)
    assert "no active user with exactly" in submit(lead, caller.team, do="add", person=address, role="developer")


def test_a_lead_changes_and_removes_members(lead: Client, developer: Client, caller: Caller) -> None:
    row = membership(caller.team, Role.DEVELOPER)
    submit(lead, caller.team, do="change", member=row.pk, role="auditor", content="yes")
    with scope.every_team():
        row.refresh_from_db()
    assert (row.role, row.view_content) == ("auditor", True)
    assert "Remove this member?" in submit(lead, caller.team, do="remove", member=row.pk)
    submit(lead, caller.team, do="remove", member=row.pk, sure="1")
    assert list(roles(caller.team).values()) == ["team_lead"]


@pytest.mark.parametrize("form", [{"do": "remove", "sure": "1"}, {"do": "change", "role": "developer"}])
def test_a_team_keeps_its_last_lead(form: dict[str, str], lead: Client, caller: Caller) -> None:
    row = membership(caller.team, Role.TEAM_LEAD)
    assert "needs at least one lead" in submit(lead, caller.team, member=row.pk, **form)
    assert list(roles(caller.team).values()) == ["team_lead"]
    member(caller.team, Role.TEAM_LEAD)
    submit(lead, caller.team, member=row.pk, **form)
    assert sorted(roles(caller.team).values()) != ["team_lead", "team_lead"]


def test_a_lead_cannot_assign_staff_roles(lead: Client, developer: Client, caller: Caller) -> None:
    row = membership(caller.team, Role.DEVELOPER)
    for role in ("operator", "administrator", ""):
        assert "Nothing was changed." in submit(lead, caller.team, do="change", member=row.pk, role=role)
    assert sorted(roles(caller.team).values()) == ["developer", "team_lead"]


def test_a_member_of_another_team_cannot_be_removed(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller().team
    member(other, Role.DEVELOPER)
    row = membership(other, Role.DEVELOPER)
    assert "Nothing was changed." in submit(lead, caller.team, do="remove", member=row.pk, sure="1")
    assert list(roles(other).values()) == ["developer"]


@pytest.mark.parametrize("role", [Role.DEVELOPER, Role.AUDITOR, StaffRole.OPERATOR, StaffRole.AUDITOR])
def test_only_leads_manage_members(role: Role | StaffRole, caller: Caller) -> None:
    client = member(caller.team, role) if isinstance(role, Role) else sign_in(staff=role)
    before, form = roles(caller.team), {"do": "add", "person": person().username, "role": "auditor"}
    assert client.post(f"/admin/tenants/team/{caller.team.pk}/members/", form).status_code == 403
    assert "Add or invite" not in text(client.get(page(caller.team, "members")))
    assert roles(caller.team) == before


def test_the_member_list_protects_the_last_lead(lead: Client, caller: Caller) -> None:
    row = membership(caller.team, Role.TEAM_LEAD)
    url = f"/admin/tenants/membership/{row.pk}"
    form = {"role": "developer", "view_content": "unknown"}
    assert "needs at least one lead" in text(lead.post(f"{url}/change/", form))
    assert lead.post(f"{url}/delete/", {"post": "yes"}).status_code == 403
    assert lead.get("/admin/tenants/membership/add/").status_code == 403
    member(caller.team, Role.TEAM_LEAD)
    assert lead.post(f"{url}/change/", form).status_code == 302


# -- suspension --------------------------------------------------------------------------------------------------------


def test_an_operator_suspends_and_resumes_a_team(operator: Client, lead: Client, caller: Caller) -> None:
    url = f"/admin/tenants/team/{caller.team.pk}/suspend/"
    assert "Suspend this team?" in text(operator.get(url))
    assert "was suspended" in text(operator.post(url, {"do": "suspend"}, follow=True))
    with pytest.raises(Forbidden, match="suspended"):
        directory.principal(caller.secret)
    assert "This team has been suspended" in text(lead.get(page(caller.team)))
    operator.post(url, {"do": "resume"})
    with scope.every_team():
        assert Team.objects.get(pk=caller.team.pk).suspended_at is None
        lines = AuditEvent.objects.filter(target=caller.team.pk, action__in=["team.suspended", "team.resumed"])
        assert lines.count() == 2


def test_only_operators_can_suspend_a_team(
    lead: Client, developer: Client, platform_auditor: Client, caller: Caller
) -> None:
    url = f"/admin/tenants/team/{caller.team.pk}/suspend/"
    assert [each.post(url, {"do": "suspend"}).status_code for each in (lead, developer, platform_auditor)] == [403] * 3
    assert directory.principal(caller.secret).team_id == caller.team.pk


def test_the_team_list_shows_suspended_teams(admin: Client, caller: Caller) -> None:
    services.suspend_team(team=caller.team, suspended=True)
    assert "Suspended" in text(admin.get("/admin/tenants/team/", {"q": caller.team.name}))


def test_only_operators_restrict_the_models_of_a_team(lead: Client, operator: Client, caller: Caller) -> None:
    page = f"/admin/tenants/team/{caller.team.pk}/change/?tab=settings"
    form = {"name": caller.team.name, "log_retention_hours": 24, "tools": ["*"], "time_zone": "UTC", "weight": 1}
    form |= {"unknown_usage": "estimate", "model_policy": "allow_list", "model_names": "small, large"}
    assert lead.post(page, form).status_code == 403
    assert operator.post(page, form).status_code == 302
    with scope.team(caller.team.pk):
        team = Team.objects.get(pk=caller.team.pk)
    assert (team.model_policy, team.model_names) == ("allow_list", ["small", "large"])
    # A checkbox that is not sent is off.
    assert not team.allow_fallback_models

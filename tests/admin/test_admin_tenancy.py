"""Isolation of teams in the admin, enforced by the views and by row-level security."""

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from conversations.models import Section
from responses.models import Response
from tenants import scope
from tenants.middleware import TeamScopeMiddleware
from tenants.models import AuditEvent, Membership, Role, Team, UsageRecord
from tests.admin.rows import add_events, add_items, add_response, member, page_url, sign_in, text, user_message
from tests.support.api import Caller, MakeCaller

MARK = "the-first-teams-words"
LISTS = ["team", "apikey", "membership", "usagerecord", "auditevent"]


@pytest.fixture
def response(caller: Caller) -> Response:
    """A response of `caller` with content and an event log."""
    made = add_response(caller, input_preview=MARK, metadata={"mark": MARK})
    add_items(made, Section.INPUT, user_message(MARK))
    add_events(made, 3)
    return made


def own_rows(caller: Caller) -> dict[str, str]:
    """Create a row of `caller`'s team for each list."""
    with scope.every_team():
        person = User.objects.create(username=f"person of {caller.team.pk}")
        belongs = Membership.objects.create(team=caller.team, user=person)
        used = UsageRecord.objects.create(
            team=caller.team, object_id=MARK, model=MARK, upstream_id="u", upstream_model="m"
        )
        noted = AuditEvent.objects.create(team=caller.team, actor="user:x", action="x.y", target=MARK)
    keys = [caller.team.pk, caller.key.pk, belongs.pk, used.pk, noted.pk]
    return dict(zip(LISTS, map(str, keys), strict=True))


def test_a_response_of_another_team_is_reported_as_unknown(stranger: Client, response: Response) -> None:
    foreign, unknown = (
        stranger.get(f"/admin/responses/response/{response_id}/change/")
        for response_id in (response.pk, "resp_unknown")
    )
    assert foreign.status_code == unknown.status_code == 404
    assert text(foreign) == text(unknown)
    assert MARK not in text(stranger.get("/admin/"))


@pytest.mark.parametrize("path", ["change/?tab=events", "history/", "delete/", "change/?_popup=1"])
def test_no_page_of_the_response_leaks_content_to_another_team(path: str, stranger: Client, response: Response) -> None:
    answer = stranger.get(page_url(response).replace("change/", path))
    assert answer.status_code in {403, 404}
    assert MARK not in text(answer)


@pytest.mark.parametrize("query", ["", "?q={id}", "?period=30d", "?team__id__exact={team}", "?id={id}", "?p=2"])
def test_no_query_lists_a_response_of_another_team(query: str, stranger: Client, response: Response) -> None:
    url = "/admin/responses/response/" + query.format(id=response.pk, team=response.team_id)
    page = text(stranger.get(url, follow=True))
    assert MARK not in page
    assert f"{response.pk}/change/" not in page


@pytest.mark.parametrize("page", LISTS)
def test_no_list_shows_rows_of_another_team(page: str, stranger: Client, caller: Caller) -> None:
    row = own_rows(caller)[page]
    seen = [stranger.get(f"/admin/tenants/{page}/"), stranger.get(f"/admin/tenants/{page}/{row}/change/")]
    assert [answer.status_code for answer in seen] == [200, 404]
    pages = "".join(map(text, seen))
    assert [word for word in (MARK, caller.team.pk, caller.team.name, caller.key.prefix) if word in pages] == []


@pytest.mark.parametrize("page", LISTS)
def test_a_lead_sees_the_rows_of_their_team(page: str, lead: Client, caller: Caller) -> None:
    row = own_rows(caller)[page]
    seen = [lead.get(f"/admin/tenants/{page}/"), lead.get(f"/admin/tenants/{page}/{row}/change/")]
    assert [answer.status_code for answer in seen] == [200, 200]
    assert f"/admin/tenants/{page}/{row.replace('_', '_5F')}/change/" in text(seen[0])


def test_filter_choices_are_limited_to_the_users_team(stranger: Client, caller: Caller) -> None:
    query = {"app_label": "responses", "model_name": "response", "field_name": "team", "term": ""}
    for field in ("team", "api_key"):
        found = stranger.get("/admin/autocomplete/", {**query, "field_name": field}).json()["results"]
        assert len(found) == 1
        assert found[0]["id"] not in {caller.team.pk, caller.key.pk}


@pytest.mark.parametrize("page", ["tenants/model", "tenants/upstream", "auth/user"])
def test_only_administrators_see_global_objects(page: str, lead: Client) -> None:
    assert [lead.get(f"/admin/{page}/{path}").status_code for path in ("", "add/")] == [403, 403]


def test_a_lead_cannot_create_change_or_delete_teams(lead: Client, caller: Caller) -> None:
    row = own_rows(caller)["team"]
    tried = [lead.post(f"/admin/tenants/team/{path}") for path in ("add/", f"{row}/change/", f"{row}/delete/")]
    assert [answer.status_code for answer in tried] == [403] * 3


def test_a_key_of_another_team_cannot_be_revoked(stranger: Client, caller: Caller) -> None:
    assert stranger.post(f"/admin/tenants/apikey/{caller.key.pk}/revoke/").status_code == 404
    with scope.every_team():
        caller.key.refresh_from_db()
    assert caller.key.revoked_at is None


def test_a_role_in_one_team_grants_nothing_in_another(caller: Caller, make_caller: MakeCaller) -> None:
    led = make_caller()
    client = sign_in({led.team.pk: Role.TEAM_LEAD, caller.team.pk: Role.DEVELOPER})
    assert client.post(f"/admin/tenants/apikey/{caller.key.pk}/revoke/").status_code == 403
    log = text(client.get("/admin/tenants/auditevent/"))
    assert led.key.pk in log
    assert caller.key.pk not in log


def test_a_member_of_two_teams_sees_both(caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    rows = [add_response(caller), add_response(other)]
    page = text(
        sign_in({caller.team.pk: Role.AUDITOR, other.team.pk: Role.DEVELOPER}).get("/admin/responses/response/")
    )
    assert [row.pk in page for row in rows] == [True, True]


def test_an_administrator_sees_every_team(admin: Client, response: Response, make_caller: MakeCaller) -> None:
    other = add_response(make_caller())
    page = text(admin.get("/admin/responses/response/"))
    assert [row.pk in page for row in (response, other)] == [True, True]


def teams_seen(user: User | AnonymousUser, path: str = "/admin/") -> list[str]:
    """Return the teams that an unfiltered query finds during a request of a user."""
    request = RequestFactory().get(path)
    request.user = user
    seen: list[str] = []

    def view(_: HttpRequest) -> HttpResponse:
        seen.extend(Team.objects.values_list("pk", flat=True))
        return HttpResponse()

    TeamScopeMiddleware(view)(request)
    return seen


def test_row_level_security_filters_an_unfiltered_query(caller: Caller, make_caller: MakeCaller) -> None:
    make_caller()
    someone = User.objects.get(pk=member(caller.team).session["_auth_user_id"])
    assert teams_seen(someone) == [caller.team.pk]
    assert teams_seen(User.objects.create(username=f"lonely {caller.team.pk}")) == []
    assert teams_seen(AnonymousUser()) == []
    assert teams_seen(someone, path="/elsewhere/") == []


def test_a_view_that_raises_is_rolled_back(caller: Caller) -> None:
    request = RequestFactory().get("/admin/")
    request.user = User.objects.create(username=f"root of {caller.team.pk}", is_superuser=True)

    def half(request: HttpRequest) -> HttpResponse:
        Team.objects.filter(pk=caller.team.pk).update(log_retention_hours=1)
        middleware.process_exception(request, ValueError())
        return HttpResponse(status=500)

    middleware = TeamScopeMiddleware(half)
    middleware(request)
    with scope.every_team():
        assert Team.objects.get(pk=caller.team.pk).log_retention_hours == 24


def test_a_failed_form_is_rolled_back(admin: Client, caller: Caller) -> None:
    admin.raise_request_exception = False
    with connection.execute_wrapper(_fail_after_audit):
        form = {
            "name": "changed",
            "disconnect_grace_seconds": "30",
            "log_retention_hours": "24",
            "weight": "1",
            "tools": "*",
        }
        inline = {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
        answer = admin.post(f"/admin/tenants/team/{caller.team.pk}/change/", {**form, **inline})
    assert answer.status_code == 500
    with scope.every_team():
        assert Team.objects.get(pk=caller.team.pk).name == caller.team.name


def _fail_after_audit(execute: object, sql: str, params: object, many: bool, context: object) -> object:
    """Fail the insert into Django's admin log, the last statement of a form."""
    assert callable(execute)
    if 'INSERT INTO "django_admin_log"' in sql:
        raise RuntimeError
    return execute(sql, params, many, context)

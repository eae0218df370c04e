"""Playground: roles, short-lived API keys, and reopening the request of a response."""

import json
from typing import Any

import httpx2
import pytest
from django.contrib.auth.models import User
from django.test import Client

from core.clock import now
from responses.models import Response
from responses.models.vector_stores import VectorStore
from tenants import scope
from tenants.models import ApiKey, AuditEvent, KeySource, Membership, Role
from tests.admin.rows import add_response, member, sign_in, text
from tests.support.api import Api, Caller, MakeCaller
from tests.support.site_client import SiteClient
from tests.support.upstream import Script
from tests.support.web import WebProcess

URL = "/admin/playground/"


def page_data(page: str) -> dict[str, Any]:
    """Return the JSON that the page passes to its script."""
    block = page.partition('<script id="playground-data" type="application/json">')[2].partition("</script>")[0]
    read: dict[str, Any] = json.loads(block)
    return read


def create_key(client: Client, caller: Caller) -> dict[str, Any]:
    """Create a playground key through the page."""
    answer = client.post(f"{URL}key/", {"team": caller.team.pk})
    assert answer.status_code == 200
    created: dict[str, Any] = answer.json()
    return created


@pytest.fixture
def response(api: Api, caller: Caller, script: Script) -> Response:
    """A response created through the API."""
    script.say("It left.")
    body = {
        "model": script.model,
        "instructions": "Be brief.",
        "input": "Where is </script><b>my</b> parcel?",
        "temperature": 0.3,
        "tools": [{"type": "function", "name": "track", "parameters": {"type": "object"}}],
    }
    answer = api.create(**body)
    with scope.team(caller.team.pk):
        return Response.objects.get(pk=answer["id"])


def test_leads_developers_and_administrators_open_the_playground(
    admin: Client, lead: Client, developer: Client, caller: Caller
) -> None:
    assert caller.team.name in text(admin.get(URL, {"team": caller.team.pk}))
    for client in (lead, developer):
        assert caller.team.name in text(client.get(URL))


def test_read_only_roles_cannot_open_the_playground(
    auditor: Client, operator: Client, platform_auditor: Client, caller: Caller
) -> None:
    for client in (auditor, operator, platform_auditor, sign_in()):
        assert client.get(URL).status_code == 403
        assert client.post(f"{URL}key/", {"team": caller.team.pk}).status_code == 403
    assert 'href="/admin/playground/"' not in text(operator.get("/admin/"))


def test_a_key_is_short_lived_limited_and_audited(developer: Client, caller: Caller) -> None:
    created = create_key(developer, caller)
    with scope.team(caller.team.pk):
        key = ApiKey.objects.get(pk=created["id"])
        assert AuditEvent.objects.filter(action="api_key.created", target=key.pk).count() == 1
    assert (key.source, key.team_id) == (KeySource.PLAYGROUND, caller.team.pk)
    assert sorted(key.scopes) == ["responses.read", "responses.write"]
    assert key.expires_at is not None
    assert 3500 < (key.expires_at - now()).total_seconds() <= 3600
    user = User.objects.get(pk=developer.session["_auth_user_id"])
    assert key.name == f"Playground of {user.username}"
    assert key.created_by_id == user.pk


def test_the_secret_is_only_in_the_response_that_creates_the_key(developer: Client, caller: Caller) -> None:
    answer = developer.post(f"{URL}key/", {"team": caller.team.pk})
    assert "no-store" in answer["Cache-Control"]
    secret = answer.json()["key"]
    assert secret not in text(developer.get(URL))
    assert secret not in text(developer.get(f"/admin/tenants/apikey/{answer.json()['id']}/change/"))


def test_the_key_creates_responses_and_nothing_else(
    developer: Client, web: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    script.say("Yes.")
    api = Api(http, url=web.url, secret=create_key(developer, caller)["key"])
    created = api.create(model=script.model, input="Well?")
    assert api.get("/files").status_code == 403
    assert api.delete(f"/responses/{created['id']}").status_code == 403


def test_another_team_is_not_found(developer: Client, stranger: Client, make_caller: MakeCaller) -> None:
    other = make_caller()
    for client in (developer, stranger):
        assert client.post(f"{URL}key/", {"team": other.team.pk}).status_code == 404
        assert client.post(f"{URL}key/", {"team": "team_nowhere"}).status_code == 404
        assert other.team.name not in text(client.get(URL, {"team": other.team.pk}))
    with scope.every_team():
        assert not ApiKey.objects.filter(team=other.team, source=KeySource.PLAYGROUND).exists()


def test_only_developers_of_a_team_get_its_playground_keys(make_caller: MakeCaller) -> None:
    mine, looked_at = make_caller(), make_caller()
    both = sign_in({mine.team.pk: Role.DEVELOPER, looked_at.team.pk: Role.AUDITOR})
    assert create_key(both, mine)["key"]
    assert both.post(f"{URL}key/", {"team": looked_at.team.pk}).status_code == 403
    assert looked_at.team.pk not in text(both.get(URL))
    theirs = add_response(looked_at)
    assert "Response not found." in text(both.get(URL, {"from": theirs.pk}))


def test_creating_a_key_requires_post_and_a_csrf_token(developer: Client, caller: Caller) -> None:
    assert developer.get(f"{URL}key/", {"team": caller.team.pk}).status_code == 405
    strict = SiteClient(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(pk=developer.session["_auth_user_id"]))
    for address in ("key", "revoke", "render"):
        assert strict.post(f"{URL}{address}/", {"team": caller.team.pk}).status_code == 403


def test_users_can_revoke_only_their_own_playground_key(developer: Client, caller: Caller) -> None:
    created = create_key(developer, caller)
    colleague = member(caller.team)
    for client, key_id in ((colleague, created["id"]), (developer, caller.key.pk), (developer, "key_nowhere")):
        assert client.post(f"{URL}revoke/", {"key": key_id}).status_code == 404
    assert developer.post(f"{URL}revoke/", {"key": created["id"]}).status_code == 204
    with scope.team(caller.team.pk):
        assert ApiKey.objects.get(pk=created["id"]).revoked_at is not None
        assert ApiKey.objects.get(pk=caller.key.pk).revoked_at is None


def test_a_response_opens_with_its_request(developer: Client, response: Response) -> None:
    page = text(developer.get(URL, {"from": response.pk}))
    body = page_data(page)["opened"]
    assert (body["model"], body["instructions"], body["temperature"]) == (response.model, "Be brief.", 0.3)
    assert body["input"][0]["content"][0]["text"] == "Where is </script><b>my</b> parcel?"
    assert body["tools"][0]["name"] == "track"
    assert response.pk in page
    assert "<b>my</b>" not in page


def test_a_response_of_another_team_is_reported_as_unknown(stranger: Client, response: Response) -> None:
    for wanted in (response.pk, "resp_nowhere", "\x00"):
        page = text(stranger.get(URL, {"from": wanted}))
        assert "parcel" not in page
        assert page_data(page)["opened"] is None
    assert "Response not found." in page or wanted == "\x00"


def test_a_user_without_content_access_is_offered_to_reveal_it(caller: Caller, response: Response) -> None:
    blind = member(caller.team)
    with scope.every_team():
        Membership.objects.filter(user_id=blind.session["_auth_user_id"]).update(view_content=False)
    page = text(blind.get(URL, {"from": response.pk}))
    assert "parcel" not in page
    assert "Reveal for 30 minutes" in page
    assert blind.get(URL).status_code == 200


def test_an_administrator_opening_a_response_is_audited(admin: Client, response: Response) -> None:
    assert "parcel" in text(admin.get(URL, {"from": response.pk}))
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=response.pk).count() == 1


def test_an_unstored_response_is_not_opened(developer: Client, caller: Caller) -> None:
    page = text(developer.get(URL, {"from": add_response(caller, stored=False).pk}))
    assert "not stored" in page
    assert page_data(page)["opened"] is None


def test_rendered_markdown_runs_no_script_and_loads_no_image(developer: Client) -> None:
    words = "**bold** <script>alert(1)</script> ![x](https://evil.example/x.png) [go](javascript:alert(1))"
    html = text(developer.post(f"{URL}render/", {"text": words}))
    assert "<strong>bold</strong>" in html
    for bad in ("<script", "<img", 'href="javascript'):
        assert bad not in html


def test_the_cost_is_visible_only_with_access_to_the_response(
    developer: Client, stranger: Client, response: Response
) -> None:
    assert developer.get(f"{URL}ended/{response.pk}/").json().keys() == {"cost"}
    assert stranger.get(f"{URL}ended/{response.pk}/").status_code == 404


def test_only_vector_stores_of_the_users_team_are_offered(
    developer: Client, caller: Caller, make_caller: MakeCaller
) -> None:
    other = make_caller()
    with scope.every_team():
        VectorStore.objects.create(team=caller.team, name="our manuals")
        VectorStore.objects.create(team=other.team, name="their manuals")
    page = text(developer.get(URL))
    assert "our manuals" in page
    assert "their manuals" not in page


def test_the_page_takes_at_most_30_queries(
    developer: Client, admin: Client, count_queries: Any, response: Response
) -> None:
    for client in (developer, admin):
        assert count_queries(client, f"{URL}?from={response.pk}") <= 30

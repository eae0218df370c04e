"""The playground: who gets a key and what it can do, and which requests it opens."""

import json
from typing import Any

import httpx2
import pytest
from django.contrib.auth.models import User
from django.test import Client

from kernel.clock import now
from responses.models import Response
from responses.models.vector_stores import VectorStore
from tenants import scope
from tenants.models import ApiKey, AuditEvent, KeySource, Membership, Role
from tests.admin.rows import add_response, member, sign_in, text
from tests.support.api import Api, Caller, MakeCaller
from tests.support.upstream import Script
from tests.support.web import WebProcess

URL = "/admin/playground/"


def data_of(page: str) -> dict[str, Any]:
    """What the page tells its script."""
    block = page.partition('<script id="playground-data" type="application/json">')[2].partition("</script>")[0]
    read: dict[str, Any] = json.loads(block)
    return read


def minted(client: Client, caller: Caller) -> dict[str, Any]:
    """A key for the page."""
    answer = client.post(f"{URL}key/", {"team": caller.team.pk})
    assert answer.status_code == 200
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture
def asked(api: Api, caller: Caller, script: Script) -> Response:
    """A response that the API has made."""
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


def test_makers_and_administrators_open_it(admin: Client, lead: Client, developer: Client, caller: Caller) -> None:
    assert caller.team.name in text(admin.get(URL, {"team": caller.team.pk}))
    for client in (lead, developer):
        assert caller.team.name in text(client.get(URL))


def test_those_who_only_look_do_not(
    auditor: Client, operator: Client, platform_auditor: Client, caller: Caller
) -> None:
    for client in (auditor, operator, platform_auditor, sign_in()):
        assert client.get(URL).status_code == 403
        assert client.post(f"{URL}key/", {"team": caller.team.pk}).status_code == 403
    assert 'href="/admin/playground/"' not in text(operator.get("/admin/"))


def test_a_key_is_short_lived_narrow_and_noted(developer: Client, caller: Caller) -> None:
    made = minted(developer, caller)
    with scope.team(caller.team.pk):
        key = ApiKey.objects.get(pk=made["id"])
        assert AuditEvent.objects.filter(action="api_key.created", target=key.pk).count() == 1
    assert (key.source, key.team_id) == (KeySource.PLAYGROUND, caller.team.pk)
    assert sorted(key.scopes) == ["responses.read", "responses.write"]
    assert key.expires_at is not None
    assert 3500 < (key.expires_at - now()).total_seconds() <= 3600
    user = User.objects.get(pk=developer.session["_auth_user_id"])
    assert key.name == f"Playground of {user.username}"
    assert key.created_by_id == user.pk


def test_the_secret_is_in_one_answer_alone(developer: Client, caller: Caller) -> None:
    answer = developer.post(f"{URL}key/", {"team": caller.team.pk})
    assert "no-store" in answer["Cache-Control"]
    secret = answer.json()["key"]
    assert secret not in text(developer.get(URL))
    assert secret not in text(developer.get(f"/admin/tenants/apikey/{answer.json()['id']}/change/"))


def test_the_key_answers_and_does_nothing_else(
    developer: Client, web: WebProcess, http: httpx2.Client, caller: Caller, script: Script
) -> None:
    script.say("Yes.")
    api = Api(http, url=web.url, secret=minted(developer, caller)["key"])
    made = api.create(model=script.model, input="Well?")
    assert api.get("/files").status_code == 403
    assert api.delete(f"/responses/{made['id']}").status_code == 403


def test_nobody_gets_a_key_of_another_team(developer: Client, stranger: Client, make_caller: MakeCaller) -> None:
    other = make_caller()
    for client in (developer, stranger):
        assert client.post(f"{URL}key/", {"team": other.team.pk}).status_code == 403
        assert client.post(f"{URL}key/", {"team": "team_nowhere"}).status_code == 403
        assert other.team.name not in text(client.get(URL, {"team": other.team.pk}))
    with scope.every_team():
        assert not ApiKey.objects.filter(team=other.team, source=KeySource.PLAYGROUND).exists()


def test_an_auditor_elsewhere_asks_only_where_they_develop(make_caller: MakeCaller) -> None:
    mine, looked_at = make_caller(), make_caller()
    both = sign_in({mine.team.pk: Role.DEVELOPER, looked_at.team.pk: Role.AUDITOR})
    assert minted(both, mine)["key"]
    assert both.post(f"{URL}key/", {"team": looked_at.team.pk}).status_code == 403
    assert looked_at.team.pk not in text(both.get(URL))
    theirs = add_response(looked_at)
    assert "Response not found." in text(both.get(URL, {"from": theirs.pk}))


def test_a_key_is_made_by_post_alone_and_with_a_token(developer: Client, caller: Caller) -> None:
    assert developer.get(f"{URL}key/", {"team": caller.team.pk}).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(pk=developer.session["_auth_user_id"]))
    for address in ("key", "revoke", "render"):
        assert strict.post(f"{URL}{address}/", {"team": caller.team.pk}).status_code == 403


def test_the_page_revokes_its_own_key_and_no_other(developer: Client, caller: Caller) -> None:
    made = minted(developer, caller)
    colleague = member(caller.team)
    for client, key_id in ((colleague, made["id"]), (developer, caller.key.pk), (developer, "key_nowhere")):
        assert client.post(f"{URL}revoke/", {"key": key_id}).status_code == 404
    assert developer.post(f"{URL}revoke/", {"key": made["id"]}).status_code == 204
    with scope.team(caller.team.pk):
        assert ApiKey.objects.get(pk=made["id"]).revoked_at is not None
        assert ApiKey.objects.get(pk=caller.key.pk).revoked_at is None


def test_a_response_is_opened_with_its_request(developer: Client, asked: Response) -> None:
    page = text(developer.get(URL, {"from": asked.pk}))
    body = data_of(page)["opened"]
    assert (body["model"], body["instructions"], body["temperature"]) == (asked.model, "Be brief.", 0.3)
    assert body["input"][0]["content"][0]["text"] == "Where is </script><b>my</b> parcel?"
    assert body["tools"][0]["name"] == "track"
    assert asked.pk in page
    assert "<b>my</b>" not in page


def test_a_response_of_another_team_is_as_unknown_as_none(stranger: Client, asked: Response) -> None:
    for wanted in (asked.pk, "resp_nowhere", "\x00"):
        page = text(stranger.get(URL, {"from": wanted}))
        assert "parcel" not in page
        assert data_of(page)["opened"] is None
    assert "Response not found." in page or wanted == "\x00"


def test_who_may_not_read_it_may_reveal_it(caller: Caller, asked: Response) -> None:
    blind = member(caller.team)
    with scope.every_team():
        Membership.objects.filter(user_id=blind.session["_auth_user_id"]).update(view_content=False)
    page = text(blind.get(URL, {"from": asked.pk}))
    assert "parcel" not in page
    assert "Reveal for 30 minutes" in page
    assert blind.get(URL).status_code == 200


def test_an_administrator_who_opens_a_response_is_noted(admin: Client, asked: Response) -> None:
    assert "parcel" in text(admin.get(URL, {"from": asked.pk}))
    with scope.every_team():
        assert AuditEvent.objects.filter(action="content.viewed", target=asked.pk).count() == 1


def test_what_was_not_stored_is_not_opened(developer: Client, caller: Caller) -> None:
    page = text(developer.get(URL, {"from": add_response(caller, stored=False).pk}))
    assert "not stored" in page
    assert data_of(page)["opened"] is None


def test_markdown_is_rendered_without_anything_that_runs_or_loads(developer: Client) -> None:
    words = "**bold** <script>alert(1)</script> ![x](https://evil.example/x.png) [go](javascript:alert(1))"
    html = text(developer.post(f"{URL}render/", {"text": words}))
    assert "<strong>bold</strong>" in html
    for bad in ("<script", "<img", 'href="javascript'):
        assert bad not in html


def test_the_cost_is_told_to_those_who_see_the_response(developer: Client, stranger: Client, asked: Response) -> None:
    assert developer.get(f"{URL}ended/{asked.pk}/").json().keys() == {"cost"}
    assert stranger.get(f"{URL}ended/{asked.pk}/").status_code == 404


def test_it_offers_models_and_stores_of_the_team(developer: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    with scope.every_team():
        VectorStore.objects.create(team=caller.team, name="our manuals")
        VectorStore.objects.create(team=other.team, name="their manuals")
    page = text(developer.get(URL))
    assert "our manuals" in page
    assert "their manuals" not in page


def test_the_page_takes_few_queries(developer: Client, admin: Client, count_queries: Any, asked: Response) -> None:
    for client in (developer, admin):
        assert count_queries(client, f"{URL}?from={asked.pk}") <= 30

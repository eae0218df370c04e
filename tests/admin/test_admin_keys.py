"""API keys in the admin: creation with a secret shown once, changes, revocation."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.test import Client

from core.clock import now
from core.errors import Unauthorized
from organization.admin.key_forms import ModelNamesField
from tenants import directory, scope
from tenants.models import ApiKey
from tests.admin.rows import text
from tests.support.api import Caller, MakeCaller

ADD = "/admin/tenants/apikey/add/"


def make(client: Client, caller: Caller, **wanted: Any) -> str:
    """Submit the form and return the resulting page."""
    answer = client.post(
        ADD, {"team": caller.team.pk, "name": "shop", "scopes": ["*"], "tools": ["*"], "lifetime": "90", **wanted}
    )
    assert answer.status_code == 200
    return text(answer)


def secret_on(page: str) -> str:
    """Return the secret that a page shows."""
    found = re.search(r'<code id="secret"[^>]*>(sk-[^<]+)</code>', page)
    assert found is not None, "no secret on the page"
    return found[1]


def newest(caller: Caller) -> ApiKey:
    """Return the team's newest key."""
    with scope.every_team():
        key = ApiKey.objects.filter(team=caller.team).order_by("-created_at").first()
    assert key is not None
    return key


def change_page(key: ApiKey) -> str:
    """Return the URL of a key's page."""
    return f"/admin/tenants/apikey/{key.pk}/change/"


def test_a_new_key_authenticates(lead: Client, caller: Caller) -> None:
    principal = directory.principal(secret_on(make(lead, caller)))
    assert principal.team_id == caller.team.pk


def test_the_page_with_the_secret_has_examples(lead: Client, caller: Caller) -> None:
    page = make(lead, caller, allowed_models="small-model")
    examples = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert [secret_on(page) in example for example in examples] == [True, True]
    assert "http://testserver/v1/responses" in examples[0]
    assert "small-model" in examples[0]
    assert "client.responses.create(" in examples[1]


def test_the_secret_is_not_stored_logged_or_shown_again(
    lead: Client, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        secret = secret_on(make(lead, caller))
        pages = [lead.get(url) for url in (change_page(newest(caller)), "/admin/", "/admin/tenants/auditevent/")]
    sessions = [str(session.get_decoded()) for session in Session.objects.all()]
    with scope.every_team():
        rows = [str(row) for row in ApiKey.objects.filter(team=caller.team).values()]
    assert [where for where in [*map(text, pages), *sessions, *rows, caplog.text] if secret in where] == []


def test_the_page_with_the_secret_is_not_cached(lead: Client, caller: Caller) -> None:
    answer = lead.post(ADD, {"team": caller.team.pk, "name": "shop", "scopes": ["*"], "tools": ["*"], "lifetime": ""})
    assert "no-store" in answer["Cache-Control"]
    assert "private" in answer["Cache-Control"]


def test_a_key_is_created_with_the_chosen_settings(lead: Client, caller: Caller) -> None:
    make(lead, caller, scopes=["responses.read", "models.read"], allowed_models="a, b/c", lifetime="30")
    key = newest(caller)
    assert (key.name, key.scopes, key.allowed_models) == ("shop", ["responses.read", "models.read"], ["a", "b/c"])
    assert key.expires_at is not None
    assert timedelta(days=29) < key.expires_at - now() < timedelta(days=31)
    assert key.created_by is not None


def test_choosing_all_scopes_replaces_others_and_no_lifetime_means_no_expiry(lead: Client, caller: Caller) -> None:
    make(lead, caller, scopes=["*", "models.read"], allowed_models=" , ", lifetime="")
    key = newest(caller)
    assert (key.scopes, key.allowed_models, key.expires_at) == (["*"], None, None)


@pytest.mark.parametrize("wrong", [{"name": ""}, {"scopes": ["root"]}, {"team": "team_unknown"}, {"lifetime": "9999"}])
def test_an_invalid_form_creates_no_key(wrong: dict[str, Any], lead: Client, caller: Caller) -> None:
    assert 'id="secret"' not in make(lead, caller, **wrong)
    assert newest(caller).pk == caller.key.pk


@pytest.mark.slow
def test_a_lead_may_not_create_a_key_for_another_team(stranger: Client, caller: Caller) -> None:
    page = make(stranger, caller)
    assert 'id="secret"' not in page
    assert caller.team.name not in page
    assert newest(caller).pk == caller.key.pk


def test_auditors_may_not_create_change_or_revoke_keys(auditor: Client, caller: Caller) -> None:
    tried = [auditor.get(ADD), auditor.post(ADD), auditor.post(f"/admin/tenants/apikey/{caller.key.pk}/revoke/")]
    tried.append(auditor.post(change_page(caller.key), {"name": "mine"}))
    assert [answer.status_code for answer in tried] == [403] * 4
    assert (newest(caller).name, newest(caller).revoked_at) == ("test", None)


def test_revoking_a_key_needs_confirmation(lead: Client, caller: Caller) -> None:
    url = f"/admin/tenants/apikey/{caller.key.pk}/revoke/"
    assert "Revoke this key?" in text(lead.get(url))
    assert newest(caller).revoked_at is None
    assert "was revoked" in text(lead.post(url, follow=True))
    with pytest.raises(Unauthorized, match="revoked"):
        directory.principal(caller.secret)


def test_a_revoked_key_cannot_be_changed_or_revoked_again(lead: Client, caller: Caller) -> None:
    url = f"/admin/tenants/apikey/{caller.key.pk}/revoke/"
    lead.post(url)
    assert [lead.post(url).status_code, lead.post(change_page(caller.key)).status_code] == [403, 403]
    assert "REVOKED" in text(lead.get(change_page(caller.key))).upper()


def test_keys_cannot_be_deleted(admin: Client, caller: Caller) -> None:
    answer = admin.post(change_page(caller.key).replace("change/", "delete/"), {"post": "yes"})
    assert answer.status_code == 403
    assert newest(caller).pk == caller.key.pk


def test_secret_and_team_of_a_key_cannot_be_changed(lead: Client, caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    form = {"name": "renamed", "scopes": ["models.read"], "allowed_models": "one, two"}
    forged = {"team": other.team.pk, "digest": "0" * 64, "prefix": "sk-forged", "revoked_at": "2020-01-01"}
    lead.post(change_page(caller.key), {**form, **forged})
    key = newest(caller)
    assert (key.name, key.scopes, key.allowed_models) == ("renamed", ["models.read"], ["one", "two"])
    assert (key.team_id, key.digest, key.prefix) == (caller.team.pk, caller.key.digest, caller.key.prefix)


@pytest.mark.parametrize(("status", "seen"), [("active", "live"), ("expired", "late"), ("revoked", "dead")])
def test_the_list_is_filtered_by_status(
    status: str, seen: str, lead: Client, caller: Caller, make_caller: MakeCaller
) -> None:
    with scope.every_team():
        ApiKey.objects.filter(pk=caller.key.pk).update(name="live")
        late, dead = make_caller(team=caller.team).key, make_caller(team=caller.team).key
        ApiKey.objects.filter(pk=late.pk).update(name="late", expires_at=now() - timedelta(days=1))
        ApiKey.objects.filter(pk=dead.pk).update(name="dead", revoked_at=now())
    page = text(lead.get("/admin/tenants/apikey/", {"status": status}))
    assert [name for name in ("live", "late", "dead") if f'<span dir="auto">{name}</span>' in page] == [seen]


def test_model_names_are_separated_by_commas_or_lines() -> None:
    field = ModelNamesField(required=False)
    assert field.clean("a, b\nc,, ") == ["a", "b", "c"]
    assert field.clean("") is None
    with pytest.raises(ValidationError):
        ModelNamesField().clean(" , ")

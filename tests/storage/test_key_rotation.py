"""`manage.py rotate_keys`: everything that the old key encrypted can be read without it afterwards."""

import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, models, transaction
from pytest_django import Settings

from conversations.models import Item
from core import crypto
from core.ids import new_id
from engine.converter.segments import ReasoningContent
from responses.models import Response
from responses.requests.encrypted_content import TeamCipher
from server.database import key_rotation
from tenants import scope
from tenants.models import Connector, Upstream
from tenants.sign_in import SecondFactorAdapter
from tests.servers import ROOT
from tests.support.api import Caller
from tests.support.webhooks import add_endpoint

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
FOREIGN = "gAAAAA-of-an-upstream"


@pytest.fixture
def use_keys(database: None, settings: Settings) -> Iterator[Callable[..., None]]:
    """Return a function that sets the keys, for a transaction that is undone."""

    def use(*keys: str) -> None:
        settings.ENCRYPTION_KEYS = [*keys]
        crypto._fernet.cache_clear()
        crypto.content_cipher.cache_clear()

    before = [*settings.ENCRYPTION_KEYS]
    with transaction.atomic(), scope.every_team():
        yield use
        transaction.set_rollback(True)
    use(*before)


def rotate(*options: str) -> dict[str, Any]:
    """Run the command, and return its numbers of each column."""
    out = io.StringIO()
    call_command("rotate_keys", "--json", *options, stdout=out)
    shown: dict[str, Any] = json.loads(out.getvalue())
    return shown


def keys_of_others(settings: Settings) -> list[str]:
    return [key for key in settings.ENCRYPTION_KEYS if key not in {OLD, NEW}]


def add_item(caller: Caller, content: str) -> Item:
    item_id = new_id("rs")
    body = {"type": "reasoning", "summary": [], "id": item_id, "encrypted_content": content}
    return Item.objects.create(team=caller.team, id=item_id, type="reasoning", body=body)


def test_the_old_key_can_be_removed_afterwards(
    use_keys: Callable[..., None], settings: Settings, caller: Caller
) -> None:
    others = keys_of_others(settings)
    use_keys(OLD, *others)
    upstream = Upstream.objects.create(name=new_id("u"), base_url="http://127.0.0.1:9/v1", api_key="sk-upstream")
    connector = Connector.objects.create(name=new_id("c")[:60], title="C", url="http://x/mcp", authorization="token")
    endpoint = add_endpoint(caller, "http://127.0.0.1:9/")
    secret = endpoint.secret
    user = User.objects.create(username=new_id("user"))
    adapter = SecondFactorAdapter()
    data = {"secret": adapter.encrypt("totp"), "migrated": [1]}
    factor = Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data=data)
    cipher = TeamCipher(caller.team.pk)
    item = add_item(caller, cipher.encrypt(ReasoningContent(text="thoughts")))
    foreign = add_item(caller, FOREIGN)
    before = item.body["encrypted_content"]

    use_keys(NEW, OLD, *others)
    assert rotate()["undecryptable"] == 0
    again = rotate()
    assert (again["rotated"], again["current"] >= 5) == (0, True)

    use_keys(NEW)
    assert Upstream.objects.get(pk=upstream.pk).api_key == "sk-upstream"
    assert Connector.objects.get(pk=connector.pk).authorization == "token"
    assert type(endpoint).objects.get(pk=endpoint.pk).secret == secret
    factor.refresh_from_db()
    assert (adapter.decrypt(factor.data["secret"]), factor.data["migrated"]) == ("totp", [1])
    item.refresh_from_db()
    assert item.body["encrypted_content"] != before
    found = cipher.decrypt(item.body["encrypted_content"])
    assert found is not None
    assert found.text == "thoughts"
    assert [*item.body] == ["type", "summary", "id", "encrypted_content"]
    foreign.refresh_from_db()
    assert foreign.body["encrypted_content"] == FOREIGN
    # Everything else in the database is readable without the old keys as well.
    assert rotate("--dry-run")["rotated"] == 0


def test_a_dry_run_changes_nothing(use_keys: Callable[..., None], settings: Settings) -> None:
    others = keys_of_others(settings)
    use_keys(OLD, *others)
    upstream = Upstream.objects.create(name=new_id("u"), base_url="http://127.0.0.1:9/v1", api_key="sk-upstream")
    use_keys(NEW, OLD, *others)
    for _ in range(2):
        shown = rotate("--dry-run")
        column = {entry["column"]: entry for entry in shown["columns"]}["tenants_upstream.api_key"]
        assert (shown["dry_run"], column["rotated"] >= 1) == (True, True)
    use_keys(OLD)
    assert Upstream.objects.get(pk=upstream.pk).api_key == "sk-upstream"


def test_rows_beyond_a_batch_are_rotated(use_keys: Callable[..., None], settings: Settings) -> None:
    others = keys_of_others(settings)
    use_keys(OLD, *others)
    for number in range(5):
        Upstream.objects.create(name=new_id("u"), base_url="http://127.0.0.1:9/v1", api_key=f"sk-{number}")
    use_keys(NEW, OLD, *others)
    results = {result.column: result for result in key_rotation.rotate(batch=2)}
    assert results["tenants_upstream.api_key"].rotated >= 5
    use_keys(NEW)
    assert {f"sk-{number}" for number in range(5)} <= {*Upstream.objects.values_list("api_key", flat=True)}


def test_a_value_that_was_changed_meanwhile_is_kept(use_keys: Callable[..., None], settings: Settings) -> None:
    others = keys_of_others(settings)
    use_keys(NEW, OLD, *others)
    upstream = Upstream.objects.create(name=new_id("u"), base_url="http://127.0.0.1:9/v1", api_key="sk-new")
    [column] = [column for column in key_rotation.columns() if column.name == "tenants_upstream.api_key"]
    with connection.cursor() as cursor:
        assert not key_rotation._replace(cursor, column, upstream.pk, "the token that was read", "another")
    assert Upstream.objects.get(pk=upstream.pk).api_key == "sk-new"


def test_every_module_that_encrypts_has_a_column() -> None:
    use = re.compile(r"from core\.crypto import [^\n]*\b(encrypt|content_cipher)\b|crypto\.(encrypt|content_cipher)\(")
    modules = set()
    for folder in ("platform", "responses", "tenants", "conversations"):
        for file in (ROOT / folder).rglob("*.py"):
            if use.search(file.read_text()):
                parts = file.relative_to(ROOT).with_suffix("").parts
                modules.add(".".join(parts[1:] if parts[0] == "platform" else parts))
    assert modules == {column.module for column in key_rotation.columns()} - {crypto.__name__}


def test_every_encrypted_field_of_the_models_is_rotated() -> None:
    names = {column.name for column in key_rotation.columns()}
    assert names >= {
        "tenants_upstream.api_key",
        "tenants_connector.authorization",
        "tenants_searchengine.api_key",
        "tenants_guardrail.hook_secret",
        "responses_webhookendpoint.secret",
        "responses_webhookendpoint.previous_secret",
        f"{Response._meta.db_table}.secrets",
    }
    assert all(isinstance(column.model, type(models.Model)) for column in key_rotation.columns())

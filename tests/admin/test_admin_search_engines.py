"""Search engines, whose API keys are write-only, and the tools of API keys."""

import uuid
from typing import Any

import pytest
from django.test import Client

from tenants import scope
from tenants.models import ApiKey, SearchEngine
from tests.admin.rows import text
from tests.support.api import Caller

ADD = "/admin/tenants/searchengine/add/"
TEAMS = {"searchenginevisibility_set-TOTAL_FORMS": "0", "searchenginevisibility_set-INITIAL_FORMS": "0"}
SECRET = "key-of-the-engine"


def save(client: Client, url: str = ADD, **fields: Any) -> tuple[Any, str]:
    """Submit the form; return the HTTP response and the name of the engine."""
    name = fields.pop("name", uuid.uuid4().hex)
    return client.post(url, {"name": name, "kind": "tavily", "base_url": "", "enabled": "on", **TEAMS, **fields}), name


def test_the_key_is_stored_and_never_shown(admin: Client, database: None) -> None:
    answer, name = save(admin, new_api_key=SECRET)
    assert answer.status_code == 302
    engine = SearchEngine.objects.get(name=name)
    assert engine.api_key == SECRET
    page = f"/admin/tenants/searchengine/{engine.pk}/change/"
    save(admin, page, name=name, base_url="https://search.example")
    kept = SearchEngine.objects.get(name=name)
    assert (kept.api_key, kept.base_url) == (SECRET, "https://search.example")
    assert SECRET not in text(admin.get(page)) + text(admin.get("/admin/tenants/searchengine/"))
    kept.delete()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "requires an API key"),
        ({"kind": "searxng"}, "Enter the URL of your SearXNG"),
        ({"kind": "searxng", "base_url": "http://user:secret@searxng"}, "without user name, password"),
        ({"kind": "searxng", "base_url": "http://127.1/"}, "plain form"),
    ],
)
def test_an_incomplete_configuration_is_rejected(admin: Client, fields: dict[str, str], message: str) -> None:
    answer, name = save(admin, **fields)
    assert message in text(answer)
    assert not SearchEngine.objects.filter(name=name).exists()


def test_a_lead_sets_the_tools_of_an_api_key(lead: Client, caller: Caller) -> None:
    page = f"/admin/tenants/apikey/{caller.key.pk}/change/"
    lead.post(page, {"name": "searching", "scopes": ["*"], "tools": ["web_search", "mcp"]})
    with scope.every_team():
        assert ApiKey.objects.get(pk=caller.key.pk).tools == ["web_search", "mcp"]


def test_a_lead_cannot_open_search_engines(lead: Client) -> None:
    assert lead.get("/admin/tenants/searchengine/").status_code == 403

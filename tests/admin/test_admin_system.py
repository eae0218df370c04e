"""The page of the system: what it tells to staff, and that it tells no secret."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.test import Client

from kernel import heartbeats
from kernel.clock import now
from kernel.egress_policy import AllowList
from responses.admin.system import configuration, metrics
from responses.models import Status
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_response, text
from tests.support.api import Caller
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

PAGE = "/admin/system/"
PARTS = (PAGE, "/admin/system/now/", "/admin/system/health/")


def test_staff_open_it_and_members_do_not(
    admin: Client, operator: Client, platform_auditor: Client, lead: Client, auditor: Client
) -> None:
    for url in PARTS:
        assert [client.get(url).status_code for client in (admin, operator, platform_auditor)] == [200, 200, 200]
        assert [client.get(url).status_code for client in (lead, auditor)] == [403, 403]


def test_members_have_no_entry_of_it(operator: Client, lead: Client) -> None:
    assert [PAGE in text(client.get("/admin/")) for client in (operator, lead)] == [True, False]


def test_it_names_versions_and_migrations(admin: Client) -> None:
    page = text(admin.get(PAGE))
    named = dict(metrics.versions())
    assert all(version in page for version in named.values())
    assert named["Platform"] == settings.VERSION
    assert named["PostgreSQL"].split(".")[0].isdigit()
    told = metrics.migrations()
    assert (told["pending"], told["applied"] > 50) == ([], True)


def test_it_tells_sizes_and_connections(admin: Client) -> None:
    page = text(admin.get(PAGE))
    assert "responses_response" in page
    assert f"of {dict(metrics.database())['Connections'].split()[-1]}" in page
    assert "Evicted keys" in page


def test_what_waits_is_counted_with_the_age_of_the_oldest(admin: Client, caller: Caller, no_worker: None) -> None:
    long_ago = now() - timedelta(days=20)
    response = add_response(caller, status=Status.QUEUED, background=True, created_at=long_ago, parameters={})
    page = text(admin.get(f"{PAGE}now/"))
    assert f"{long_ago:%Y-%m-%d %H:%M:%S}" in page
    admin.post(f"/admin/live/{response.pk}/cancel/")


def test_a_process_that_holds_runs_and_tells_nothing_of_itself_is_named(admin: Client, caller: Caller) -> None:
    held = {"status": Status.IN_PROGRESS, "background": True, "lease_owner": "gone:1:x", "parameters": {}}
    response = add_response(caller, **held, lease_until=now() + timedelta(seconds=25))
    page = text(admin.get(f"{PAGE}now/"))
    assert "gone:1:x" in page
    assert "owns leases, no heartbeat" in page
    admin.post(f"/admin/live/{response.pk}/cancel/")


@pytest.mark.slow
def test_a_worker_tells_that_it_lives(admin: Client, worker: WorkerProcess) -> None:
    def told() -> bool:
        return any(
            beat.kind == "worker" and f":{worker.pid}:" in beat.name for beat in heartbeats.live_processes() or ()
        )

    eventually(told, seconds=15)
    page = text(admin.get(f"{PAGE}now/"))
    assert f":{worker.pid}:" in page
    assert "of 200 slots" in page


def test_without_redis_it_says_so(admin: Client, settings: Any, database: None) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    page = text(admin.get(f"{PAGE}now/"))
    assert "Redis is not responding" in page
    assert "Not responding." in page


# -- health ------------------------------------------------------------------------------------------------------------


def test_it_asks_whom_the_platform_leans_on(admin: Client, settings: Any) -> None:
    settings.SANDBOX_URL = ""
    settings.SEARXNG_URL = "http://127.0.0.1:1"
    page = " ".join(text(admin.get(f"{PAGE}health/")).split())
    assert "<b>PostgreSQL</b> <span>responding," in page
    assert "<b>Sandbox</b> <span>not configured" in page
    assert "<b>Search engine SEARXNG_URL</b> <span>not responding" in page


# -- configuration -----------------------------------------------------------------------------------------------------


def secrets() -> set[str]:
    """What no page may show, as the settings have it."""
    urls = (settings.REDIS_URL, settings.DATABASES["owner"].get("PASSWORD") or "")
    found = {
        settings.SECRET_KEY,
        settings.API_KEY_PEPPER,
        *settings.ENCRYPTION_KEYS,
        settings.UPSTREAM_API_KEY,
        settings.SANDBOX_TOKEN,
        settings.OIDC_CLIENT_SECRET,
        settings.DATABASES["default"]["PASSWORD"],
        settings.DATABASES["owner"]["PASSWORD"],
        *(urlsplit(url).password or "" for url in urls),
    }
    return found - {""}


def test_no_secret_is_shown(admin: Client, settings: Any) -> None:
    settings.UPSTREAM_API_KEY, settings.SANDBOX_TOKEN = "upstream-secret-1", "sandbox-secret-1"
    settings.OIDC_CLIENT_SECRET = "oidc-secret-1"
    settings.UPSTREAM_BASE_URL = "https://someone:url-secret-1@api.example/v1?api_key=query-secret-1"
    page = "".join(text(admin.get(url)) for url in PARTS)
    hidden = secrets() | {"url-secret-1", "query-secret-1", "someone"}
    assert len(hidden) > 8
    assert [secret for secret in hidden if secret in page] == []
    assert "https://•••@api.example/v1" in page


@pytest.mark.parametrize("name", ["NEW_API_KEY", "client_secret", "SOME_TOKEN", "DB_PASSWORD", "PEPPER_2"])
def test_what_sounds_like_a_secret_is_masked(name: str) -> None:
    assert configuration.display_value(name, "value") == "••• set"
    assert configuration.display_value(name, "") == "not set"


def test_other_values_are_shown_as_people_read_them() -> None:
    assert configuration.display_value("DEBUG", False) == "off"
    assert configuration.display_value("ALLOWED_HOSTS", ["a", "b"]) == "a, b"
    assert configuration.display_value("PORT", 8000) == "8000"
    assert configuration.display_value("IMAGE_MODEL", "") == "–"
    assert configuration.display_value("EGRESS_ALLOW", AllowList.parse(["10.0.0.0/8", "a:80"])) == "10.0.0.0/8, a:80"


def test_its_queries_are_bounded(admin: Client, count_queries: CountQueries) -> None:
    admin.get(PAGE)
    assert count_queries(admin, PAGE) < 30

"""System page: metrics for staff, health checks, and masked configuration."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import override_settings

from core import interpreter
from core.clock import now
from core.egress_policy import AllowList
from core.work import heartbeats
from core.work.notifications import blocking_client
from responses.admin import configuration
from responses.models import Status
from server.admin import system
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_response, text
from tests.support.api import Caller
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

PAGE = "/admin/system/"
PARTS = (PAGE, "/admin/system/now/", "/admin/system/health/")


def test_only_staff_can_open_the_system_page(
    admin: Client, operator: Client, platform_auditor: Client, lead: Client, auditor: Client
) -> None:
    for url in PARTS:
        assert [client.get(url).status_code for client in (admin, operator, platform_auditor)] == [200, 200, 200]
        assert [client.get(url).status_code for client in (lead, auditor)] == [403, 403]


def test_the_sidebar_hides_the_system_page_from_members(operator: Client, lead: Client) -> None:
    assert [PAGE in text(client.get("/admin/")) for client in (operator, lead)] == [True, False]


def test_versions_and_migrations_are_shown(admin: Client) -> None:
    page = text(admin.get(PAGE))
    versions = dict(system.versions())
    assert all(version in page for version in versions.values())
    assert versions["Platform"] == settings.VERSION
    assert versions["Python"] == interpreter.current().describe()
    assert versions["PostgreSQL"].split(".")[0].isdigit()
    migrations = system.migrations()
    assert (migrations["pending"], migrations["applied"] > 20) == ([], True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT app, name FROM django_migrations ORDER BY id DESC LIMIT 1")
        latest = cursor.fetchone()
    # All migrations of the tests' database have the same time.
    assert migrations["last"][:2] == latest
    assert migrations["last"][:2] != ("contenttypes", "0001_initial")


def test_sizes_and_connections_are_shown(admin: Client) -> None:
    page = text(admin.get(PAGE))
    assert "responses_response" in page
    assert f"of {dict(system.database())['Connections'].split()[-1]}" in page
    assert "Evicted keys" in page


def test_tasks_show_their_last_run(admin: Client) -> None:
    name = "responses.tasks.sweep_limits"
    note = {"task": name, "ended_at": 1_800_000_000.0, "seconds": 1.25, "succeeded": False}
    with blocking_client(settings.REDIS_URL) as client:
        client.hset("platform:tasks", name, json.dumps(note))
    page = text(admin.get(f"{PAGE}now/"))
    assert "responses.tasks.roll_up" in page
    assert "2027-01-15 08:00:00" in page
    assert "1.25 s" in page
    assert "failed" in page


def test_a_slow_query_is_shown_without_its_values(admin: Client) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as other:

        def sleep() -> None:
            with suppress(psycopg.errors.QueryCanceled):
                other.execute("SELECT pg_sleep(600), 'secret of a team'")

        sleeping = Thread(target=sleep, daemon=True)
        sleeping.start()
        try:
            page = eventually(lambda: "pg_sleep(?), ?" in (page := text(admin.get(f"{PAGE}now/"))) and page)
        finally:
            other.cancel_safe()
            sleeping.join(30)
    assert "secret of a team" not in str(page)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """The state directory of `manage.py up`."""
    with override_settings(STATE_DIR=tmp_path):
        yield tmp_path


def restart_entry(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "restarts": 0, "last_end": None, "last_end_at": None, "next_start_at": None, **changes}


def test_restarts_of_up_are_shown(admin: Client, state_dir: Path) -> None:
    worker = restart_entry(
        "worker", restarts=17, last_end="signal SIGKILL", last_end_at=1_800_000_000.5, next_start_at=1_800_000_030.5
    )
    status = {"supervisor": os.getpid(), "processes": [restart_entry("web"), worker]}
    (state_dir / "processes.json").write_text(json.dumps(status))
    page = text(admin.get(f"{PAGE}now/"))
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("sys-restarts")[2].partition("</section>")[0], re.DOTALL)
    cells = [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows[1:]]
    assert cells == [
        ["web", "0", "–", "–", "running"],
        ["worker", "17", "signal SIGKILL", "2027-01-15 08:00:00", "08:00:30"],
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"supervisor": 4194305, "processes": []}', '{"supervisor": 0}'])
def test_an_outdated_restarts_file_is_ignored(admin: Client, state_dir: Path, content: str) -> None:
    (state_dir / "processes.json").write_text(content)
    assert "sys-restarts" not in text(admin.get(f"{PAGE}now/"))


def test_no_restarts_are_shown_without_up(admin: Client, state_dir: Path) -> None:
    assert "sys-restarts" not in text(admin.get(f"{PAGE}now/"))


def test_processes_report_event_loop_lag_and_pool_usage(admin: Client, worker: WorkerProcess) -> None:
    def reported() -> bool:
        beats = [beat for beat in heartbeats.live_processes() or () if beat.kind == "worker" and "pool" in beat.facts]
        return bool(beats) and all(beat.facts["lag_ms"] >= 0 for beat in beats)

    eventually(reported)
    assert "Event-loop lag" in text(admin.get(f"{PAGE}now/"))


def test_queues_show_their_oldest_entry(admin: Client, caller: Caller, no_worker: None) -> None:
    long_ago = now() - timedelta(days=20)
    response = add_response(caller, status=Status.QUEUED, background=True, created_at=long_ago, parameters={})
    page = text(admin.get(f"{PAGE}now/"))
    assert f"{long_ago:%Y-%m-%d %H:%M:%S}" in page
    admin.post(f"/admin/live/{response.pk}/cancel/")


def test_a_lease_owner_without_heartbeat_is_listed(admin: Client, caller: Caller) -> None:
    held = {"status": Status.IN_PROGRESS, "background": True, "lease_owner": "gone:1:x", "parameters": {}}
    response = add_response(caller, **held, lease_until=now() + timedelta(seconds=25))
    page = text(admin.get(f"{PAGE}now/"))
    assert "gone:1:x" in page
    assert "owns leases, no heartbeat" in page
    admin.post(f"/admin/live/{response.pk}/cancel/")


@pytest.mark.slow
def test_a_worker_sends_heartbeats(admin: Client, worker: WorkerProcess) -> None:
    def has_heartbeat() -> bool:
        return any(
            beat.kind == "worker" and f":{worker.pid}:" in beat.name for beat in heartbeats.live_processes() or ()
        )

    eventually(has_heartbeat)
    page = text(admin.get(f"{PAGE}now/"))
    assert f":{worker.pid}:" in page
    assert "of 200 slots" in page


def test_the_page_works_without_redis(admin: Client, settings: Any, database: None) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    page = text(admin.get(f"{PAGE}now/"))
    assert "Redis is not responding" in page
    assert "Not responding." in page


# -- health ------------------------------------------------------------------------------------------------------------


def test_dependencies_are_checked(admin: Client, settings: Any) -> None:
    settings.SANDBOX_URL = ""
    settings.SEARXNG_URL = "http://127.0.0.1:1"
    page = " ".join(text(admin.get(f"{PAGE}health/")).split())
    assert "<b>PostgreSQL</b> <span>responding," in page
    assert "<b>Sandbox</b> <span>not configured" in page
    assert "<b>Search engine SEARXNG_URL</b> <span>not responding" in page


# -- configuration -----------------------------------------------------------------------------------------------------


def secrets() -> set[str]:
    """Return the secrets of the settings, which no page may show."""
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
def test_settings_named_like_secrets_are_masked(name: str) -> None:
    assert configuration.display_value(name, "value") == "••• set"
    assert configuration.display_value(name, "") == "not set"


def test_other_settings_are_formatted() -> None:
    assert configuration.display_value("DEBUG", False) == "off"
    assert configuration.display_value("ALLOWED_HOSTS", ["a", "b"]) == "a, b"
    assert configuration.display_value("PORT", 8000) == "8000"
    assert configuration.display_value("IMAGE_MODEL", "") == "–"
    assert configuration.display_value("EGRESS_ALLOW", AllowList.parse(["10.0.0.0/8", "a:80"])) == "10.0.0.0/8, a:80"


def test_the_page_takes_fewer_than_30_queries(admin: Client, count_queries: CountQueries) -> None:
    admin.get(PAGE)
    assert count_queries(admin, PAGE) < 30

"""Home, Running jobs and System show the same numbers of running and waiting runs."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from core.clock import now
from responses.models import Status
from tests.admin.rows import add_response, text
from tests.admin.test_admin_home import tile
from tests.support.api import Caller
from tests.support.decisions import add_decision

# A worker would claim the runs.
pytestmark = pytest.mark.usefixtures("no_worker")
LABELS = {"Running": "running", "Queued": "queued", "Awaiting approval": "awaiting", "Stuck": "stuck"}


def add_runs(caller: Caller) -> None:
    """Add runs of every kind that a page may count in another way."""
    at = now()
    lease = {"lease_owner": "worker-1", "lease_until": at + timedelta(seconds=30)}
    runs: list[dict[str, Any]] = [
        {"status": Status.QUEUED, "created_at": at - timedelta(seconds=30)},
        {"status": Status.QUEUED, "created_at": at - timedelta(minutes=10)},
        # Claimed by a worker that has not begun.
        {"status": Status.QUEUED, **lease},
        # Waits for a cheaper time.
        {"status": Status.QUEUED, "created_at": at - timedelta(hours=2), "not_before": at + timedelta(hours=3)},
        {"status": Status.IN_PROGRESS, **lease},
        {"status": Status.IN_PROGRESS, **lease, "lease_until": at - timedelta(minutes=5)},
        # Requeued: no worker has it.
        {"status": Status.IN_PROGRESS, "created_at": at - timedelta(minutes=20), "lease_token": 2},
    ]
    for columns in runs:
        add_response(caller, background=True, **{"lease_token": 1, **columns})
    for _ in range(2):
        add_decision(caller)


def home_numbers(client: Client) -> dict[str, str]:
    page = text(client.get("/admin/"))
    return {LABELS[title]: tile(page, title)[0] for title in LABELS}


def live_numbers(client: Client) -> dict[str, str]:
    counters = client.get("/admin/live/rows/").json()["counters"]
    return {name: counters[name] for name in LABELS.values()}


def system_numbers(client: Client) -> dict[str, str]:
    page = text(client.get("/admin/system/"))
    found = {}
    for name, title in (("queued", "Background responses"), ("awaiting", "Approvals")):
        match = re.search(rf"<td[^>]*>{title}</td>\s*<td[^>]*>([^<]*)</td>", page)
        assert match is not None
        found[name] = match[1]
    return found


def test_home_and_running_jobs_show_equal_numbers(lead: Client, caller: Caller) -> None:
    add_runs(caller)
    expected = {"running": "3", "queued": "4", "awaiting": "2", "stuck": "3"}
    assert home_numbers(lead) == expected
    assert live_numbers(lead) == expected


def test_home_running_jobs_and_system_agree_for_all_teams(admin: Client, caller: Caller) -> None:
    add_runs(caller)
    home, live, system = home_numbers(admin), live_numbers(admin), system_numbers(admin)
    assert home == live
    assert system == {name: home[name] for name in system}


def test_the_pages_agree_on_the_oldest_queued_run(lead: Client, caller: Caller) -> None:
    add_runs(caller)
    assert tile(text(lead.get("/admin/")), "Oldest in queue")[0].startswith("10 min")
    oldest = lead.get("/admin/live/rows/").json()["counters"]["oldest"]
    assert 590 < now().timestamp() - oldest / 1000 < 660

"""Probes: `/livez`, `/readyz`, `/version`, `/metrics`."""

import os
import socket
import time

import httpx2
import pytest
from django.conf import settings

from tests.support.machine_clock import machine_time
from tests.support.waiting import eventually
from tests.support.web import WebProcess


def test_livez_succeeds(web: WebProcess, http: httpx2.Client) -> None:
    answer = http.get(f"{web.url}/livez")
    assert (answer.status_code, answer.json()) == (200, {"status": "live"})


def test_readyz_succeeds(web: WebProcess, http: httpx2.Client) -> None:
    answer = http.get(f"{web.url}/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_version_is_reported(web: WebProcess, http: httpx2.Client) -> None:
    assert http.get(f"{web.url}/version").json() == {"version": settings.VERSION}


def test_metrics_count_requests(web: WebProcess, http: httpx2.Client) -> None:
    answer = http.get(f"{web.url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "process_resident_memory_bytes" in answer.text


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/version", "/metrics"])
def test_probes_need_no_key_and_allow_only_get(web: WebProcess, http: httpx2.Client, path: str) -> None:
    refused = http.post(f"{web.url}{path}")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    head, answer = http.head(f"{web.url}{path}"), http.get(f"{web.url}{path}")
    assert (head.status_code, head.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_of_an_address_succeed_and_log_nothing(web: WebProcess, http: httpx2.Client, path: str) -> None:
    """The host is the address of a pod or node, which ALLOWED_HOSTS does not contain."""
    written = web.written
    assert http.get(f"{web.url}{path}", headers={"Host": "10.1.2.3:8000"}).status_code == 200
    assert "10.1.2.3" not in web.output(since=written)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"REDIS_URL": "redis://127.0.0.1:1/0"}, "Redis is unreachable"),
        pytest.param(
            {"DATABASE_URL": "postgresql://nobody:x@127.0.0.1:1/nothing"},
            "the database is unreachable",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.slow
def test_readyz_fails_without_a_required_server(variables: dict[str, str], reason: str, http: httpx2.Client) -> None:
    process = WebProcess(**variables)
    try:
        answer = _first_answer(process, http)
        assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "reasons": [reason]})
        assert http.get(f"{process.url}/livez").status_code == 200
    finally:
        process.stop()


@pytest.mark.nightly
@pytest.mark.slow
def test_readyz_succeeds_without_one_of_two_databases(servers: object, http: httpx2.Client) -> None:
    database = os.environ["DATABASE_URL"]
    account, _, address = database.rpartition("@")
    # Connections are accepted but never answered.
    with socket.create_server(("127.0.0.1", 0)) as gone:
        both = f"{account}@127.0.0.1:{gone.getsockname()[1]},{address}"
        process = WebProcess(DATABASE_URL=both)
        try:
            _first_answer(process, http)
            eventually(lambda: http.get(f"{process.url}/readyz").status_code == 200)
            statuses, longest, end = [], 0.0, machine_time() + 8
            while machine_time() < end:
                began = machine_time()
                statuses.append(http.get(f"{process.url}/readyz").status_code)
                longest = max(longest, machine_time() - began)
                time.sleep(0.1)
            assert {*statuses} == {200}
            # The first address takes two seconds.
            assert longest < 1.5
        finally:
            process.stop()


def _first_answer(process: WebProcess, http: httpx2.Client) -> httpx2.Response:
    deadline = machine_time() + 90
    while True:
        try:
            return http.get(f"{process.url}/readyz")
        except httpx2.ConnectError:
            assert machine_time() < deadline, process.output()
            time.sleep(0.05)

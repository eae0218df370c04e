"""`.ci/audit` fails for known vulnerabilities, and only for these."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from launcher.address import any_free_port
from tests.support.aiohttp_server import serving

ROOT = Path(__file__).resolve().parents[2]
VULNERABILITY = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "modified": "2026-01-01T00:00:00Z",
    "summary": "Anybody may read everything",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "django"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
        }
    ],
}


@contextmanager
def osv(*, vulnerable: str, status: int = 200) -> Iterator[str]:
    """Run a service like OSV that knows a vulnerability of one package, and yield its base URL."""

    async def query(request: web.Request) -> web.Response:
        names = [one["package"]["name"] for one in (await request.json())["queries"]]
        assert "django" in names
        found: list[dict[str, Any]] = [{"vulns": [VULNERABILITY]} if name == vulnerable else {} for name in names]
        return web.json_response({"results": found}, status=status)

    async def show(_: web.Request) -> web.Response:
        return web.json_response(VULNERABILITY)

    app = web.Application()
    app.add_routes([web.post("/v1/querybatch", query), web.get("/v1/vulns/{id}", show)])
    with serving(app) as url:
        yield url.removesuffix("/v1")


def audit(service: str) -> tuple[int, str]:
    """Run the audit with a service and return its exit code and output."""
    done = subprocess.run([ROOT / ".ci" / "audit", service], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_known_vulnerability_fails_the_audit() -> None:
    with osv(vulnerable="django") as service:
        code, output = audit(service)
    assert (code, "GHSA-aaaa-bbbb-cccc" in output) == (1, True), output


@pytest.mark.slow
def test_the_audit_passes_without_known_vulnerabilities() -> None:
    with osv(vulnerable="") as service:
        code, output = audit(service)
    assert (code, "Skipped" in output, "no known vulnerabilities" in output) == (0, False, True), output


@pytest.mark.slow
def test_a_service_that_cannot_be_reached_is_skipped() -> None:
    service = f"http://127.0.0.1:{any_free_port()}"
    code, output = audit(service)
    assert (code, output) == (0, f"Skipped: {service} gave no answer.\n")


@pytest.mark.slow
@pytest.mark.parametrize("status", [403, 404])
def test_a_service_that_refuses_requests_is_skipped(status: int) -> None:
    with osv(vulnerable="django", status=status) as service:
        assert audit(service) == (0, f"Skipped: {service} gave no answer.\n")

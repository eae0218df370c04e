"""A process with a database superuser refuses to start, with one sentence."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from launcher.testing import start_servers
from tests.support.management import manage

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def superuser_url() -> Iterator[str]:
    """The URL of a database with the superuser of its server."""
    # Not a temporary directory of pytest, which the account of the servers cannot enter.
    directory = ROOT / ".test-run" / f"state-{os.getpid()}-role"
    servers = start_servers(directory, environment={})
    app = urlsplit(servers.app_url)
    password = json.loads((directory / "slot-0" / "secrets.json").read_text())["POSTGRES_SUPERUSER_PASSWORD"]
    yield f"postgresql://platform_superuser:{password}@{app.hostname}:{app.port}{app.path}"
    servers.stop()
    subprocess.run(["rm", "-rf", str(directory)], check=True)


@pytest.mark.parametrize("command", ["web", "worker"])
def test_a_database_superuser_is_rejected(superuser_url: str, command: str) -> None:
    done = manage(command, DATABASE_URL=superuser_url)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("error: DATABASE_URL uses the role 'platform_superuser'")
    assert "Traceback" not in done.stderr

"""`manage.py migrate` gives up on a table in use, instead of blocking all of its queries."""

import os
import subprocess
import sys
from uuid import uuid4

import psycopg
import pytest

from launcher.testing import PrivateServers
from tests.servers import ROOT


def migrate(owner: str, app: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command for a database of its own."""
    environment = {**os.environ, "DATABASE_URL": app, "DATABASE_OWNER_URL": owner}
    command = [sys.executable, "manage.py", "migrate", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_migration_gives_up_on_a_table_in_use(servers: PrivateServers) -> None:
    owner, app = servers.create_database(f"test_{uuid4().hex[:8]}")
    assert migrate(owner, app).returncode == 0
    with psycopg.connect(owner) as reader:
        reader.execute("LOCK TABLE responses_response IN ACCESS SHARE MODE")
        refused = migrate(owner, app, "responses", "zero", "--lock-timeout", "100")
    assert refused.returncode == 1
    assert "gave up instead of blocking everything" in refused.stderr

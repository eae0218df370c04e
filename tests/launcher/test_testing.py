"""Servers of a test run: private and repeatable; nothing is left on external servers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from launcher import testing
from launcher.postgres import host_and_port
from launcher.processes import identify, wait_until
from launcher.testing import PrivateServers, start_servers

pytestmark = pytest.mark.slow

# A directory that the account of the servers may enter, unlike pytest's own.
LOCAL_HOSTS = Path(os.environ["STATE_DIR"]).parent


@pytest.fixture
def directory() -> Iterator[Path]:
    path = LOCAL_HOSTS / f"state-{os.getpid()}-testing"
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


@pytest.fixture
def servers(directory: Path) -> Iterator[PrivateServers]:
    started = start_servers(directory, environment={})
    yield started
    started.stop()


def superuser_url(directory: Path, servers: PrivateServers) -> str:
    password = json.loads((directory / "slot-0" / "secrets.json").read_text())["POSTGRES_SUPERUSER_PASSWORD"]
    host, port = host_and_port(admin=servers.app_url)
    return f"postgresql://platform_superuser:{password}@{host}:{port}/postgres"


def ask(url: str, question: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [str(row[0]) for row in connection.execute(question.encode()).fetchall()]


def test_the_application_role_is_neither_superuser_nor_exempt_from_row_level_security(servers: PrivateServers) -> None:
    rights = "SELECT (rolsuper OR rolbypassrls OR rolcreatedb OR rolcreaterole)::text FROM pg_roles"
    assert ask(servers.app_url, f"{rights} WHERE rolname = current_user") == ["false"]


def test_only_the_owner_role_can_create_tables(servers: PrivateServers) -> None:
    with psycopg.connect(servers.owner_url) as owner:
        owner.execute("CREATE TABLE ours (id int)")
    with psycopg.connect(servers.app_url) as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("CREATE TABLE mine (id int)")


def test_a_password_is_required(servers: PrivateServers) -> None:
    parts = urlsplit(servers.app_url)
    with pytest.raises(psycopg.OperationalError):
        ask(f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}", "SELECT 1")


def test_the_vector_and_trigram_extensions_are_installed(servers: PrivateServers) -> None:
    extensions = ask(servers.app_url, "SELECT extname FROM pg_extension")
    assert {"vector", "pg_trgm"} <= set(extensions)


def test_concurrent_runs_have_separate_servers(directory: Path, servers: PrivateServers) -> None:
    other = start_servers(directory, environment={})
    assert urlsplit(other.app_url).port != urlsplit(servers.app_url).port
    other.stop()
    assert ask(servers.app_url, "SELECT 1") == ["1"]


def test_a_forked_child_that_exits_leaves_the_servers_running(servers: PrivateServers) -> None:
    if (child := os.fork()) == 0:
        servers.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert ask(servers.app_url, "SELECT 1") == ["1"]


def test_a_run_on_an_external_server_removes_everything_it_created(directory: Path, servers: PrivateServers) -> None:
    admin = superuser_url(directory, servers)
    names = "SELECT datname FROM pg_database UNION SELECT rolname FROM pg_roles ORDER BY 1"
    before = ask(admin, names)
    lent = {"TEST_DATABASE_URL": admin, "TEST_REDIS_URL": "redis://127.0.0.1:1/0"}
    servers_on_external = start_servers(directory / "guest", environment=lent)
    assert ask(servers_on_external.app_url, "SELECT 1") == ["1"]
    assert servers_on_external.redis_url == lent["TEST_REDIS_URL"]
    servers_on_external.stop()
    assert ask(admin, names) == before


def test_a_killed_test_run_does_not_break_the_next(directory: Path) -> None:
    script = (
        f"import os, sys; sys.path.insert(0, {str(Path(testing.__file__).parents[1])!r}); from pathlib import Path; "
        f"from launcher.testing import start_servers; start_servers(Path({str(directory)!r}), environment={{}}); "
        "print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pids = [json.loads(record.read_text())["pid"] for record in directory.glob("slot-0/pids/*.json")]
    assert len(pids) == 2
    next_run = start_servers(directory, environment={})
    assert wait_until(lambda: not any(identify(pid) for pid in pids), seconds=90)
    assert not (directory / f"state-{killed.stdout.strip()}").exists()
    assert ask(next_run.app_url, "SELECT 1") == ["1"]
    next_run.stop()

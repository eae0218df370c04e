"""The schema snapshot equals the schema of the migrations, and is only loaded into a suitable database."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connections

from launcher.testing import PrivateServers
from server.database import schema_snapshot

pytestmark = pytest.mark.usefixtures("database")
ROOT = Path(__file__).parents[2]
# PostgreSQL stores the casts in a constraint in another order than it reads them from its own dump.
CASTS = re.compile(r"::(character varying|text)(\[\])?|[()]")
OUTDATED = f"The snapshot differs from the migrations. Run `{schema_snapshot.COMMAND}`."


@pytest.fixture
def pg_dump(servers: PrivateServers) -> str:
    program = str(servers.programs / "pg_dump")
    with connections["owner"].cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        (version,) = cursor.fetchone()
    if f"PostgreSQL {int(version) // 10_000}," not in schema_snapshot.PATH.read_text():
        pytest.skip("the snapshot is for another version of PostgreSQL")
    return program


@pytest.fixture
def empty(servers: PrivateServers) -> Iterator[str]:
    """The alias of a connection to an empty database as its owner."""
    name = alias = f"test_{uuid4().hex[:8]}"
    servers.create_database(name)
    yield from _connected(alias, name)


@pytest.fixture
def without_extensions() -> Iterator[str]:
    """The same, without pgvector."""
    name = alias = f"test_{uuid4().hex[:8]}"
    with connections["owner"].cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield from _connected(alias, name)
    with connections["owner"].cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")


def _connected(alias: str, name: str) -> Iterator[str]:
    connections.databases[alias] = {**connections.databases["owner"], "NAME": name}
    yield alias
    connections[alias].close()
    del connections[alias]
    del connections.databases[alias]


@pytest.mark.slow
def test_the_migrations_create_the_schema_of_the_snapshot(
    servers: PrivateServers, pg_dump: str, tmp_path: Path
) -> None:
    owner, app = servers.create_database(f"test_{uuid4().hex[:8]}")
    path = f"{Path(pg_dump).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "DATABASE_URL": app, "DATABASE_OWNER_URL": owner, "PATH": path}
    environment |= {"DJANGO_SETTINGS_MODULE": "server.settings", "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
    command = [sys.executable, "-m", "django", "dump_schema", "--output", str(tmp_path / "schema.sql")]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    assert (tmp_path / "schema.sql").read_text() == schema_snapshot.PATH.read_text(), OUTDATED


@pytest.mark.slow
def test_an_empty_database_has_the_schema_of_the_snapshot_after_loading_it(empty: str, pg_dump: str) -> None:
    assert schema_snapshot.load(using=empty)
    found, written = schema_snapshot.dump(using=empty, pg_dump=pg_dump), schema_snapshot.PATH.read_text()
    assert CASTS.sub("", found) == CASTS.sub("", written)


def test_a_snapshot_of_other_migrations_is_ignored(empty: str, tmp_path: Path) -> None:
    other = tmp_path / "schema.sql"
    text = schema_snapshot.PATH.read_text()
    other.write_text(text.replace(schema_snapshot.fingerprint(), "0" * 64))
    assert not schema_snapshot.load(using=empty, file=other)
    assert schema_snapshot.is_empty(using=empty)


def test_a_missing_snapshot_is_ignored(empty: str, tmp_path: Path) -> None:
    assert not schema_snapshot.load(using=empty, file=tmp_path / "schema.sql")
    assert schema_snapshot.is_empty(using=empty)


@pytest.mark.slow
def test_a_database_without_pgvector_is_migrated_instead(without_extensions: str) -> None:
    assert not schema_snapshot.load(using=without_extensions)
    assert schema_snapshot.is_empty(using=without_extensions)


def test_a_database_with_tables_is_left_unchanged() -> None:
    assert not schema_snapshot.is_empty(using="owner")
    assert not schema_snapshot.load(using="owner")

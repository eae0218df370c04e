"""Upgrades: databases of released versions are migrated by this one, and keep their rows, objects and migrations."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from django.core.management import call_command
from django.db import connections, transaction

from launcher.testing import PrivateServers
from server.database import backup, schema_snapshot
from tests.support import releases
from tests.support.management import succeed
from tests.support.waiting import PATIENCE
from tests.support.web import running_web

CHANGELOG = (releases.ROOT / "CHANGELOG.md").read_text()
VERSIONS = releases.dated_versions(CHANGELOG)
# These tables get rows of new models and of the migrations themselves.
GROWING = {"auth_permission", "django_content_type", "django_migrations"}
CURRENT = "of the checkout"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A database with the rows of a release, as an alias, and the environment of a platform that uses it."""

    alias: str
    release: releases.Release
    rows: dict[str, int]
    environment: dict[str, str]


@pytest.fixture(params=VERSIONS or [CURRENT])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The backup of a released version, or one that is written now as long as there is none."""
    if request.param != CURRENT:
        return releases.DIRECTORY / f"{request.param}.tar.xz"
    command = [sys.executable, "-m", "tests.support.releases", "9.9.9", "--output", str(tmp_path)]
    path = f"{releases.ROOT / 'platform'}:{releases.ROOT}"
    subprocess.run(command, cwd=releases.ROOT, env={**os.environ, "PYTHONPATH": path}, check=True)
    assert (tmp_path / "9.9.9.sha256").read_text() == releases.migration_hashes()
    return tmp_path / "9.9.9.tar.xz"


@pytest.fixture
def restored(archive: Path, servers: PrivateServers, database: None, tmp_path: Path) -> Iterator[Restored]:
    """The database and files of a released version."""
    directory, alias = tmp_path / "release", f"test_{uuid4().hex[:8]}"
    release = releases.extract(archive, directory)
    owner, app = servers.create_database(alias)
    connections.databases[alias] = {**connections.databases["owner"], "NAME": alias}
    manifest = backup.read_manifest(directory)
    backup.verify(directory, manifest)
    backup.load_dump(directory / backup.DUMP, manifest, using=alias)
    state = tmp_path / "state"
    state.mkdir()
    (directory / backup.FILES).rename(state / "files")
    changed = {"DATABASE_URL": app, "DATABASE_OWNER_URL": owner, "STATE_DIR": str(state), **release.secrets}
    yield Restored(alias=alias, release=release, rows=dict(manifest.rows), environment=changed)
    connections[alias].close()
    del connections[alias]
    del connections.databases[alias]


def counted(alias: str) -> dict[str, int]:
    """Return the number of rows of each table, of all teams."""
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT set_config('app.team_ids', '*', true)")
        return backup.count_rows(cursor)


def schema(alias: str, servers: PrivateServers) -> str:
    """Return the statements that create the schema of a database."""
    dumped = schema_snapshot.dump(using=alias, pg_dump=str(servers.programs / "pg_dump"), rows=False)
    return dumped.partition("\n\n")[2]


def differences(before: Any, after: Any, path: str) -> list[str]:
    """Return the fields of an answer that are missing or different in a later version; new fields are allowed."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(value, after.get(name, "missing"), f"{path}.{name}") for name, value in before.items()]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(value, other, f"{path}[{n}]") for n, (value, other) in enumerate(zip(before, after, strict=True))]
    else:
        return [] if before == after else [f"{path}: {before!r} became {after!r}"]
    return [one for value, other, place in pairs for one in differences(value, other, place)]


@pytest.mark.slow
def test_a_database_of_a_release_can_be_upgraded(restored: Restored, servers: PrivateServers) -> None:
    empty = {name for name, number in restored.rows.items() if not number}
    assert empty <= releases.TRANSIENT
    succeed("migrate", "--verbosity", "0", **restored.environment)
    after = counted(restored.alias)
    changed = {name: (number, after.get(name)) for name, number in restored.rows.items() if after.get(name) != number}
    assert {name: rows for name, rows in changed.items() if name not in GROWING} == {}
    assert schema(restored.alias, servers) == schema("owner", servers)
    headers = {"Authorization": f"Bearer {restored.release.api_key}"}
    with running_web(**restored.environment) as web, httpx2.Client(headers=headers, timeout=PATIENCE) as http:
        http.base_url = f"{web.url}/v1"
        for path, before in restored.release.answers.items():
            assert differences(before, releases.read_answer(http, path), path) == []


@pytest.mark.usefixtures("database")
def test_the_migrations_create_what_the_models_say() -> None:
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


def test_every_release_has_its_database_and_migrations() -> None:
    for version in VERSIONS:
        archive, hashes = (releases.DIRECTORY / f"{version}.{suffix}" for suffix in ("tar.xz", "sha256"))
        is_complete = archive.is_file() and hashes.is_file()
        assert is_complete, f"{version} is dated in the changelog. Run `{releases.COMMAND} {version}`."
        changed = releases.changed_migrations(hashes.read_text())
        assert changed == [], f"{version} has been released: keep its migrations, and add new ones."


def test_an_edited_or_removed_migration_is_found(tmp_path: Path) -> None:
    hashes = releases.migration_hashes()
    assert releases.changed_migrations(hashes) == []
    for line in hashes.splitlines():
        name = line.split("  ")[1]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((releases.ROOT / name).read_bytes())
    (tmp_path / "tenants/migrations/0001_initial.py").write_text("edited")
    (tmp_path / "conversations/migrations/0001_initial.py").unlink()
    names = ["conversations/migrations/0001_initial.py", "tenants/migrations/0001_initial.py"]
    assert releases.changed_migrations(hashes, root=tmp_path) == names


def test_unreleased_versions_and_those_before_0_2_0_are_not_upgraded() -> None:
    changelog = "## 0.4.0 (unreleased)\n\n## 0.3.1 (2027-01-30)\n\n## 0.2.0 (2026-12-01)\n\n## 0.1.0 (2026-11-01)\n"
    assert releases.dated_versions(changelog) == ["0.3.1", "0.2.0"]

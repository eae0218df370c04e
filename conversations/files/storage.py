"""Files of teams: create, read, list, delete and sweep.

Contents are in Django's storage `files`, rows in the database, and no transaction spans both. A row therefore records
an operation on its content before it happens, and `sweep_files` completes the work of a process that died.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import IO

from django.conf import settings
from django.core.files import File as Content
from django.core.files.storage import Storage, storages
from django.db import Error as DatabaseError
from django.db.models import QuerySet, Sum

from conversations import objects
from conversations.models import File, FileState, Purpose
from core.clock import now, unix
from core.db.db_threads import in_db_thread
from core.errors import NotFound, RequestTooLarge, ServerError
from core.http.pagination import Page, PageRequest, keyset
from tenants import quotas, scope
from tenants.audit import audit_call
from tenants.principal import Principal

logger = logging.getLogger(__name__)

# Longer than any upload takes to be copied to the storage.
_PENDING_FOR = timedelta(days=1)
BATCH_LIFETIME = timedelta(days=30)
"""The lifetime that OpenAI documents for batch files."""
_BATCH_PURPOSES = (Purpose.BATCH, Purpose.BATCH_OUTPUT)
_RETRY_AFTER = timedelta(minutes=10)
# Bounds one run of the periodic task; the next run continues.
_SWEEP_LIMIT = 100
_CHUNK = 256 * 1024
before_removal: list[Callable[[File], None]] = []
"""Functions of other apps that delete the references to a file, in the transaction that deletes its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingFile:
    """A received file, still in temporary storage. `lifetime` None means the default of the purpose."""

    content: IO[bytes]
    filename: str
    content_type: str
    size: int
    purpose: Purpose
    lifetime: timedelta | None = None


async def create_file(*, principal: Principal, upload: IncomingFile) -> File:
    """Store and publish a file. Raises `RequestTooLarge`."""
    if upload.size > settings.MAX_UPLOAD_BYTES:
        limit = settings.MAX_UPLOAD_BYTES // 1024 // 1024
        raise RequestTooLarge(f"The file is too large: the limit is {limit} MiB.", param="file")
    file = await write_file(
        team_id=principal.team_id,
        key_id=principal.key_id,
        upload=upload,
        check=lambda: check_limits(principal, size=upload.size),
    )
    await in_db_thread(lambda: publish_file(file))
    return file


def check_limits(principal: Principal, *, size: int) -> None:
    """Raise `QuotaReached` if the team or the key may not store another file of this size.

    Call it in the transaction that creates the file. Parts of uploads do not count.
    """
    quotas.check(principal, "files", adds=1, used=partial(count_files, principal), unit="files")
    quotas.check(
        principal,
        "stored_bytes",
        adds=size,
        used=partial(count_stored_bytes, principal),
        unit="stored bytes",
    )


def count_files(principal: Principal, key_id: str | None) -> int:
    """Return the number of files that count towards the limit of the team, or of one key."""
    return _counted(principal, key_id).count()


def count_stored_bytes(principal: Principal, key_id: str | None) -> int:
    """Return the total size of the files that count towards the limit of the team, or of one key."""
    total: int = _counted(principal, key_id).aggregate(total=Sum("size", default=0))["total"]
    return total


def _counted(principal: Principal, key_id: str | None) -> "QuerySet[File]":
    rows = File.objects.filter(team_id=principal.team_id, part=None).exclude(state=FileState.GONE)
    return (rows if key_id is None else rows.filter(api_key=key_id)).exclude(expires_at__lte=now())


async def write_file(
    *, team_id: str, key_id: str, upload: IncomingFile, check: Callable[[], None] = lambda: None
) -> File:
    """Store the content of a file, which stays invisible until `publish_file`.

    The sweep removes files that are not published within a day.

    `check` runs in the transaction that creates the file's row. Files that the platform itself writes have no check:
    the results of a batch must not be lost because of a limit.
    """
    at = now()
    file = await in_db_thread(lambda: _insert_pending(team_id, key_id, upload, at, check))
    file.sha256 = await write_content(file, upload.content)
    return file


async def write_content(file: File, content: IO[bytes]) -> str:
    """Write the content of a new file to the storage and return its SHA-256 in hex. If that fails, remove the file."""
    try:
        # Not in a database thread: a slow storage would occupy one of the few connections.
        return await asyncio.to_thread(store, file, content)
    except Exception:
        # Incomplete content would occupy a full disk until the sweep, and its row would count for the team's limits.
        with suppress(DatabaseError):
            await in_db_thread(partial(remove, file))
        raise


def _insert_pending(team_id: str, key_id: str, upload: IncomingFile, at: datetime, check: Callable[[], None]) -> File:
    lifetime = upload.lifetime
    if lifetime is None and upload.purpose in _BATCH_PURPOSES:
        lifetime = BATCH_LIFETIME
    with scope.team(team_id):
        check()
        return File.objects.create(
            team_id=team_id,
            api_key_id=key_id,
            filename=upload.filename,
            purpose=upload.purpose,
            content_type=upload.content_type,
            size=upload.size,
            created_at=at,
            expires_at=at + lifetime if lifetime else None,
            sweep_at=at + _PENDING_FOR,
        )


def store(file: File, content: IO[bytes]) -> str:
    """Write the content of a file to the storage; returns its SHA-256 in hex.

    Accepts any seekable binary file. Pass temporary files unwrapped: Django's wrappers take over the name of the file
    that they wrap, and the name of an unnamed temporary file is the number of its descriptor.
    """
    digest = hashlib.sha256()
    content.seek(0)
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    content.seek(0)
    name = content_name(file.pk)
    # Uploads have a wrapper by which the storage moves them; any other file gets one, under its name in the storage.
    wrapped = content if isinstance(content, Content) else Content(content, name=name)
    # Django's storages rename a file when the name is taken; then nothing would find it under its id.
    if (stored_as := _storage().save(name, wrapped)) != name:
        raise RuntimeError(f"the storage saved {name} as {stored_as}")
    return digest.hexdigest()


def publish_file(file: File) -> None:
    """Make a written file visible, within the caller's transaction if there is one."""
    file.state, file.sweep_at = FileState.READY, file.expires_at
    with scope.team(file.team_id):
        # Conditional: the sweeper may have removed a file that took more than a day to arrive.
        pending = File.objects.filter(pk=file.pk, state=FileState.PENDING)
        if pending.update(state=file.state, sweep_at=file.sweep_at, sha256=file.sha256) != 1:
            raise ServerError


def delete_file(*, principal: Principal, file: File) -> None:
    """Delete a file. Its content is removed after the commit, or by the next sweep if the storage fails."""
    with scope.team(principal.team_id):
        ready = File.objects.filter(pk=file.pk, state=FileState.READY)
        if ready.update(state=FileState.GONE, sweep_at=now()) != 1:
            raise unknown_file(file.pk)
        before = {"filename": file.filename, "purpose": file.purpose, "bytes": file.size, "sha256": file.sha256}
        audit_call(principal, "file.deleted", file.pk, before=before)
    remove(file)


def sweep_files() -> int:
    """Remove a bounded number of expired, deleted or incomplete files; returns how many."""
    with scope.every_team():
        due = list(File.objects.filter(sweep_at__lte=now()).order_by("sweep_at")[:_SWEEP_LIMIT])
    return sum(remove(file) for file in due)


def remove(file: File) -> bool:
    """Remove a file's content, then its row. Return False if the storage failed: the sweeper tries again."""
    # Content first, then the row: without the row nothing would ever find the content again. Safe to run concurrently,
    # as deleting a missing file or row does nothing.
    try:
        _storage().delete(content_name(file.pk))
    # Each storage raises its own errors; the next sweep retries after any of them.
    except Exception:
        logger.exception("removing the content of a file failed", extra={"file": file.pk})
        with scope.team(file.team_id):
            File.objects.filter(pk=file.pk).update(sweep_at=now() + _RETRY_AFTER)
        return False
    with scope.team(file.team_id):
        for release in before_removal:
            release(file)
        File.objects.filter(pk=file.pk).delete()
    return True


async def open_content(file: File) -> "Content[bytes]":
    """Open the content of a file for reading."""
    return await asyncio.to_thread(_storage().open, content_name(file.pk), "rb")


async def chunks(content: "Content[bytes]") -> AsyncGenerator[bytes, None]:
    """Yield the rest of an open file in chunks, then close it."""
    try:
        while chunk := await asyncio.to_thread(content.read, _CHUNK):
            yield chunk
    finally:
        content.close()


def list_files(*, team_id: str, purpose: str | None, page: PageRequest) -> Page[File]:
    """Return a page of a team's files, ordered by creation time."""
    rows = File.objects.filter(team_id=team_id, state=FileState.READY).exclude(expires_at__lte=now())
    if purpose is not None:
        rows = rows.filter(purpose=purpose)
    return keyset(rows, page=page, find=lambda cursor: find_file(team_id=team_id, file_id=cursor), unknown=unknown_file)


def find_file(*, team_id: str, file_id: str) -> File | None:
    """Return a team's file, or None if the file is unknown, deleted or expired."""
    file = File.objects.filter(pk=file_id, team_id=team_id).first()
    return file if file is not None and file.exists_at(now()) else None


def existing(*, team_id: str, file_ids: Iterable[str], lock: bool = False) -> set[str]:
    """Return the subset of the ids that name files of the team.

    With `lock`, the files cannot be deleted before the transaction ends. A caller that adds the files to an object must
    lock that object first.
    """
    rows = File.objects.filter(pk__in=list(file_ids), team_id=team_id, state=FileState.READY)
    if lock:
        # Ordered, so that two requests that add the same files do not wait for each other.
        rows = rows.select_for_update(no_key=True).order_by("pk")
    return set(rows.exclude(expires_at__lte=now()).values_list("pk", flat=True))


def types(*, team_id: str, file_ids: Iterable[str]) -> dict[str, str]:
    """Return the content types of the team's files among these ids, by id."""
    rows = File.objects.filter(pk__in=list(file_ids), team_id=team_id, state=FileState.READY)
    return dict(rows.exclude(expires_at__lte=now()).values_list("pk", "content_type"))


def unknown_file(file_id: str, *, param: str | None = None) -> NotFound:
    """Build the 404 for a file that does not exist for the caller."""
    return NotFound(f"No such File object: {file_id}", param=param)


def public_file(file: File) -> objects.File:
    """Return the public file object."""
    return {
        "id": file.pk,
        "object": "file",
        "bytes": file.size,
        "created_at": unix(file.created_at),
        "expires_at": unix(file.expires_at) if file.expires_at else None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _storage() -> Storage:
    return storages["files"]


def content_name(file_id: str) -> str:
    """Return the name of a file's content in the storage."""
    # The last two digits of an id are random and spread the files over 1,024 folders.
    return f"{file_id[-2:]}/{file_id}"

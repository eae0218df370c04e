"""Files of teams: writes (`create_file`, `delete_file`, `sweep_files`) and reads.

Bytes live in Django's storage `files`, rows in the database, and no transaction spans both. So a row says first what is
about to happen to its bytes; `sweep_files` finishes what a process that died has left half done.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.files import File as Content
from django.core.files.storage import Storage, storages
from django.core.files.uploadedfile import UploadedFile

from conversations.models import File, FileState, Purpose
from kernel.clock import now, unix
from kernel.db_threads import in_db_thread
from kernel.errors import NotFound, RequestTooLarge, ServerError
from kernel.pagination import Page, PageRequest, Position, keyset
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal

logger = logging.getLogger(__name__)

# Longer than any upload takes to get from one disk to another.
_PENDING_FOR = timedelta(days=1)
_BATCH_LIFETIME = timedelta(days=30)
_BATCH_PURPOSES = (Purpose.BATCH, Purpose.BATCH_OUTPUT)
_RETRY_AFTER = timedelta(minutes=10)
_SWEEP_AT_ONCE = 100
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingFile:
    """A file that has come in and lies on a temporary disk. `lifetime` None: what the purpose says."""

    content: "UploadedFile[bytes]"
    filename: str
    content_type: str
    size: int
    purpose: Purpose
    lifetime: timedelta | None = None


async def create_file(*, principal: Principal, upload: IncomingFile) -> File:
    """Keep a file. Its bytes are stored in a thread of their own, not in one that holds a database connection."""
    if upload.size > settings.MAX_UPLOAD_BYTES:
        limit = settings.MAX_UPLOAD_BYTES // 1024 // 1024
        raise RequestTooLarge(f"The file is too large: the limit is {limit} MiB.", param="file")
    file = await write_file(team_id=principal.team_id, key_id=principal.key_id, upload=upload)
    await in_db_thread(lambda: publish_file(file))
    return file


async def write_file(*, team_id: str, key_id: str, upload: IncomingFile) -> File:
    """Store the bytes of a file that nobody sees before `publish_file`; without that they are swept after a day."""
    at = now()
    file = await in_db_thread(lambda: _announce(team_id, key_id, upload, at))
    file.sha256 = await asyncio.to_thread(store, file, upload.content)
    return file


def _announce(team_id: str, key_id: str, upload: IncomingFile, at: datetime) -> File:
    lifetime = upload.lifetime
    if lifetime is None and upload.purpose in _BATCH_PURPOSES:
        lifetime = _BATCH_LIFETIME
    with scope.team(team_id):
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


def store(file: File, content: "UploadedFile[bytes]") -> str:
    """Put the bytes where they belong; returns their SHA-256."""
    digest = hashlib.sha256()
    for piece in content.chunks(_PIECE):
        digest.update(piece)
    content.seek(0)
    name = _name(file)
    if (kept := _storage().save(name, content)) != name:
        msg = f"the storage keeps {name} under another name, {kept}"
        raise RuntimeError(msg)
    return digest.hexdigest()


def publish_file(file: File) -> None:
    """Let a file that was written be seen, in the transaction of the caller if there is one."""
    file.state, file.sweep_at = FileState.READY, file.expires_at
    with scope.team(file.team_id):
        pending = File.objects.filter(pk=file.pk, state=FileState.PENDING)
        if pending.update(state=file.state, sweep_at=file.sweep_at, sha256=file.sha256) != 1:
            raise ServerError


def delete_file(*, principal: Principal, file: File, request_id: str) -> None:
    """Delete a file; the bytes go after the row has said so, now or, if the storage fails, with the next sweep."""
    with scope.team(principal.team_id):
        ready = File.objects.filter(pk=file.pk, state=FileState.READY)
        if ready.update(state=FileState.GONE, sweep_at=now()) != 1:
            raise unknown_file(file.pk)
        audit(
            team_id=principal.team_id,
            actor=f"key:{principal.key_id}",
            action="file.deleted",
            target=file.pk,
            before={"filename": file.filename, "purpose": file.purpose, "bytes": file.size, "sha256": file.sha256},
            request_id=request_id,
        )
    _remove(file)


def sweep_files() -> int:
    """Remove files that have expired, were deleted or never became complete, a bounded number; returns how many."""
    with scope.every_team():
        due = list(File.objects.filter(sweep_at__lte=now()).order_by("sweep_at")[:_SWEEP_AT_ONCE])
    return sum(_remove(file) for file in due)


def _remove(file: File) -> bool:
    """Remove the bytes and then the row; safe to run twice and side by side. False where the storage failed."""
    try:
        _storage().delete(_name(file))
    # Each storage has errors of its own, and whatever they are, the next sweep tries again.
    except Exception:
        logger.exception("the bytes of a file could not be removed", extra={"file": file.pk})
        with scope.team(file.team_id):
            File.objects.filter(pk=file.pk).update(sweep_at=now() + _RETRY_AFTER)
        return False
    with scope.team(file.team_id):
        File.objects.filter(pk=file.pk).delete()
    return True


async def open_content(file: File) -> "Content[bytes]":
    """The bytes of a file, open at their beginning."""
    return await asyncio.to_thread(_storage().open, _name(file), "rb")


async def pieces(content: "Content[bytes]") -> AsyncGenerator[bytes, None]:
    """What is open, in pieces; closed at the end."""
    try:
        while piece := await asyncio.to_thread(content.read, _PIECE):
            yield piece
    finally:
        content.close()


def list_files(*, team_id: str, purpose: Purpose | None, page: PageRequest) -> Page[File]:
    """A team's files, by time."""
    rows = File.objects.filter(team_id=team_id, state=FileState.READY).exclude(expires_at__lte=now())
    if purpose is not None:
        rows = rows.filter(purpose=purpose)

    def position(file_id: str, param: str) -> Position:
        found = find_file(team_id=team_id, file_id=file_id)
        if found is None:
            raise unknown_file(file_id, param=param)
        return found.created_at, found.pk

    return keyset(rows, page=page, position=position)


def find_file(*, team_id: str, file_id: str) -> File | None:
    """A team's file, unless it was deleted or has expired."""
    # PostgreSQL refuses NUL in a parameter; no id has one.
    file = None if "\x00" in file_id else File.objects.filter(pk=file_id, team_id=team_id).first()
    return file if file is not None and file.exists_at(now()) else None


def existing(*, team_id: str, file_ids: Iterable[str]) -> set[str]:
    """Those of these ids that name a file of the team's."""
    rows = File.objects.filter(pk__in=list(file_ids), team_id=team_id, state=FileState.READY)
    return set(rows.exclude(expires_at__lte=now()).values_list("pk", flat=True))


def types(*, team_id: str, file_ids: Iterable[str]) -> dict[str, str]:
    """The content types of those of these ids that name a file of the team's."""
    ids = [file_id for file_id in file_ids if "\x00" not in file_id]
    rows = File.objects.filter(pk__in=ids, team_id=team_id, state=FileState.READY)
    return dict(rows.exclude(expires_at__lte=now()).values_list("pk", "content_type"))


def unknown_file(file_id: str, *, param: str | None = None) -> NotFound:
    """The 404 for a file that does not exist, or not for the caller."""
    return NotFound(f"No such File object: {file_id}", param=param)


def public_file(file: File) -> dict[str, Any]:
    """The file object of the wire."""
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


def _name(file: File) -> str:
    """Random digits spread the files over 256 folders."""
    return f"{file.pk[-2:]}/{file.pk}"

"""Uploads in parts: parts arrive in any order, and the client names their order when it completes the upload.

The content of a part is stored as a hidden file. After the upload has expired, the sweep removes this file like any
other incomplete file, so nothing remains if a client or a process stops halfway.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile

from conversations import objects
from conversations.files import storage
from conversations.files.storage import IncomingFile
from conversations.models import File, Purpose, Upload, UploadPart, UploadState
from core.clock import now, unix
from core.db.db_threads import in_db_thread
from core.errors import InvalidValue, NotFound, RequestTooLarge
from tenants import scope
from tenants.principal import Principal

MAX_PART_BYTES = 64 * 1024 * 1024
_LIFETIME = timedelta(hours=1)
# The upload's lifetime, plus time to assemble the parts of an upload that is completed in its last second.
_PARTS_KEPT = timedelta(hours=2)


def open_upload(
    *,
    principal: Principal,
    filename: str,
    size: int,
    content_type: str,
    purpose: Purpose,
    lifetime: timedelta | None = None,
) -> Upload:
    """Create an upload for a file with the size, name and type that the client declared. Raises `RequestTooLarge`."""
    if size > settings.MAX_UPLOAD_BYTES:
        limit = settings.MAX_UPLOAD_BYTES // 1024 // 1024
        raise RequestTooLarge(f"The file is too large: the limit is {limit} MiB.", param="bytes")
    at = now()
    with scope.team(principal.team_id):
        # Checked before the client sends anything; the complete file is checked again.
        storage.check_limits(principal, size=size)
        return Upload.objects.create(
            team_id=principal.team_id,
            api_key_id=principal.key_id,
            filename=filename,
            size=size,
            content_type=content_type,
            purpose=purpose,
            lifetime_seconds=int(lifetime.total_seconds()) if lifetime else None,
            created_at=at,
            expires_at=at + _LIFETIME,
        )


async def add_part(*, principal: Principal, upload_id: str, content: "UploadedFile[bytes]") -> UploadPart:
    """Store a part of an upload."""
    if (content.size or 0) > MAX_PART_BYTES:
        raise RequestTooLarge(
            f"The part is too large: the limit is {MAX_PART_BYTES // 1024 // 1024} MiB.", param="data"
        )
    upload = await in_db_thread(lambda: _pending(principal, upload_id))
    # As with whole files, the row comes before the content: a part whose process dies in between is swept.
    hidden = await in_db_thread(lambda: _insert_hidden_file(principal, upload, content.size or 0))
    digest = await storage.write_content(hidden, content)
    return await in_db_thread(lambda: _insert_part(upload, hidden, digest))


def _insert_hidden_file(principal: Principal, upload: Upload, size: int) -> File:
    with scope.team(principal.team_id):
        return File.objects.create(
            team_id=principal.team_id,
            api_key_id=principal.key_id,
            filename=upload.filename,
            purpose=upload.purpose,
            content_type=upload.content_type,
            size=size,
            sweep_at=upload.created_at + _PARTS_KEPT,
        )


def _insert_part(upload: Upload, hidden: File, digest: str) -> UploadPart:
    with scope.team(upload.team_id):
        File.objects.filter(pk=hidden.pk).update(sha256=digest)
        return UploadPart.objects.create(team_id=upload.team_id, upload=upload, content=hidden)


async def complete_upload(*, principal: Principal, upload_id: str, part_ids: Sequence[str], md5: str | None) -> Upload:
    """Join the parts in this order into a file. Raises `InvalidValue` if their size or checksum is not as declared."""
    upload = await in_db_thread(lambda: _pending(principal, upload_id))
    parts = await in_db_thread(lambda: _ordered(upload, part_ids))
    # Only one of two concurrent requests gets past this line.
    await in_db_thread(lambda: _change_state(upload, UploadState.PENDING, UploadState.COMPLETING))
    try:
        file = await _assembled(principal, upload, parts, md5)
    except BaseException:
        # A cancelled request resets the state as well. The client may try again, with another order or checksum.
        await in_db_thread(lambda: _change_state(upload, UploadState.COMPLETING, UploadState.PENDING))
        raise

    def finish() -> Upload:
        _change_state(upload, UploadState.COMPLETING, UploadState.COMPLETED, file=file)
        with scope.team(upload.team_id):
            _expire_parts(upload)
            return Upload.objects.select_related("file").get(pk=upload.pk)

    return await in_db_thread(finish)


async def _assembled(principal: Principal, upload: Upload, parts: Sequence[File], md5: str | None) -> File:
    # On disk, as the parts together may be several gigabytes.
    with TemporaryUploadedFile(upload.filename, upload.content_type, upload.size, None) as whole:
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            content = await storage.open_content(part)
            async for chunk in storage.chunks(content):
                digest.update(chunk)
                await asyncio.to_thread(whole.write, chunk)
        if md5 is not None and digest.hexdigest() != md5.lower():
            raise InvalidValue("The md5 checksum does not match the parts in this order.", param="md5")
        whole.seek(0)
        lifetime = timedelta(seconds=upload.lifetime_seconds) if upload.lifetime_seconds else None
        joined = IncomingFile(
            content=whole,
            filename=upload.filename,
            content_type=upload.content_type,
            size=upload.size,
            purpose=Purpose(upload.purpose),
            lifetime=lifetime,
        )
        return await storage.create_file(principal=principal, upload=joined)


def _ordered(upload: Upload, part_ids: Sequence[str]) -> list[File]:
    with scope.team(upload.team_id):
        known = {part.pk: part.content for part in UploadPart.objects.filter(upload=upload).select_related("content")}
    for index, part_id in enumerate(part_ids):
        if part_id not in known:
            raise NotFound(f"No such Part object in this upload: {part_id}", param=f"part_ids[{index}]")
    if len(set(part_ids)) < len(part_ids):
        raise InvalidValue("Invalid 'part_ids': it contains a part more than once.", param="part_ids")
    parts = [known[part_id] for part_id in part_ids]
    if (total := sum(part.size for part in parts)) != upload.size:
        raise InvalidValue(
            f"The parts add up to {total} bytes, but the upload was created with {upload.size} bytes.", param="part_ids"
        )
    return parts


def cancel_upload(*, principal: Principal, upload_id: str) -> Upload:
    """Cancel an upload; its parts are removed by the next sweep."""
    upload = _pending(principal, upload_id)
    _change_state(upload, UploadState.PENDING, UploadState.CANCELLED)
    with scope.team(upload.team_id):
        _expire_parts(upload)
        return Upload.objects.get(pk=upload.pk)


def _expire_parts(upload: Upload) -> None:
    File.objects.filter(pk__in=UploadPart.objects.filter(upload=upload).values("content")).update(sweep_at=now())


def _pending(principal: Principal, upload_id: str) -> Upload:
    """Return a pending upload of the caller's team. Raises `NotFound`, or `InvalidValue` if the upload has ended."""
    with scope.team(principal.team_id):
        upload = Upload.objects.filter(pk=upload_id, team_id=principal.team_id).first()
    if upload is None:
        raise NotFound(f"No such Upload object: {upload_id}")
    if (status := _status(upload, now())) != UploadState.PENDING:
        raise InvalidValue(f"The upload '{upload_id}' is {status}.", param="upload_id")
    if upload.state == UploadState.COMPLETING:
        raise InvalidValue(f"The upload '{upload_id}' is being completed.", param="upload_id")
    return upload


def _change_state(upload: Upload, old: UploadState, new: UploadState, **values: Any) -> None:
    # Conditional on the old state: of concurrent requests that complete or cancel an upload, one wins.
    with scope.team(upload.team_id):
        if Upload.objects.filter(pk=upload.pk, state=old).update(state=new, **values) != 1:
            raise InvalidValue(f"The upload '{upload.pk}' is no longer pending.", param="upload_id")


def _status(upload: Upload, at: datetime) -> str:
    # Expiry is derived and not stored, so no task has to mark uploads as expired on time.
    if upload.state in {UploadState.COMPLETED, UploadState.CANCELLED}:
        return upload.state
    return "expired" if upload.expires_at <= at else UploadState.PENDING


def public_upload(upload: Upload) -> objects.Upload:
    """Return the public upload object."""
    return {
        "id": upload.pk,
        "object": "upload",
        "bytes": upload.size,
        "created_at": unix(upload.created_at),
        "expires_at": unix(upload.expires_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": _status(upload, now()),
        "file": storage.public_file(upload.file) if upload.file else None,
    }


def public_part(part: UploadPart) -> objects.UploadPart:
    """Return the public part object."""
    return {
        "id": part.pk,
        "object": "upload.part",
        "created_at": unix(part.created_at),
        "upload_id": part.upload_id,
    }

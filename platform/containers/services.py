"""Creation, use and deletion of containers. The sandbox service runs them; their rows record the last known state."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import TypeVar

from django.conf import settings

from containers.models import DATA, IDLE_MINUTES, Container, ContainerFile, FileSource, container_id
from containers.network import open_network
from containers.policy import permitted
from conversations.files import storage as files
from conversations.models import File
from core import egress
from core.clock import now
from core.db.db_threads import in_db_thread
from core.errors import (
    ApiError,
    BadRequest,
    ContainerExpired,
    InvalidValue,
    Overloaded,
    UnsupportedValue,
    retry_headers,
)
from sandbox.client import (
    ContainerGone,
    ExecutionResult,
    FileEntry,
    OperationFailed,
    SandboxClient,
    SandboxFull,
    SandboxInfo,
    SandboxUnavailable,
    SandboxUnreachable,
)
from skills.services import MountableSkill
from tenants import scope
from tenants.audit import audit_call
from tenants.principal import Principal

Answer = TypeVar("Answer")
_Changes = tuple[list[ContainerFile], list[ContainerFile]]
MAX_NAME = 255
# Idle containers end within minutes. Their rows stay for some time so that requests get "expired", not "not found".
_ROW_RETENTION = timedelta(days=30)
_RETENTION_BATCH_SIZE = 500
MAX_COPIED = 64 * 1024 * 1024
_NO_SERVICE = "no sandbox service is configured (SANDBOX_URL)"
# A restarted service is back within seconds.
_RETRY_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Properties of a new container. `files` are uploaded files to copy into it, `skills` are mounted in it,
    `domains` can be reached from it.
    """

    name: str
    memory: str = "1g"
    minutes: int = IDLE_MINUTES
    files: Sequence[File] = ()
    skills: Sequence[MountableSkill] = ()
    domains: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExecution:
    """Result of running code or a command, with the files it created, changed or removed."""

    container_id: str
    result: ExecutionResult
    files: Sequence[ContainerFile]
    removed: Sequence[ContainerFile] = ()


def service() -> SandboxClient:
    """Return the client of the sandbox service. Raises SandboxUnavailable if none is configured."""
    if not settings.SANDBOX_URL:
        raise SandboxUnavailable(_NO_SERVICE)
    return SandboxClient(address=settings.SANDBOX_URL, token=settings.SANDBOX_TOKEN)


def _unavailable(reason: Exception, *, param: str | None = None) -> ApiError:
    if isinstance(reason, SandboxUnreachable):
        message = f"Code cannot be executed at the moment: {reason}. Please try again in a few seconds."
        return Overloaded(message, headers=retry_headers(_RETRY_SECONDS))
    return UnsupportedValue(f"Code execution is not available on this server: {reason}.", param=param)


@contextmanager
def _reported() -> Iterator[None]:
    """Convert `SandboxUnavailable` into an error for the client."""
    try:
        yield
    except SandboxUnavailable as missing:
        raise _unavailable(missing) from missing


async def check_sandbox(memory: str, *, param: str, memory_param: str) -> SandboxInfo:
    """Check that containers with this much memory can run.

    Raises UnsupportedValue if they cannot, and Overloaded if the service does not answer at the moment.
    """
    try:
        sandbox_info = await service().info()
    except SandboxUnavailable as missing:
        raise _unavailable(missing, param=param) from missing
    if not sandbox_info.supports_memory(memory):
        raise UnsupportedValue(
            f"The memory limit '{memory}' is not supported: containers have at most '{sandbox_info.max_memory}'.",
            param=memory_param,
        )
    return sandbox_info


def find_files(*, team_id: str, file_ids: Sequence[str], param: str) -> list[File]:
    """Return the uploaded files with these ids.

    Raises NotFound for an unknown file and InvalidValue for a file that is too large. The error's `param` gets the
    index of the file.
    """
    found = []
    with scope.team(team_id):
        for index, file_id in enumerate(file_ids):
            file = files.find_file(team_id=team_id, file_id=file_id)
            if file is None:
                raise files.unknown_file(file_id, param=f"{param}[{index}]")
            if file.size > MAX_COPIED:
                limit = MAX_COPIED // 1024 // 1024
                raise InvalidValue(f"Files in containers are limited to {limit} MiB.", param=f"{param}[{index}]")
            found.append(file)
    return found


async def create_container(
    *, team_id: str, key_id: str | None, spec: ContainerSpec, name: str | None = None
) -> Container:
    """Create a container and copy files into it.

    `name` is the id to use if it was already announced to the client. Raises Overloaded if the sandbox service is full
    or does not answer, and UnsupportedValue if it is unavailable.
    """
    row = Container(
        id=name or container_id(),
        team_id=team_id,
        api_key_id=key_id,
        name=spec.name,
        memory_limit=spec.memory,
        idle_minutes=spec.minutes,
        allowed_domains=list(spec.domains),
    )
    try:
        # The id is chosen here and not by the service, because the client may already know it.
        await service().create(
            row.pk,
            owner=team_id,
            memory=row.memory_limit,
            idle=row.idle_minutes * 60,
            has_network=bool(row.allowed_domains),
        )
    except SandboxFull as full:
        raise Overloaded("There are too many containers right now. Please try again later.") from full
    except (SandboxUnavailable, ContainerGone) as missing:
        raise _unavailable(missing) from missing
    # The row is inserted after the container exists: a row without a container would look usable.
    await in_db_thread(lambda: _insert(row))
    await mount_skills(container=row, skills=spec.skills)
    for file in spec.files:
        await put_file(container=row, file=file)
    return row


async def mount_skills(*, container: Container, skills: Sequence[MountableSkill]) -> None:
    """Mount skills in a container, unless they are mounted already. A skill replaces another one with the same name."""
    present = {skill["name"]: skill for skill in container.skills}
    missing = [skill for skill in skills if present.get(skill.name) != skill.shown()]
    for skill in missing:
        try:
            with _reported():
                await _send(container, partial(_mount, container, skill))
        except OperationFailed as failed:
            raise BadRequest(f"The skill '{skill.name}' could not be put into the container: {failed}.") from failed
        present[skill.name] = skill.shown()
    if missing:
        container.skills = list(present.values())
        await in_db_thread(lambda: _record_skills(container))


async def _mount(container: Container, skill: MountableSkill, client: SandboxClient) -> None:
    await client.mount(container.pk, skill.name, skill.archive)


def _record_skills(container: Container) -> None:
    with scope.team(container.team_id):
        Container.objects.filter(pk=container.pk).update(skills=container.skills)


def _insert(row: Container) -> None:
    with scope.team(row.team_id):
        row.save(force_insert=True)


async def delete_container(*, principal: Principal, container: Container) -> None:
    """End a container and delete everything in it."""

    def remove() -> None:
        with scope.team(principal.team_id):
            Container.objects.filter(pk=container.pk).delete()
            audit_call(principal, "container.deleted", container.pk, before={"name": container.name})

    await in_db_thread(remove)
    # The row is deleted first: if the service fails, the container cannot be used any more, and ends when idle.
    if settings.SANDBOX_URL and not container.lost:
        try:
            await service().delete(container.pk)
        except SandboxUnavailable:
            # The container ends anyway once it has been idle for a while.
            return


def delete_old_containers() -> int:
    """Delete a limited number of rows of containers that ended long ago, and return how many."""
    with scope.every_team():
        old = Container.objects.filter(last_active_at__lt=now() - _ROW_RETENTION).order_by("last_active_at")
        found = list(old.values_list("pk", flat=True)[:_RETENTION_BATCH_SIZE])
        Container.objects.filter(pk__in=found).delete()
    return len(found)


async def execute(
    container: Container, operation: Callable[[SandboxClient], Awaitable[ExecutionResult]]
) -> ContainerExecution:
    """Run code or a command and record its changes to the files. Raises ContainerExpired or SandboxUnavailable."""

    async def operate(client: SandboxClient) -> ExecutionResult:
        domains = permitted(container.allowed_domains)
        async with open_network(client, container.pk, domains=domains, egress=egress.default()):
            return await operation(client)

    result = await _send(container, operate)
    # All changes during the execution count as written by the assistant.
    changed, removed = await _sync_files(container, source=FileSource.ASSISTANT)
    return ContainerExecution(container_id=container.pk, result=result, files=changed, removed=removed)


async def add_file(*, container: Container, filename: str, content: bytes) -> ContainerFile:
    """Write a file into a container, replacing a file with the same name."""
    path = f"{DATA}/{_base_name(filename)}"
    with _reported():
        try:
            await _send(container, lambda client: client.write(container.pk, path, content))
        except OperationFailed as failed:
            raise BadRequest(f"The file could not be put into the container: {failed}.", param="file") from failed
        changed, _ = await _sync_files(container, source=FileSource.USER)
    found = next((file for file in changed if file.path == path), None)
    if found is None:
        raise BadRequest("The container did not keep the file.", param="file")
    return found


async def put_file(*, container: Container, file: File) -> ContainerFile:
    """Copy an uploaded file into a container."""
    content = await files.open_content(file)
    pieces = [piece async for piece in files.chunks(content)]
    return await add_file(container=container, filename=file.filename, content=b"".join(pieces))


def _base_name(filename: str) -> str:
    # Clients send names with folders or from Windows; only the last part becomes the file's name.
    name = PurePosixPath(filename.replace("\\", "/").replace("\x00", "")).name
    if name in {"", ".", ".."} or len(name.encode(errors="replace")) > MAX_NAME:
        raise InvalidValue("Invalid 'file': the file name is not valid.", param="file")
    return name


async def read_file(*, container: Container, file: ContainerFile) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file in pieces. Raises OperationFailed if the file has disappeared."""
    # In pieces, because a file may be too large for the memory of a process.
    at = 0

    async def next_piece(client: SandboxClient) -> bytes:
        return await client.read(container.pk, file.path, offset=at)

    with _reported():
        while piece := await _send(container, next_piece):
            at += len(piece)
            yield piece


async def delete_file(*, principal: Principal, container: Container, file: ContainerFile) -> None:
    """Delete a file from a container."""
    # The model may have deleted the file already.
    with _reported(), suppress(OperationFailed):
        await _send(container, lambda client: client.remove(container.pk, file.path))

    def remove() -> None:
        with scope.team(principal.team_id):
            ContainerFile.objects.filter(pk=file.pk).delete()
            audit_call(principal, "container_file.deleted", file.pk, before={"path": file.path})

    await in_db_thread(remove)


async def _send(container: Container, operation: Callable[[SandboxClient], Awaitable[Answer]]) -> Answer:
    """Run an operation on a container, and mark the container as lost if the service no longer knows it."""
    try:
        return await operation(service())
    except ContainerGone as gone:
        # Recorded immediately, so that lists and later requests show the container as expired.
        await in_db_thread(lambda: _mark_lost(container))
        raise ContainerExpired from gone


def _mark_lost(container: Container) -> None:
    with scope.team(container.team_id):
        Container.objects.filter(pk=container.pk).update(lost=True)


async def _sync_files(container: Container, *, source: FileSource) -> _Changes:
    """Record the current files of the container, and the time as its last activity.

    Returns the new or changed files, and the files that no longer exist.
    """
    entries = await _send(container, lambda client: client.files(container.pk))
    return await in_db_thread(lambda: _record_files(container, entries, source, now()))


def _record_files(container: Container, entries: Sequence[FileEntry], source: FileSource, at: datetime) -> _Changes:
    with scope.team(container.team_id):
        # The lock serialises concurrent calls in one container, so that each file is inserted once.
        if not Container.objects.select_for_update().filter(pk=container.pk).exists():
            raise ContainerExpired
        known = {file.path: file for file in ContainerFile.objects.filter(container_id=container.pk)}
        changed = []
        for entry in entries:
            # Files that are left in `known` at the end do not exist any more.
            file = known.pop(entry.path, None)
            # Size and modification time identify a version; reading every file would be too slow.
            if file is not None and (file.size, file.changed) == (entry.size, entry.changed):
                continue
            # The path is longer than the column, so the file cannot be listed.
            if len(entry.path) > 1024:
                continue
            if file is None:
                file = ContainerFile(team_id=container.team_id, container_id=container.pk, path=entry.path)
            file.size, file.changed, file.source = entry.size, entry.changed, source
            file.save()
            changed.append(file)
        removed = list(known.values())
        ContainerFile.objects.filter(pk__in=[file.pk for file in removed]).delete()
        Container.objects.filter(pk=container.pk).update(last_active_at=at)
    return changed, removed

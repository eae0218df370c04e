"""Writes: containers are made, used and deleted. The sandbox service has what runs, rows say what was seen of it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import TypeVar

from django.conf import settings

from conversations.files import storage as files
from conversations.models import File
from kernel.clock import now
from kernel.db_threads import in_db_thread
from kernel.errors import BadRequest, ContainerExpired, InvalidValue, Overloaded, UnsupportedValue
from responses.containers.models import DATA, IDLE_MINUTES, Container, ContainerFile, FileSource, container_id
from sandbox.client import (
    ContainerGone,
    ExecutionResult,
    FileEntry,
    OperationFailed,
    SandboxClient,
    SandboxFull,
    SandboxInfo,
    SandboxUnavailable,
)
from tenants import scope
from tenants.audit import audit
from tenants.principal import Principal

Answer = TypeVar("Answer")
_Changes = tuple[list[ContainerFile], list[ContainerFile]]
MAX_NAME = 255
# Idle ones end within minutes; for so long their ids still answer, with what became of them.
_REMEMBERED = timedelta(days=30)
_SWEEP_AT_ONCE = 500
MAX_COPIED = 64 * 1024 * 1024
_NO_SERVICE = "no sandbox service is configured (SANDBOX_URL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What a container is to be like. `files` are uploaded ones that are copied into it."""

    name: str
    memory: str = "1g"
    minutes: int = IDLE_MINUTES
    files: Sequence[File] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExecution:
    """What became of a cell or a command, and which files it has made or changed, and which removed."""

    container_id: str
    ran: ExecutionResult
    files: Sequence[ContainerFile]
    removed: Sequence[ContainerFile] = ()


def service() -> SandboxClient:
    """The sandbox service. Raises Unavailable where none is configured."""
    if not settings.SANDBOX_URL:
        raise SandboxUnavailable(_NO_SERVICE)
    return SandboxClient(address=settings.SANDBOX_URL, token=settings.SANDBOX_TOKEN)


async def check_ability(memory: str, *, param: str, memory_param: str) -> SandboxInfo:
    """Raise the 400 of a server that cannot run code, or not with so much memory; both say what is missing."""
    try:
        ability = await service().info()
    except SandboxUnavailable as missing:
        raise UnsupportedValue(f"This server cannot run code: {missing}.", param=param) from missing
    if not ability.supports_memory(memory):
        message = f"Containers of this server have at most '{ability.max_memory}' of memory, not '{memory}'."
        raise UnsupportedValue(message, param=memory_param)
    return ability


def find_files(*, team_id: str, file_ids: Sequence[str], param: str) -> list[File]:
    """The uploaded files of these ids; one that is unknown or too large is refused by its place in the list."""
    found = []
    with scope.team(team_id):
        for index, file_id in enumerate(file_ids):
            file = files.find_file(team_id=team_id, file_id=file_id)
            if file is None:
                raise files.unknown_file(file_id, param=f"{param}[{index}]")
            if file.size > MAX_COPIED:
                limit = MAX_COPIED // 1024 // 1024
                raise InvalidValue(f"A file of a container has at most {limit} MiB.", param=f"{param}[{index}]")
            found.append(file)
    return found


async def create_container(
    *, team_id: str, key_id: str | None, spec: ContainerSpec, name: str | None = None
) -> Container:
    """Make a container, with files in it. `name` is the id that it gets, where somebody has told it already."""
    row = Container(
        id=name or container_id(),
        team_id=team_id,
        api_key_id=key_id,
        name=spec.name,
        memory_limit=spec.memory,
        idle_minutes=spec.minutes,
    )
    try:
        await service().create(row.pk, owner=team_id, memory=row.memory_limit, idle=row.idle_minutes * 60)
    except SandboxFull as full:
        raise Overloaded("There are too many containers at the moment. Please try again later.") from full
    except (SandboxUnavailable, ContainerGone) as missing:
        raise UnsupportedValue(f"This server cannot run code: {missing}.") from missing
    await in_db_thread(lambda: _insert(row))
    for file in spec.files:
        await put_file(container=row, file=file)
    return row


def _insert(row: Container) -> None:
    with scope.team(row.team_id):
        row.save(force_insert=True)


async def _content(file: File) -> bytes:
    content = await files.open_content(file)
    return b"".join([piece async for piece in files.chunks(content)])


async def delete_container(*, principal: Principal, container: Container, request_id: str) -> None:
    """End a container, with everything in it."""

    def remove() -> None:
        with scope.team(principal.team_id):
            Container.objects.filter(pk=container.pk).delete()
            _audit(principal, "container.deleted", container.pk, request_id, before={"name": container.name})

    await in_db_thread(remove)
    if settings.SANDBOX_URL and not container.lost:
        try:
            await service().delete(container.pk)
        except SandboxUnavailable:
            return  # whatever runs there ends by itself, unused


def sweep_containers() -> int:
    """Forget the containers that ended long ago, with what was seen in them."""
    with scope.every_team():
        old = Container.objects.filter(last_active_at__lt=now() - _REMEMBERED).order_by("last_active_at")
        found = list(old.values_list("pk", flat=True)[:_SWEEP_AT_ONCE])
        Container.objects.filter(pk__in=found).delete()
    return len(found)


async def run_code(*, container: Container, code: str, seconds: float) -> ContainerExecution:
    """Execute a cell, and see what it did to the files. Raises ContainerExpired or Unavailable."""
    return await _execute(container, lambda to: to.run(container.pk, code, seconds=seconds))


async def run_command(*, container: Container, command: str, seconds: float) -> ContainerExecution:
    """Execute a shell command in the same way."""
    return await _execute(container, lambda to: to.shell(container.pk, command, seconds=seconds))


async def _execute(
    container: Container, order: Callable[[SandboxClient], Awaitable[ExecutionResult]]
) -> ContainerExecution:
    ran = await _send(container, order)
    changed, removed = await _sync_files(container, source=FileSource.ASSISTANT)
    return ContainerExecution(container_id=container.pk, ran=ran, files=changed, removed=removed)


async def add_file(*, container: Container, filename: str, content: bytes) -> ContainerFile:
    """Put a file into a container, in the place of one that has its name."""
    path = f"{DATA}/{_base_name(filename)}"
    try:
        await _send(container, lambda to: to.write(container.pk, path, content))
    except OperationFailed as failed:
        raise BadRequest(f"The file could not be put into the container: {failed}.", param="file") from failed
    changed, _ = await _sync_files(container, source=FileSource.USER)
    found = next((file for file in changed if file.path == path), None)
    if found is None:
        raise BadRequest("The container did not keep the file.", param="file")
    return found


async def put_file(*, container: Container, file: File) -> ContainerFile:
    """Put an uploaded file into a container."""
    return await add_file(container=container, filename=file.filename, content=await _content(file))


def _base_name(filename: str) -> str:
    """The last part of a name, as which a file can lie in a folder."""
    name = PurePosixPath(filename.replace("\\", "/").replace("\x00", "")).name
    if name in {"", ".", ".."} or len(name.encode(errors="replace")) > MAX_NAME:
        raise InvalidValue("Invalid 'file': its name cannot be that of a file.", param="file")
    return name


async def read_file(*, container: Container, file: ContainerFile) -> AsyncGenerator[bytes, None]:
    """The bytes of a file in pieces: all of it may be more than a process should hold. Raises Failed for one that has
    gone meanwhile."""
    at = 0
    while piece := await _read_piece(container, file, at):
        at += len(piece)
        yield piece


async def _read_piece(container: Container, file: ContainerFile, at: int) -> bytes:
    return await _send(container, lambda to: to.read(container.pk, file.path, offset=at))


async def delete_file(*, principal: Principal, container: Container, file: ContainerFile, request_id: str) -> None:
    """Take a file out of a container."""
    with suppress(OperationFailed):  # where the model was faster
        await _send(container, lambda to: to.remove(container.pk, file.path))

    def remove() -> None:
        with scope.team(principal.team_id):
            ContainerFile.objects.filter(pk=file.pk).delete()
            _audit(principal, "container_file.deleted", file.pk, request_id, before={"path": file.path})

    await in_db_thread(remove)


async def _send(container: Container, order: Callable[[SandboxClient], Awaitable[Answer]]) -> Answer:
    """Have the service do something with a container; one that has ended there is so from now on."""
    try:
        return await order(service())
    except ContainerGone as gone:
        await in_db_thread(lambda: _mark_lost(container))
        raise ContainerExpired from gone


def _mark_lost(container: Container) -> None:
    with scope.team(container.team_id):
        Container.objects.filter(pk=container.pk).update(lost=True)


async def _sync_files(container: Container, *, source: FileSource) -> _Changes:
    """Note what is in the container now; it counts as a use of the container. Returns what is new or has changed, and
    what is no more."""
    entries = await _send(container, lambda to: to.files(container.pk))
    return await in_db_thread(lambda: _record_files(container, entries, source, now()))


def _record_files(container: Container, entries: Sequence[FileEntry], source: FileSource, at: datetime) -> _Changes:
    with scope.team(container.team_id):
        # Two calls of one container note what they have seen one after the other.
        if not Container.objects.select_for_update().filter(pk=container.pk).exists():
            raise ContainerExpired
        known = {file.path: file for file in ContainerFile.objects.filter(container_id=container.pk)}
        changed = []
        for entry in entries:
            file = known.pop(entry.path, None)
            if file is not None and (file.size, file.changed) == (entry.size, entry.changed):
                continue
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


def _audit(principal: Principal, action: str, target: str, request_id: str, *, before: dict[str, str]) -> None:
    audit(
        team_id=principal.team_id,
        actor=f"key:{principal.key_id}",
        action=action,
        target=target,
        before=before,
        request_id=request_id,
    )

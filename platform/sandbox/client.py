"""The platform's side of the conversation with the service."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from sandbox.frames import Frame, ProtocolError, receive, send
from sandbox.limits import MEMORY

_CONNECT = 5.0


class SandboxUnavailable(Exception):
    """No code can be run: there is no service, or it cannot make containers. The text says why, for people."""


class SandboxFull(Exception):
    """There is no room for another container."""


class ContainerGone(Exception):
    """The container is not there any more."""


class OperationFailed(Exception):
    """What was asked of a container was not possible; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What a service can do. `modules` are the names of those packages for numbers and pictures that it has."""

    max_memory: str
    seconds: int
    modules: str

    def gives(self, memory: str) -> bool:
        """Whether containers can be so large."""
        return MEMORY[memory] <= MEMORY[self.max_memory]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """What became of a cell, or of a command. `stopped`: why it was not allowed to go on."""

    stdout: str
    stderr: str
    stopped: str | None
    value: str | None = None
    error: str | None = None
    images: tuple[str, ...] = ()
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a container's. `changed` tells whether it is still the one that was seen before."""

    path: str
    size: int
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxClient:
    """Asks a service: `where` is `host:port` or the path of a socket."""

    where: str
    token: str = field(repr=False)

    async def ability(self) -> SandboxInfo:
        """What the service can do. Raises Unavailable."""
        head = (await self._ask({"op": "hello"}, seconds=_CONNECT)).head
        if not head["ready"]:
            raise SandboxUnavailable(head["reason"])
        return SandboxInfo(max_memory=head["max_memory"], seconds=head["seconds"], modules=head["modules"])

    async def make(self, container: str, *, owner: str = "", memory: str, idle: float) -> None:
        """Have a container of this name. An owner gets at most half of all. Raises Unavailable, Full or Gone."""
        order = {"op": "make", "container": container, "owner": owner, "memory": memory, "idle": idle}
        await self._ask(order)

    async def end(self, container: str) -> None:
        """End a container with everything in it."""
        await self._ask({"op": "end", "container": container})

    async def run(self, container: str, code: str, *, seconds: float) -> ExecutionResult:
        """Execute a cell in the container's interpreter. Raises Gone."""
        return await self._ran("run", container, code, seconds)

    async def shell(self, container: str, command: str, *, seconds: float) -> ExecutionResult:
        """Execute a command in a shell. Raises Gone."""
        return await self._ran("shell", container, command, seconds)

    async def files(self, container: str) -> list[FileEntry]:
        """The files in `/mnt/data`."""
        head = (await self._ask({"op": "list", "container": container})).head
        return [FileEntry(**entry) for entry in head["files"]]

    async def read(self, container: str, path: str, *, offset: int = 0) -> bytes:
        """A piece of a file, of about a megabyte; none at its end. Raises Failed."""
        return (await self._ask({"op": "read", "container": container, "path": path, "offset": offset})).body

    async def write(self, container: str, path: str, content: bytes) -> None:
        """Put a file into a container. Raises Failed."""
        await self._ask({"op": "write", "container": container, "path": path}, content)

    async def remove(self, container: str, path: str) -> None:
        """Take a file out of a container. Raises Failed."""
        await self._ask({"op": "remove", "container": container, "path": path})

    async def _ran(self, op: str, container: str, text: str, seconds: float) -> ExecutionResult:
        order = {"op": op, "container": container, "seconds": seconds}
        head = (await self._ask(order, text.encode(errors="replace"), seconds=seconds + 30)).head
        return ExecutionResult(
            stdout=head["stdout"],
            stderr=head["stderr"],
            stopped=head["stopped"],
            value=_text(head.get("value")),
            error=_text(head.get("error")),
            images=tuple(head.get("images", ())),
            exit_code=head.get("exit_code"),
        )

    async def _ask(self, head: dict[str, Any], body: bytes = b"", *, seconds: float = 60) -> Frame:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(Frame(head={**head, "token": self.token}, body=body))
        except (OSError, ProtocolError, TimeoutError, json.JSONDecodeError) as error:
            raise SandboxUnavailable("the sandbox service does not answer") from error
        match answer.head:
            case {"refused": "gone", "reason": reason}:
                raise ContainerGone(reason)
            case {"refused": "full"}:
                raise SandboxFull
            case {"refused": "unavailable", "reason": reason}:
                raise SandboxUnavailable(reason)
            case {"refused": _}:
                raise SandboxUnavailable("the sandbox service does not know this platform (SANDBOX_TOKEN)")
            case {"failed": why}:
                raise OperationFailed(why)
        return answer

    async def _exchange(self, request: Frame) -> Frame:
        if self.where.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(self.where)
        else:
            host, _, port = self.where.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            await send(writer, request)
            return await receive(reader)
        finally:
            writer.close()


def _text(said: str | None) -> str | None:
    """What a program says of itself may have halves of characters in it, which nobody can store."""
    return None if said is None else said.encode(errors="replace").decode()

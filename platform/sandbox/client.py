"""Client of the sandbox service, used by the platform."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from sandbox.frames import Frame, ProtocolError, Stream, detect_dead_peer, receive, send
from sandbox.limits import MEMORY

_INFO_SECONDS = 5.0
_CONNECT_SECONDS = 5.0


class SandboxUnavailable(Exception):
    """No code can be run: the service is missing or cannot create containers. The message is meant for users."""


class SandboxUnreachable(SandboxUnavailable):
    """The service does not answer at the moment, for example while it is restarted."""


class SandboxFull(Exception):
    """The service cannot create another container of this size or for this owner."""


class ContainerGone(Exception):
    """The container has ended or never existed."""


class OperationFailed(Exception):
    """The container rejected a request, such as reading a missing file; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """Limits and features of a service.

    `seconds` is the time limit of one call, `modules` lists the installed packages among numpy, pandas and matplotlib.
    """

    max_memory: str
    seconds: int
    modules: str

    def supports_memory(self, memory: str) -> bool:
        """Return whether containers may have this much memory."""
        return MEMORY[memory] <= MEMORY[self.max_memory]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Result of a cell or a shell command. `stopped` is the reason why it was ended early, if it was."""

    stdout: str
    stderr: str
    stopped: str | None
    value: str | None = None
    error: str | None = None
    images: tuple[str, ...] = ()
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file in a container. `changed` is its modification time in nanoseconds."""

    path: str
    size: int
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxClient:
    """Client of one service. `address` is `host:port` or the path of a Unix socket."""

    address: str
    token: str = field(repr=False)

    async def info(self) -> SandboxInfo:
        """Return the limits and features of the service. Raises SandboxUnavailable."""
        head = (await self._request({"op": "hello"}, seconds=_INFO_SECONDS)).head
        if not head["ready"]:
            raise SandboxUnavailable(head["reason"])
        return SandboxInfo(max_memory=head["max_memory"], seconds=head["seconds"], modules=head["modules"])

    async def create(
        self, container: str, *, owner: str = "", memory: str, idle: float, has_network: bool = False
    ) -> None:
        """Create a container that ends after `idle` seconds without use, unless it exists.

        With `has_network` its programs use a proxy, whose connections `accept` returns.
        One owner gets at most half of all containers. Raises SandboxUnavailable, SandboxFull or ContainerGone.
        """
        order = {"op": "make", "container": container, "owner": owner, "memory": memory, "idle": idle}
        await self._request({**order, "network": has_network})

    async def accept(self, container: str) -> Stream:
        """Wait for a connection of the container's programs to their proxy and return it.

        Raises ContainerGone or SandboxUnavailable.
        """
        try:
            reader, writer = await self._connect()
            try:
                await send(writer, Frame(head={"op": "accept", "container": container, "token": self.token}))
                answer = await receive(reader)
            except BaseException:
                writer.close()
                raise
        except (OSError, ProtocolError) as error:
            raise SandboxUnreachable("the sandbox service does not answer") from error
        if answer.head.get("connected") is not True:
            writer.close()
            raise ContainerGone(str(answer.head.get("reason", "")))
        return reader, writer

    async def delete(self, container: str) -> None:
        """End a container and delete its files."""
        await self._request({"op": "end", "container": container})

    async def run(self, container: str, code: str, *, seconds: float, effect_id: str = "") -> ExecutionResult:
        """Execute a cell in the container's Python interpreter. Raises ContainerGone.

        The cell finds `effect_id` in its environment (see `agent.EFFECT_ID`).
        """
        return await self._execute("run", container, code, seconds=seconds, effect_id=effect_id)

    async def shell(self, container: str, command: str, *, seconds: float, effect_id: str = "") -> ExecutionResult:
        """Execute a command with `/bin/sh`. Raises ContainerGone.

        The command finds `effect_id` in its environment (see `agent.EFFECT_ID`).
        """
        return await self._execute("shell", container, command, seconds=seconds, effect_id=effect_id)

    async def files(self, container: str) -> list[FileEntry]:
        """List the regular files below `/mnt/data`."""
        head = (await self._request({"op": "list", "container": container})).head
        return [FileEntry(**entry) for entry in head["files"]]

    async def read(self, container: str, path: str, *, offset: int = 0) -> bytes:
        """Read up to one MiB of a file; empty at its end. Raises OperationFailed."""
        return (await self._request({"op": "read", "container": container, "path": path, "offset": offset})).body

    async def write(self, container: str, path: str, content: bytes) -> None:
        """Create or replace a file. Raises OperationFailed."""
        await self._request({"op": "write", "container": container, "path": path}, content)

    async def mount(self, container: str, name: str, archive: bytes) -> None:
        """Unpack the zip archive of a skill into `/mnt/skills/<name>`, replacing the folder. Raises OperationFailed."""
        await self._request({"op": "mount", "container": container, "path": name}, archive)

    async def remove(self, container: str, path: str) -> None:
        """Delete a file. Raises OperationFailed."""
        await self._request({"op": "remove", "container": container, "path": path})

    async def _execute(self, op: str, container: str, text: str, *, seconds: float, effect_id: str) -> ExecutionResult:
        order = {"op": op, "container": container, "seconds": seconds, "effect_id": effect_id}
        # The service enforces `seconds`. The margin covers the wait for an earlier call of the same container.
        head = (await self._request(order, text.encode(errors="replace"), seconds=seconds + 30)).head
        return ExecutionResult(
            stdout=head["stdout"],
            stderr=head["stderr"],
            stopped=head["stopped"],
            value=_text(head.get("value")),
            error=_text(head.get("error")),
            images=tuple(head.get("images", ())),
            exit_code=head.get("exit_code"),
        )

    async def _request(self, head: dict[str, Any], body: bytes = b"", *, seconds: float = 60) -> Frame:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(Frame(head={**head, "token": self.token}, body=body))
        except (OSError, ProtocolError, TimeoutError, json.JSONDecodeError) as error:
            raise SandboxUnreachable("the sandbox service does not answer") from error
        match answer.head:
            case {"refused": "gone", "reason": reason}:
                raise ContainerGone(reason)
            case {"refused": "full"}:
                raise SandboxFull
            case {"refused": "unavailable", "reason": reason}:
                raise SandboxUnavailable(reason)
            # Any other refusal, mostly "unauthorized", is a configuration mistake on one of the two sides.
            case {"refused": _}:
                raise SandboxUnavailable("the sandbox service rejected the token of this platform (SANDBOX_TOKEN)")
            case {"failed": why}:
                raise OperationFailed(why)
        return answer

    async def _exchange(self, request: Frame) -> Frame:
        # One connection per request: the service stops a call as soon as its connection closes.
        reader, writer = await self._connect()
        try:
            await send(writer, request)
            return await receive(reader)
        finally:
            writer.close()

    async def _connect(self) -> Stream:
        async with asyncio.timeout(_CONNECT_SECONDS):
            if self.address.startswith("/"):
                return await asyncio.open_unix_connection(self.address)
            host, _, port = self.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        detect_dead_peer(writer)
        return reader, writer


def _text(value: str | None) -> str | None:
    # Output of programs may contain lone surrogates, which neither UTF-8 nor PostgreSQL can represent.
    return None if value is None else value.encode(errors="replace").decode()

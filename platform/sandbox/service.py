"""The sandbox service: answers requests of the platform on a socket.

Each request has its own connection and carries the token.
"""

import asyncio
import hmac
import logging
import os
import re
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sandbox import rootfs
from sandbox.container import ContainerUnavailable
from sandbox.frames import Frame, ProtocolError, detect_dead_peer, receive_body, receive_head, send, splice
from sandbox.limits import MEMORY, SMALLEST, Limits
from sandbox.pool import ContainerPool, PoolFull
from sandbox.rootfs import RootfsProbe

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
_CONTAINER_OPERATIONS = {"run", "shell", "list", "read", "write", "remove", "mount"}
_ADDRESS = re.compile(r".+:[0-9]+")
# Read before the token is checked, so it is smaller than the limit of a frame.
_MAX_REQUEST_HEAD = 1024 * 1024


class Misconfigured(Exception):
    """An environment variable is missing or invalid."""


class NotReady(Misconfigured):
    """The settings may be right, but this machine is not ready for them: a later start can succeed."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Settings of the service. `listen` is `host:port` or the path of a Unix socket."""

    listen: str
    token: str = field(repr=False)
    python: str = ""
    max_memory: str = SMALLEST
    max_containers: int = 32
    warm: int = 1
    seconds: int = 60

    @classmethod
    def parse(cls, environment: Mapping[str, str]) -> "Configuration":
        """Read the settings from environment variables. Raises Misconfigured."""
        memory = environment.get("SANDBOX_MAX_MEMORY") or SMALLEST
        if memory not in MEMORY:
            raise Misconfigured(f"SANDBOX_MAX_MEMORY must be one of {', '.join(MEMORY)}, not {memory!r}.")
        if not (token := environment.get("SANDBOX_TOKEN", "")):
            raise Misconfigured("SANDBOX_TOKEN is not set. The platform must send the same token with every request.")
        listen = environment.get("SANDBOX_LISTEN") or "127.0.0.1:8090"
        if not listen.startswith("/") and not _ADDRESS.fullmatch(listen):
            raise Misconfigured(f"SANDBOX_LISTEN must be host:port or the path of a socket, not {listen!r}.")
        return cls(
            listen=listen,
            token=token,
            python=environment.get("SANDBOX_PYTHON", ""),
            max_memory=memory,
            max_containers=_number(environment, "SANDBOX_MAX_CONTAINERS", 32),
            warm=_number(environment, "SANDBOX_WARM", 1, minimum=0),
            seconds=_number(environment, "SANDBOX_SECONDS", 60),
        )


def _number(environment: Mapping[str, str], name: str, default: int, *, minimum: int = 1) -> int:
    text = environment.get(name, "")
    try:
        number = int(text) if text else default
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise Misconfigured(f"{name} must be a whole number of at least {minimum}, not {text!r}.")
    return number


class Service:
    """Request handler. If this machine cannot run containers, it only reports why."""

    def __init__(self, configuration: Configuration, probe: RootfsProbe) -> None:
        self._configuration = configuration
        self._probe = probe
        self._limits = Limits(seconds=configuration.seconds)
        self.pool: ContainerPool | None = None
        if probe.rootfs is not None:
            self.pool = ContainerPool(
                probe.rootfs,
                self._limits,
                max_containers=configuration.max_containers,
                warm=configuration.warm,
            )

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and write its answer."""
        try:
            detect_dead_peer(writer)
            async with asyncio.timeout(self._configuration.seconds + 60):
                head = await receive_head(reader, max_head=_MAX_REQUEST_HEAD)
                # Checked before the body is read: unauthenticated clients must not make the service buffer a gigabyte.
                # In constant time, so that response times do not reveal how many characters match.
                token = str(head.get("token", "")).encode(errors="replace")
                if not hmac.compare_digest(token, self._configuration.token.encode()):
                    await send(writer, Frame(head={"refused": "unauthorized"}))
                    return
                body = await receive_body(reader, head, max_body=self._limits.data)
                if head.get("op") != "accept":
                    answer = await _unless_disconnected(reader, self._handle(Frame(head=head, body=body)))
                    if answer is not None:
                        await send(writer, answer)
                    return
            # Without a time limit: the platform closes the connection at the end of the call.
            await self._tunnel(str(head.get("container")), reader, writer)
        except (ProtocolError, TimeoutError, OSError):
            logger.debug("a request was not answered")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _tunnel(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect the platform with the next connection of a container to its proxy.

        The service has no network and knows no policy: the platform reads the request and decides where it goes.
        """
        if self.pool is None:
            return
        try:
            connection = await _unless_disconnected(reader, self.pool.accept(name))
        except ContainerUnavailable as gone:
            await send(writer, Frame(head={"refused": "gone", "reason": str(gone)}))
            return
        if connection is None:
            return
        inside = await asyncio.open_connection(sock=connection)
        try:
            await send(writer, Frame(head={"connected": True}))
            await splice((reader, writer), inside)
        finally:
            inside[1].close()

    async def _handle(self, request: Frame) -> Frame:
        head = request.head
        if head.get("op") == "hello":
            return Frame(
                head={
                    "ready": self.pool is not None,
                    "reason": self._probe.reason,
                    "modules": self._probe.modules,
                    "max_memory": self._configuration.max_memory,
                    "seconds": self._configuration.seconds,
                }
            )
        if self.pool is None:
            return Frame(head={"refused": "unavailable", "reason": self._probe.reason})
        try:
            return await self._execute(self.pool, head, request.body)
        except PoolFull:
            return Frame(head={"refused": "full"})
        except ContainerUnavailable as gone:
            return Frame(head={"refused": "gone", "reason": str(gone)})

    async def _execute(self, pool: ContainerPool, head: dict[str, object], body: bytes) -> Frame:
        name = str(head.get("container"))
        match head.get("op"):
            case "make":
                memory = MEMORY[str(head.get("memory"))]
                if memory > MEMORY[self._configuration.max_memory]:
                    return Frame(head={"refused": "full"})
                owner, idle = str(head.get("owner", "")), float(str(head.get("idle")))
                await pool.create(name, owner=owner, memory=memory, idle=idle, has_network=head.get("network") is True)
            case "end":
                await pool.delete(name)
            case str() as operation if operation in _CONTAINER_OPERATIONS:
                # Rebuilt field by field: the token must never reach a container.
                seconds = min(float(str(head.get("seconds", 10))), self._configuration.seconds)
                path, offset = str(head.get("path", "")), int(str(head.get("offset", 0)))
                effect_id = str(head.get("effect_id", ""))
                forwarded = {
                    "op": operation,
                    "path": path,
                    "offset": offset,
                    "seconds": seconds,
                    "effect_id": effect_id,
                }
                return await pool.request(name, forwarded, body)
            case _:
                return Frame(head={"refused": "unknown"})
        return Frame(head={})


async def _unless_disconnected(reader: asyncio.StreamReader, handling: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Return the answer, or None if the client closed its connection first, which cancels the request."""
    # Clients send nothing after their request, so a read ends only with the connection.
    answer, disconnect = asyncio.ensure_future(handling), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, disconnect):
            task.cancel()
        # Errors are ignored: if the connection has failed, no client is left to receive them.
        await asyncio.gather(answer, disconnect, return_exceptions=True)


async def serve(configuration: Configuration) -> None:
    """Serve until SIGTERM or SIGINT."""
    probe = await rootfs.probe(python=configuration.python)
    service = Service(configuration, probe)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if probe.rootfs is None:
        # The service keeps running: the platform shows the reason to users and operators.
        logger.warning("No code can be run: %s", probe.reason)
    maintenance = asyncio.create_task(service.pool.maintain()) if service.pool else None
    try:
        async with await _listen(service, configuration.listen):
            await stop.wait()
    finally:
        if maintenance is not None:
            maintenance.cancel()
        if service.pool is not None:
            await service.pool.close()


async def _listen(service: Service, address: str) -> asyncio.Server:
    try:
        if address.startswith("/"):
            return await asyncio.start_unix_server(service.answer, address)
        host, _, port = address.rpartition(":")
        return await asyncio.start_server(service.answer, host.strip("[]"), int(port))
    except OverflowError as error:
        raise Misconfigured(f"The port of SANDBOX_LISTEN must be below 65536, not {port}.") from error
    except OSError as error:
        raise NotReady(f"Cannot listen on {address} (SANDBOX_LISTEN): {error.strerror}.") from error


def main(environment: Mapping[str, str]) -> int:
    """Run the service and return the exit code. Raises Misconfigured."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    configuration = Configuration.parse(environment)
    # The socket must be accessible to this user only.
    os.umask(0o077)
    if configuration.listen.startswith("/"):
        # A service that was killed leaves its socket behind, and binding to an existing path fails.
        Path(configuration.listen).unlink(missing_ok=True)
    asyncio.run(serve(configuration))
    return 0

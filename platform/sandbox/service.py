"""The service: answers the platform on a socket. Every request brings the token, and has a connection of its own."""

import asyncio
import hmac
import logging
import os
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox import rootfs
from sandbox.container import ContainerUnavailable
from sandbox.frames import Frame, ProtocolError, receive_body, receive_head, send
from sandbox.limits import MEMORY, SMALLEST, Limits
from sandbox.pool import ContainerPool, PoolFull
from sandbox.rootfs import RootfsProbe

logger = logging.getLogger(__name__)
_ORDERS = {"run", "shell", "list", "read", "write", "remove"}
_MAX_TOKEN_HEAD = 1024 * 1024


class Misconfigured(Exception):
    """A variable of the environment is missing or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a service is told. `listen` is `host:port`, or the path of a socket."""

    listen: str
    token: str = field(repr=False)
    python: str = ""
    max_memory: str = SMALLEST
    max_containers: int = 32
    warm: int = 1
    seconds: int = 60

    @classmethod
    def parse(cls, environment: Mapping[str, str]) -> "Configuration":
        """Out of the environment. Raises Misconfigured."""
        memory = environment.get("SANDBOX_MAX_MEMORY") or SMALLEST
        if memory not in MEMORY:
            raise Misconfigured(f"SANDBOX_MAX_MEMORY must be one of {', '.join(MEMORY)}, not {memory!r}.")
        if not (token := environment.get("SANDBOX_TOKEN", "")):
            raise Misconfigured("SANDBOX_TOKEN is not set: the platform shows it with every request.")
        return cls(
            listen=environment.get("SANDBOX_LISTEN") or "127.0.0.1:8090",
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
    """Answers requests. Without a way to make containers it says so, and does nothing else."""

    def __init__(self, configuration: Configuration, found: RootfsProbe) -> None:
        self._configuration = configuration
        self._found = found
        self._limits = Limits(seconds=configuration.seconds)
        self.containers: ContainerPool | None = None
        if found.rootfs is not None:
            most, warm = configuration.max_containers, configuration.warm
            self.containers = ContainerPool(found.rootfs, self._limits, most=most, warm=warm)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer. Whoever has not shown the token gets nothing read but that."""
        try:
            async with asyncio.timeout(self._configuration.seconds + 60):
                head = await receive_head(reader, max_head=_MAX_TOKEN_HEAD)
                if not self._is_known(head):
                    await send(writer, Frame(head={"refused": "unauthorized"}))
                    return
                body = await receive_body(reader, head, max_body=self._limits.data)
                answer = await _unless_gone(reader, self._answered(Frame(head=head, body=body)))
                if answer is not None:
                    await send(writer, answer)
        except (ProtocolError, TimeoutError):
            logger.debug("a request was not answered")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _is_known(self, head: dict[str, object]) -> bool:
        shown = str(head.get("token", "")).encode(errors="replace")
        return hmac.compare_digest(shown, self._configuration.token.encode())

    async def _answered(self, request: Frame) -> Frame:
        head = request.head
        if head.get("op") == "hello":
            return Frame(head=self._said())
        if self.containers is None:
            return Frame(head={"refused": "unavailable", "reason": self._found.reason})
        try:
            return await self._done(self.containers, head, request.body)
        except PoolFull:
            return Frame(head={"refused": "full"})
        except ContainerUnavailable as gone:
            return Frame(head={"refused": "gone", "reason": str(gone)})

    def _said(self) -> dict[str, object]:
        return {
            "ready": self.containers is not None,
            "reason": self._found.reason,
            "modules": self._found.modules,
            "max_memory": self._configuration.max_memory,
            "seconds": self._configuration.seconds,
        }

    async def _done(self, containers: ContainerPool, head: dict[str, object], body: bytes) -> Frame:
        name = str(head.get("container"))
        match head.get("op"):
            case "make":
                memory = MEMORY[str(head.get("memory"))]
                if memory > MEMORY[self._configuration.max_memory]:
                    return Frame(head={"refused": "full"})
                owner, idle = str(head.get("owner", "")), float(str(head.get("idle")))
                await containers.make(name, owner=owner, memory=memory, idle=idle)
            case "end":
                await containers.end(name)
            case str() as order if order in _ORDERS:
                seconds = min(float(str(head.get("seconds", 10))), self._configuration.seconds)
                path, offset = str(head.get("path", "")), int(str(head.get("offset", 0)))
                told = {"op": order, "path": path, "offset": offset, "seconds": seconds}
                return await containers.order(name, told, body)
            case _:
                return Frame(head={"refused": "unknown"})
        return Frame(head={})


async def _unless_gone(reader: asyncio.StreamReader, answering: Coroutine[Any, Any, Frame]) -> Frame | None:
    """The answer; None: whoever asked has hung up, and what they asked for was stopped."""
    answer, leaving = asyncio.ensure_future(answering), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, leaving):
            task.cancel()
        await asyncio.wait({answer, leaving})


async def serve(configuration: Configuration) -> None:
    """Serve until SIGTERM or SIGINT."""
    found = await rootfs.find(python=configuration.python)
    service = Service(configuration, found)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if found.rootfs is None:
        logger.warning("No code can be run: %s", found.reason)
    house = asyncio.create_task(service.containers.keep_house()) if service.containers else None
    try:
        async with await _listen(service, configuration.listen):
            await stop.wait()
    finally:
        if house is not None:
            house.cancel()
        if service.containers is not None:
            await service.containers.close()


async def _listen(service: Service, where: str) -> asyncio.Server:
    if where.startswith("/"):
        return await asyncio.start_unix_server(service.answer, where)
    host, _, port = where.rpartition(":")
    return await asyncio.start_server(service.answer, host.strip("[]"), int(port))


def _make_way(where: str) -> None:
    """A socket that a killed service has left behind is in the way of the next one. Ours is for our user alone."""
    os.umask(0o077)
    if where.startswith("/"):
        Path(where).unlink(missing_ok=True)


def main(environment: Mapping[str, str]) -> int:
    """Run the service; returns the exit code. Raises Misconfigured."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    configuration = Configuration.parse(environment)
    _make_way(configuration.listen)
    asyncio.run(serve(configuration))
    return 0

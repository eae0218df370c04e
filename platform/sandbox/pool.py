"""The container pool of a service: creates containers, keeps spare ones warm and ends those that are idle."""

import asyncio
import logging
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any

from sandbox import container
from sandbox.container import ContainerUnavailable, Rootfs, SandboxContainer
from sandbox.frames import Frame
from sandbox.limits import Limits

logger = logging.getLogger(__name__)
_MAINTENANCE_SECONDS = 5.0


class PoolFull(Exception):
    """The limit of containers is reached, in total or for one owner."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A container with its last use (monotonic time). `starting` is done once the container has started."""

    starting: "asyncio.Future[SandboxContainer]"
    owner: str
    idle: float
    used_at: float = field(default_factory=time.monotonic)
    busy: int = 0


class ContainerPool:
    """All containers of this process by the ids that the platform gave them."""

    def __init__(self, rootfs: Rootfs, limits: Limits, *, max_containers: int = 32, warm: int = 1) -> None:
        self._rootfs = rootfs
        self._limits = limits
        self._max_containers = max_containers
        self._warm = warm
        self._entries: dict[str, _Entry] = {}
        self._spare: list[SandboxContainer] = []
        self._refilling: asyncio.Task[None] | None = None

    async def create(self, name: str, *, owner: str = "", memory: int, idle: float, has_network: bool = False) -> None:
        """Create a container, unless one of this name exists. With `has_network` it gets a proxy.

        `memory` is in bytes; after `idle` seconds without use the container is ended. Raises PoolFull, or
        ContainerUnavailable with the reason why no container can be started.
        """
        entry = self._entries.get(name)
        if entry is None:
            owned = sum(container.owner == owner for container in self._entries.values())
            # One owner gets half of the pool at most, so that one team cannot lock out all others.
            is_over_share = bool(owner) and owned >= max(1, self._max_containers // 2)
            if len(self._entries) >= self._max_containers or is_over_share:
                raise PoolFull
            # Registered before it has started: a second request of the same name waits for the same container.
            starting = asyncio.ensure_future(self._start(memory, has_network=has_network))
            entry = _Entry(starting=starting, owner=owner, idle=idle)
            self._entries[name] = entry
        try:
            # Shielded: a client that disconnects must not cancel a start that other requests wait for.
            await asyncio.shield(entry.starting)
        except ContainerUnavailable:
            self._entries.pop(name, None)
            raise

    async def request(self, name: str, head: dict[str, Any], body: bytes) -> Frame:
        """Send a request to the agent of a container. Raises ContainerUnavailable."""
        entry = self._entries.get(name)
        if entry is None:
            raise ContainerUnavailable
        # Maintenance spares a container while it is busy, however long the call takes.
        entry.busy += 1
        try:
            return await (await asyncio.shield(entry.starting)).request(head, body)
        except ContainerUnavailable:
            self._entries.pop(name, None)
            raise
        finally:
            entry.busy -= 1
            entry.used_at = time.monotonic()

    async def accept(self, name: str) -> socket.socket:
        """Wait for a connection of a container to its proxy. Raises ContainerUnavailable."""
        entry = self._entries.get(name)
        if entry is None:
            raise ContainerUnavailable
        return await (await asyncio.shield(entry.starting)).accept()

    async def delete(self, name: str) -> None:
        """End a container if it exists."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            await (await entry.starting).stop()

    async def maintain(self) -> None:
        """End idle containers and keep spare ones ready until the task is cancelled."""
        while True:
            self._refill()
            await asyncio.sleep(_MAINTENANCE_SECONDS)
            at = time.monotonic()
            try:
                for name, entry in list(self._entries.items()):
                    started = entry.starting
                    lost = started.done() and not (started.exception() is None and started.result().is_alive)
                    if lost or (not entry.busy and at - entry.used_at > entry.idle):
                        await self._discard(name)
            except Exception:
                # If this loop ended, idle containers would keep their memory until the service stops.
                logger.exception("container maintenance failed")

    async def _discard(self, name: str) -> None:
        try:
            await self.delete(name)
        except ContainerUnavailable:
            logger.warning("a container could not be started: %s", name)

    async def close(self) -> None:
        """End all containers, the spare ones included."""
        if self._refilling is not None:
            self._refilling.cancel()
        for name in list(self._entries):
            await self._discard(name)
        for spare in self._spare:
            await spare.stop()

    async def _start(self, memory: int, *, has_network: bool) -> SandboxContainer:
        found = await self._take(memory)
        if has_network:
            try:
                await found.open_proxy()
            except ContainerUnavailable:
                await found.stop()
                raise
        return found

    async def _take(self, memory: int) -> SandboxContainer:
        # Spare containers have the default size. Taking one saves the caller the start of an interpreter.
        while self._spare and memory == self._limits.memory:
            spare = self._spare.pop()
            self._refill()
            if spare.is_alive:
                return spare
        return await container.start(self._rootfs, replace(self._limits, memory=memory))

    def _refill(self) -> None:
        # One refill at a time: two would start more spare containers than configured.
        if self._refilling is None or self._refilling.done():
            self._refilling = asyncio.create_task(self._start_spares())

    async def _start_spares(self) -> None:
        while len(self._spare) < self._warm:
            try:
                self._spare.append(await container.start(self._rootfs, self._limits))
            except ContainerUnavailable as reason:
                logger.warning("no spare container could be started: %s", reason)
                return

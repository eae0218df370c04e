"""The containers of a service: made, kept as long as they are used, and ended. Some are started before anybody asks."""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any

from sandbox import container
from sandbox.container import ContainerUnavailable, Rootfs, SandboxContainer
from sandbox.frames import Frame
from sandbox.limits import Limits

logger = logging.getLogger(__name__)
_LOOK_EVERY = 5.0


class PoolFull(Exception):
    """There are as many containers as there may be, altogether or of one owner."""


@dataclass(slots=True, kw_only=True)
class _Held:
    """A container, and when it was used last. `making`: it is not there yet."""

    making: "asyncio.Future[SandboxContainer]"
    owner: str
    idle: float
    used_at: float = field(default_factory=time.monotonic)
    busy: int = 0


class ContainerPool:
    """All containers of this process, by the ids that the platform knows them by."""

    def __init__(self, rootfs: Rootfs, limits: Limits, *, most: int = 32, warm: int = 1) -> None:
        self._rootfs = rootfs
        self._limits = limits
        self._most = most
        self._warm = warm
        self._held: dict[str, _Held] = {}
        self._ready: list[SandboxContainer] = []
        self._filling: asyncio.Task[None] | None = None

    async def make(self, name: str, *, owner: str = "", memory: int, idle: float) -> None:
        """Have a container of this name. Raises Full, or Gone with the reason why there can be none."""
        held = self._held.get(name)
        if held is None:
            if len(self._held) >= self._most or self._has_enough(owner):
                raise PoolFull
            held = _Held(making=asyncio.ensure_future(self._start(memory)), owner=owner, idle=idle)
            self._held[name] = held
        try:
            await asyncio.shield(held.making)
        except ContainerUnavailable:
            self._held.pop(name, None)
            raise

    def _has_enough(self, owner: str) -> bool:
        """Whether somebody has half of all: the other half is for everybody else."""
        held = sum(one.owner == owner for one in self._held.values())
        return bool(owner) and held >= max(1, self._most // 2)

    async def order(self, name: str, head: dict[str, Any], body: bytes) -> Frame:
        """Have a container do something. Raises Gone."""
        held = self._held.get(name)
        if held is None:
            raise ContainerUnavailable
        held.busy += 1
        try:
            return await (await asyncio.shield(held.making)).order(head, body)
        except ContainerUnavailable:
            self._held.pop(name, None)
            raise
        finally:
            held.busy -= 1
            held.used_at = time.monotonic()

    async def end(self, name: str) -> None:
        """End a container, if it is there."""
        held = self._held.pop(name, None)
        if held is not None:
            await (await held.making).end()

    async def keep_house(self) -> None:
        """End what nobody uses any more, and have some ready. For ever."""
        while True:
            self._fill()
            await asyncio.sleep(_LOOK_EVERY)
            try:
                await self._end_unused()
            except Exception:
                # Nobody else would ever end what is not used.
                logger.exception("the containers could not be looked through")

    async def _end_unused(self) -> None:
        at = time.monotonic()
        for name, held in list(self._held.items()):
            lost = held.making.done() and not (held.making.exception() is None and held.making.result().is_alive)
            if lost or (not held.busy and at - held.used_at > held.idle):
                await self._forget(name)

    async def _forget(self, name: str) -> None:
        try:
            await self.end(name)
        except ContainerUnavailable:
            logger.warning("a container could not be started: %s", name)

    async def close(self) -> None:
        """End all of them."""
        if self._filling is not None:
            self._filling.cancel()
        for name in list(self._held):
            await self._forget(name)
        for ready in self._ready:
            await ready.end()

    async def _start(self, memory: int) -> SandboxContainer:
        """One that is ready, where it has the right size; else a new one."""
        while self._ready and memory == self._limits.memory:
            ready = self._ready.pop()
            self._fill()
            if ready.is_alive:
                return ready
        return await container.start(self._rootfs, replace(self._limits, memory=memory))

    def _fill(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._filled())

    async def _filled(self) -> None:
        while len(self._ready) < self._warm:
            try:
                self._ready.append(await container.start(self._rootfs, self._limits))
            except ContainerUnavailable as reason:
                logger.warning("no container could be started: %s", reason)
                return

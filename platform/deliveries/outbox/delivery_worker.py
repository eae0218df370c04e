"""The delivery worker of a worker process: claims due deliveries and attempts them concurrently on the event loop.

Notifications of the outbox wake it. It also polls every second, for retries that have become due and for deliveries
whose notification was lost or whose worker died.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from core.clock import shared_now
from core.db.db_threads import in_db_thread
from core.telemetry import metrics
from core.work.database_notifications import listen
from core.work.work_queue import WorkLoop
from deliveries.outbox.attempt import AttemptResult
from deliveries.outbox.queue import CHANNEL, ClaimedDelivery
from tenants import scope


class DeliveryChannel(ABC):
    """One kind of deliveries. `slots` is how many of them this process attempts at the same time."""

    name: ClassVar[str]

    def __init__(self, *, slots: int) -> None:
        self.slots = slots

    @abstractmethod
    def claim(self, *, at: datetime, slots: int) -> list[ClaimedDelivery]:
        """Claim up to `slots` due deliveries, in a transaction that sees every team."""

    @abstractmethod
    async def send(self, delivery: Any) -> AttemptResult:
        """Attempt a delivery."""

    @abstractmethod
    def record(self, delivery: Any, result: AttemptResult) -> None:
        """Store the result, in a transaction that sees the delivery's team."""


class DeliveryWorker(WorkLoop[ClaimedDelivery]):
    """Attempts deliveries. When it is stopped, attempts in progress finish.

    Each channel has slots of its own, so that an outage of the mail server delays no webhook.
    """

    kind = "deliveries"

    def __init__(self, channels: Sequence[DeliveryChannel]) -> None:
        super().__init__()
        self._channels = {channel.name: channel for channel in channels}

    @override
    async def run(self) -> None:
        listener = asyncio.create_task(listen(CHANNEL, self.wake))
        try:
            await super().run()
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    @override
    async def claim(self) -> bool:
        free = {name: channel.slots for name, channel in self._channels.items()}
        for working in self.work:
            free[working.channel] -= 1
        for claimed in await in_db_thread(partial(self._claim, free)) if any(free.values()) else ():
            self.begin(claimed)
        # The remaining deliveries are for receivers with all their places taken: the end of an attempt wakes the loop.
        return False

    def _claim(self, free: dict[str, int]) -> list[ClaimedDelivery]:
        at = shared_now()
        with scope.every_team():
            return [
                claimed
                for name, slots in free.items()
                if slots > 0
                for claimed in self._channels[name].claim(at=at, slots=slots)
            ]

    @override
    async def execute(self, claim: ClaimedDelivery) -> None:
        channel = self._channels[claim.channel]
        result = await channel.send(claim.delivery)
        outcome = "delivered" if result.succeeded else "failed"
        metrics.DELIVERIES.labels(channel.name, outcome).inc()
        metrics.DELIVERY_DURATION.labels(channel.name).observe(result.milliseconds / 1000)
        await in_db_thread(partial(self._record, channel, claim, result))

    @staticmethod
    def _record(channel: DeliveryChannel, claim: ClaimedDelivery, result: AttemptResult) -> None:
        with scope.team(claim.team_id):
            channel.record(claim.delivery, result)

    @override
    async def drain(self) -> None:
        # The process need not wait for this: an attempt whose result is not recorded is repeated by another worker.
        await self.settle(None)

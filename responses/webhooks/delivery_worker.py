"""The delivery worker of a worker process: claims due deliveries and attempts them concurrently on the event loop.

Notifications of the outbox wake it. It also polls every second, for retries that have become due and for deliveries
whose notification was lost or whose worker died.
"""

import asyncio
from functools import partial

from typing_extensions import override

from kernel.clock import now
from kernel.database_notifications import listen
from kernel.db_threads import in_db_thread
from kernel.egress import Egress
from kernel.work_queue import WorkLoop
from responses.webhooks import queue
from responses.webhooks.attempt import send
from responses.webhooks.outbox import CHANNEL
from responses.webhooks.queue import ClaimedDelivery


class DeliveryWorker(WorkLoop[ClaimedDelivery]):
    """Attempts deliveries, `slots` at a time. When it is stopped, attempts in progress finish."""

    kind = "deliveries"

    def __init__(self, *, slots: int, egress: Egress) -> None:
        super().__init__()
        self._slots = slots
        self._egress = egress

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
        free = self._slots - len(self.work)
        for claimed in await in_db_thread(partial(queue.claim, at=now(), slots=free)) if free > 0 else ():
            self.begin(claimed)
        # What is left belongs to endpoints with all their places taken: the end of an attempt wakes the loop.
        return False

    @override
    async def execute(self, claim: ClaimedDelivery) -> None:
        delivery = claim.delivery
        result = await send(delivery, egress=self._egress)
        await in_db_thread(partial(queue.record_attempt, delivery=delivery, result=result))

    @override
    async def drain(self) -> None:
        # The process need not wait for this: an attempt whose result is not recorded is repeated by another worker.
        await self.settle(None)

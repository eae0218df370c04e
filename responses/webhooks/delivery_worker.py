"""The courier of a worker process: claims what is due and delivers it, many at a time, on the worker's event loop.

It is woken by the outbox's notices, and looks by itself every second: for retries that have become due, and for what a
lost notice or a dead worker left behind.
"""

import asyncio
import logging
from concurrent.futures import Future
from functools import partial

from kernel import egress, worker_loop
from kernel.clock import now
from kernel.database_notifications import listen
from kernel.db_threads import in_db_thread
from kernel.egress import Egress
from responses.webhooks import queue
from responses.webhooks.attempt import WebhookEvent, send
from responses.webhooks.models import WebhookDelivery
from responses.webhooks.outbox import CHANNEL

logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0


class DeliveryWorker:
    """Delivers until it is stopped; `slots` deliveries at a time. Belongs to one event loop."""

    def __init__(self, *, slots: int, egress: Egress) -> None:
        self._slots = slots
        self._egress = egress
        self._bell = asyncio.Event()
        self._stopped = False
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Deliver what is due, and what becomes due; returns once it was stopped and the last attempt is over."""
        listener = asyncio.create_task(listen(CHANNEL, self._bell.set))
        try:
            while not self._stopped:
                self._bell.clear()
                await self._begin()
                await self._rest()
        finally:
            listener.cancel()
            await asyncio.gather(listener, *self._under_way, return_exceptions=True)

    def stop(self) -> None:
        """Claim nothing any more. Call it on the loop."""
        self._stopped = True
        self._bell.set()

    async def _begin(self) -> None:
        """Begin with as many deliveries as there are slots."""
        free = self._slots - len(self._under_way)
        if free <= 0:
            return
        try:
            claimed = await in_db_thread(partial(queue.claim, at=now(), slots=free))
        except Exception:
            # A database that is away comes back; until then there is nothing to deliver.
            logger.exception("webhooks could not be claimed")
            return
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery))
            self._under_way.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        self._bell.set()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await self._bell.wait()
        except TimeoutError:
            return

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        event = WebhookEvent(
            id=delivery.event_id,
            type=delivery.event_type,
            object_id=delivery.object_id,
            created_at=delivery.created_at,
        )
        try:
            outcome = await send(event, endpoint=delivery.endpoint, egress=self._egress)
            await in_db_thread(partial(queue.settle, delivery=delivery, outcome=outcome))
        except Exception:
            # The others must not wait for it; once its claim has run out it is attempted again.
            logger.exception("a webhook could not be delivered", extra={"event": delivery.event_id})


# -- the one of this process -------------------------------------------------------------------------------------------

_running: DeliveryWorker | None = None
_ending: "Future[None] | None" = None


def start(*, slots: int) -> None:
    """Begin to deliver in this process; with no slots it leaves that to others."""
    global _running, _ending  # noqa: PLW0603 - a process has one courier, and a signal has no other way to it
    if slots:
        _running = DeliveryWorker(slots=slots, egress=egress.default())
        _ending = worker_loop.submit(_running.run())


def stop() -> "Future[None] | None":
    """Claim nothing any more. The future: what was under way is over. Nothing is lost where nobody waits for it: what
    was not written down is attempted again, by another worker."""
    if _running is not None:
        worker_loop.submit(_stop(_running))
    return _ending


async def _stop(courier: DeliveryWorker) -> None:
    courier.stop()

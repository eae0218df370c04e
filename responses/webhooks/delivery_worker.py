"""The delivery worker of a worker process: claims due deliveries and attempts them concurrently on the event loop.

Notifications of the outbox wake it. It also polls every second, for retries that have become due and for deliveries
whose notification was lost or whose worker died.
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
    """Attempts deliveries until it is stopped, `slots` at a time. Belongs to one event loop."""

    def __init__(self, *, slots: int, egress: Egress) -> None:
        self._slots = slots
        self._egress = egress
        self._wake = asyncio.Event()
        self._stopped = False
        self._attempts: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Attempt due deliveries until `stop` is called; return after the last attempt has finished."""
        listener = asyncio.create_task(listen(CHANNEL, self._wake.set))
        try:
            while not self._stopped:
                # Cleared before the queue is read: a notification that arrives during the query is not lost.
                self._wake.clear()
                await self._start_attempts()
                await self._wait()
        finally:
            listener.cancel()
            await asyncio.gather(listener, *self._attempts, return_exceptions=True)

    def stop(self) -> None:
        """Stop claiming deliveries. Must be called on the event loop."""
        self._stopped = True
        self._wake.set()

    async def _start_attempts(self) -> None:
        free = self._slots - len(self._attempts)
        if free <= 0:
            return
        try:
            claimed = await in_db_thread(partial(queue.claim, at=now(), slots=free))
        except Exception:
            # The database may be restarting. The worker must survive that and try again after the poll interval.
            logger.exception("webhook deliveries could not be claimed")
            return
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery))
            # The event loop holds tasks by weak references only.
            self._attempts.add(task)
            task.add_done_callback(self._attempt_done)

    def _attempt_done(self, task: "asyncio.Task[None]") -> None:
        self._attempts.discard(task)
        self._wake.set()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await self._wake.wait()
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
            result = await send(event, endpoint=delivery.endpoint, egress=self._egress)
            await in_db_thread(partial(queue.record_attempt, delivery=delivery, result=result))
        except Exception:
            # One broken delivery must not stop the others. Its claim expires, and then it is attempted again.
            logger.exception("a webhook could not be delivered", extra={"event": delivery.event_id})


# -- the delivery worker of this process -------------------------------------------------------------------------------

_running: DeliveryWorker | None = None
_ending: "Future[None] | None" = None


def start(*, slots: int) -> None:
    """Start the delivery worker of this process. With `slots` 0, other processes deliver."""
    global _running, _ending  # noqa: PLW0603 - a process has one delivery worker, which signal handlers must reach
    if slots:
        _running = DeliveryWorker(slots=slots, egress=egress.default())
        _ending = worker_loop.submit(_running.run())


def stop() -> "Future[None] | None":
    """Stop claiming deliveries. The returned future is done when the attempts in progress have finished.

    Waiting for it is optional.
    """
    # An attempt whose result is not recorded is repeated by another worker as soon as its claim expires.
    if _running is not None:
        worker_loop.submit(_stop(_running))
    return _ending


async def _stop(worker: DeliveryWorker) -> None:
    worker.stop()

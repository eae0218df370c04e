"""`manage.py beat`: the scheduler of periodic tasks. If several run, only the one that holds a lock is active."""

import logging
import time
from argparse import ArgumentParser
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from celery import beat
from celery.signals import before_task_publish
from django.conf import settings
from django.core.management.base import BaseCommand
from redis import Redis, RedisError
from redis.exceptions import LockError
from redis.lock import Lock
from typing_extensions import override

from core.clock import now
from core.telemetry import metrics
from core.work import heartbeats, task_runs
from core.work.notifications import blocking_client
from server.celery import app
from server.metrics import metrics_server
from server.safety import refuse_unsafe_start

logger = logging.getLogger(__name__)
# After this time without a renewal of the lock another process takes over. It is long enough for a slow Redis.
_LOCK_SECONDS = 5.0
_RENEW_SECONDS = 1.0
# The clock was set if its difference to the monotonic clock has changed by more than this since the last tick.
_JUMP_SECONDS = 2.0
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_latest: dict[str, Any] = {}


class Command(BaseCommand):
    """Command that sends scheduled tasks until it receives SIGTERM."""

    help = "Run the scheduler of periodic tasks. Others that run at the same time stand by."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        metrics_server.add_port_argument(parser)

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unsafe_start()
        logging.captureWarnings(capture=True)
        metrics_server.register()
        metrics_server.serve(metrics_server.listen(options["metrics_port"]))
        before_task_publish.connect(_note_task, weak=False)
        # The heartbeat names the latest task, as a scheduler that is alive but sends nothing is as bad as none.
        heartbeats.start("beat", facts=lambda: dict(_latest))
        app.conf.beat_max_loop_interval = _RENEW_SECONDS
        app.Beat(scheduler_cls=cast("Any", LockedScheduler), loglevel="INFO", quiet=True).run()


class LockedScheduler(beat.Scheduler):
    """Celery's scheduler that sends tasks only while it holds a lock in Redis, which is also the broker.

    The times of the last runs are not stored. A process that takes over sends every task at once, and no task is harmed
    by an additional run.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._redis: Redis = blocking_client(settings.REDIS_URL)
        self._lock = Lock(self._redis, "platform:beat", timeout=_LOCK_SECONDS, thread_local=False)
        self._is_active = False
        self._stands_by = False
        self._clock_offset = time.time() - time.monotonic()

    @override
    def tick(self, *args: Any, **options: Any) -> float:
        """Send the due tasks, and return the seconds until the next call."""
        if not self._holds_lock():
            return _RENEW_SECONDS
        offset = time.time() - time.monotonic()
        if abs(offset - self._clock_offset) > _JUMP_SECONDS:
            # Celery would send nothing for as long as a clock was set back.
            logger.warning("the clock was set by %.0f seconds", offset - self._clock_offset)
            self._send_all()
        self._clock_offset = offset
        return min(float(super().tick(*args, **options)), _RENEW_SECONDS)

    @override
    def close(self) -> None:
        # Another process takes over at once.
        with suppress(LockError, RedisError):
            self._lock.release()
        super().close()

    def _send_all(self) -> None:
        task_runs.note_schedule(str(entry.task) for entry in self.schedule.values())
        for entry in self.schedule.values():
            entry.last_run_at = _LONG_AGO
        # Sorted by the time when they are due.
        self._heap = None

    def _holds_lock(self) -> bool:
        was_active = self._is_active
        try:
            self._is_active = bool(self._lock.reacquire()) if was_active else self._lock.acquire(blocking=False)
        except LockError:
            # Redis has lost its data, or this process was paused.
            self._is_active = False
        except RedisError as error:
            if was_active:
                logger.warning("the lock of the scheduler cannot be renewed: %s", error)
            self._is_active = False
        if self._is_active and not was_active:
            logger.info("this scheduler is active")
            self._send_all()
        elif not self._is_active and (was_active or not self._stands_by):
            self._stands_by = True
            logger.info("another scheduler is active; this one stands by")
        _latest["active"] = self._is_active
        return self._is_active


def _note_task(sender: str = "", **_: Any) -> None:
    metrics.TASKS_SENT.labels(sender).inc()
    _latest.update(task=sender, sent_at=now().timestamp())

"""`manage.py worker`: the worker process, which runs background responses and Celery tasks."""

import signal
import sys
import threading
from argparse import ArgumentParser
from concurrent.futures import wait
from functools import partial
from typing import Any, NoReturn

from celery.signals import worker_shutting_down
from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from config.celery import app
from config.safety import refuse_powerful_role
from config.server import allow_many_sockets, freeze_startup_objects
from kernel import heartbeats
from kernel.leases import PROCESS
from responses.batches.runner import BatchRunner
from responses.lifecycle import worker
from responses.lifecycle.notifier import send_notification
from responses.webhooks import delivery_worker

# Few threads suffice, as tasks are short: work that waits for networks runs on the worker's event loop.
_THREADS = 4
# Deliveries in progress may finish within this time. Those that do not are repeated by another worker.
_FINAL_DELIVERIES_SECONDS = 1.0
_FINAL_NOTIFICATION_SECONDS = 1.0


class Command(BaseCommand):
    """Command that works until it receives SIGTERM; other workers then resume its runs."""

    help = "Run background responses and periodic tasks."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", type=int, default=200, help="maximum number of responses to run at the same time"
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_powerful_role()
        allow_many_sockets()
        slots = options["concurrency"]
        # Runs start to drain with Celery's shutdown signal: `worker_main` returns only after Celery's own tasks have
        # ended. Until Celery has installed its handlers, SIGTERM ends the process through `_exit`.
        worker_shutting_down.connect(_stop, weak=False)
        signal.signal(signal.SIGTERM, _exit)
        try:
            worker.start(slots=slots, components=[partial(BatchRunner, max_lines=max(1, slots // 2))])
            delivery_worker.start(slots=settings.WEBHOOK_CONCURRENCY)
            heartbeats.start("worker", name=PROCESS, facts=worker.load)
            freeze_startup_objects()
            threads = ["--pool=threads", f"--concurrency={_THREADS}"]
            app.worker_main(["worker", *threads, "--loglevel=INFO", "--without-gossip", "--without-mingle"])
        finally:
            _ignore_signals()
            if (stopped := worker.stop()) is not None:
                stopped.result()
            if (delivering := delivery_worker.stop()) is not None:
                wait([delivering], timeout=_FINAL_DELIVERIES_SECONDS)
            _notify_other_workers()


def _stop(**_: Any) -> None:
    worker.stop()
    delivery_worker.stop()


def _exit(*_: Any) -> NoReturn:
    _ignore_signals()
    sys.exit(0)


def _notify_other_workers() -> None:
    # Lets another worker claim the released runs immediately. In a thread with a limit: without Redis, Celery would
    # retry for much longer, and the other workers poll the queue anyway.
    sending = threading.Thread(target=send_notification, name="notify-worker", daemon=True)
    sending.start()
    sending.join(_FINAL_NOTIFICATION_SECONDS)


def _ignore_signals() -> None:
    # A second SIGTERM must not interrupt the release of the runs.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

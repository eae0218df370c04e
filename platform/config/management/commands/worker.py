"""`manage.py worker`: runs background responses, and Celery's tasks."""

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
from config.server import allow_many_sockets, settle
from kernel import heartbeats
from responses.batches.runner import BatchRunner
from responses.lifecycle import worker
from responses.lifecycle.notifier import send_notification
from responses.runs.runner import PROCESS
from responses.webhooks import delivery_worker

# Tasks are short: what waits on networks runs on the worker's event loop.
_THREADS = 4
_LAST_DELIVERIES_SECONDS = 1.0
_LAST_MESSAGE_SECONDS = 1.0


class Command(BaseCommand):
    """Works until it gets SIGTERM; then other workers go on with what it was at."""

    help = "Run background responses and periodic tasks."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--concurrency", type=int, default=200, help="how many responses it runs at once")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_powerful_role()
        allow_many_sockets()
        slots = options["concurrency"]
        # Celery waits for its own tasks first, and tells nobody else in time; and it takes a while until it listens.
        worker_shutting_down.connect(_stop, weak=False)
        signal.signal(signal.SIGTERM, _exit)
        try:
            worker.start(slots=slots, components=[partial(BatchRunner, most_lines=max(1, slots // 2))])
            delivery_worker.start(slots=settings.WEBHOOK_CONCURRENCY)
            heartbeats.start("worker", name=PROCESS, facts=worker.load)
            settle()
            threads = ["--pool=threads", f"--concurrency={_THREADS}"]
            app.worker_main(["worker", *threads, "--loglevel=INFO", "--without-gossip", "--without-mingle"])
        finally:
            _hear_nothing()
            if (stopped := worker.stop()) is not None:
                stopped.result()
            if (delivering := delivery_worker.stop()) is not None:
                wait([delivering], timeout=_LAST_DELIVERIES_SECONDS)
            _notify_another_worker()


def _stop(**_: Any) -> None:
    worker.stop()
    delivery_worker.stop()


def _exit(*_: Any) -> NoReturn:
    _hear_nothing()
    sys.exit(0)


def _notify_another_worker() -> None:
    """Others have at once what was given back. Where Redis is away they look by themselves; sending would take long to
    find that out."""
    sending = threading.Thread(target=send_notification, name="notify-worker", daemon=True)
    sending.start()
    sending.join(_LAST_MESSAGE_SECONDS)


def _hear_nothing() -> None:
    """Who is told twice to stop must not stop handing its runs on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

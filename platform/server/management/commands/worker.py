"""`manage.py worker`: the worker process, which runs background responses and Celery tasks."""

import logging
import signal
import sys
import threading
from argparse import ArgumentParser
from typing import Any, NoReturn

from celery.signals import worker_shutting_down
from celery.worker import state
from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from core import egress
from core.admission.overload import admission
from core.compute import pool
from core.db.db_threads import pool_load
from core.process_name import process_name
from core.telemetry import metrics, tracing
from core.work import heartbeats, presence, task_runs, work_queue, worker_loop
from deliveries.notifications.mail import MailChannel
from deliveries.outbox.delivery_worker import DeliveryChannel, DeliveryWorker
from gateway.batches.runner import BatchRunner
from providers.clients import close_clients
from responses.lifecycle import dead_processes
from responses.lifecycle.isolation import IsolatedProcesses
from responses.lifecycle.queue import MESSAGE
from responses.lifecycle.worker import Dispatcher
from responses.runs import store
from responses.webhooks.queue import WebhookChannel
from server.celery import app
from server.metrics import metrics_server
from server.safety import log_slow_interpreter, refuse_unsafe_start
from server.web import warm_up
from server.web.http_server import allow_many_sockets, freeze_startup_objects
from tools.vectors.ingestion import Ingestion

logger = logging.getLogger(__name__)
_isolated = IsolatedProcesses()
# Few threads suffice, as tasks are short: work that waits for networks runs on the worker's event loop.
_THREADS = 4
# Deliveries in progress may finish within this time. Another worker repeats the remaining ones.
_FINAL_DELIVERIES_SECONDS = 1.0
_FINAL_NOTIFICATION_SECONDS = 1.0


class Command(BaseCommand):
    """Command that works until it receives SIGTERM; other workers then resume its runs."""

    help = "Run background responses and periodic tasks."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", type=int, default=200, help="maximum number of responses to run at the same time"
        )
        metrics_server.add_port_argument(parser)

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unsafe_start()
        # Celery and other libraries warn at start; as lines of the log, these are JSON as well.
        logging.captureWarnings(capture=True)
        allow_many_sockets()
        metrics_server.register()
        metrics_server.serve(metrics_server.listen(options["metrics_port"]))
        # A start that is refused says only why.
        log_slow_interpreter()
        # A worker refuses nothing: it executes only accepted requests.
        pool.configure(processes=settings.COMPUTE_PROCESSES, refuses=False, observe=metrics.count_computation)
        task_runs.watch()
        tracing.start("worker")
        # Without a database a worker has nothing else to do, so its writes wait for it instead of failing.
        store.writer.wait_forever()
        # Runs start to drain with Celery's shutdown signal: `worker_main` returns only after Celery's own tasks have
        # ended. Until Celery has installed its handlers, SIGTERM ends the process through `_exit`.
        worker_shutting_down.connect(_stop, weak=False)
        signal.signal(signal.SIGTERM, _exit)
        try:
            warm_up.load_modules()
            worker_loop.submit(warm_up.connect()).result()
            runs = Dispatcher(slots=options["concurrency"])
            work_queue.start(runs)
            _isolated.start(slots=options["concurrency"])
            work_queue.start(BatchRunner(runs.free_slots, max_lines=max(1, options["concurrency"] // 2)))
            work_queue.start(Ingestion())
            if channels := _delivery_channels():
                work_queue.start(DeliveryWorker(channels))
            logger.info("the worker claims background responses", extra={"slots": options["concurrency"]})
            presence.start(dead_processes.release)
            heartbeats.start("worker", name=process_name(), facts=lambda: _facts(runs))
            freeze_startup_objects()
            # The node has the name of the process: of two nodes with the same name, only one gets remote control.
            threads = ["--pool=threads", f"--concurrency={_THREADS}", f"--hostname=celery@{process_name()}"]
            # Without the banner, so that every line of the log is JSON.
            app.worker_main(["--quiet", "worker", *threads, "--loglevel=INFO", "--without-gossip", "--without-mingle"])
        finally:
            _ignore_signals()
            work_queue.stop()
            _isolated.stop()
            work_queue.wait(Dispatcher.kind, BatchRunner.kind, Ingestion.kind)
            _isolated.wait()
            worker_loop.submit(close_clients()).result()
            work_queue.wait(DeliveryWorker.kind, seconds=_FINAL_DELIVERIES_SECONDS)
            # Lets another worker claim the released runs immediately. In a thread with a limit: without Redis, Celery
            # would retry for much longer, and the other workers poll the queue anyway.
            sending = threading.Thread(target=MESSAGE.send, name="notify-worker", daemon=True)
            sending.start()
            sending.join(_FINAL_NOTIFICATION_SECONDS)
            worker_loop.close()


def _facts(runs: Dispatcher) -> dict[str, Any]:
    load = runs.load()
    return {**load, "lag_ms": admission.longest_lag_ms, "pool": pool_load()} if load else {}


def _delivery_channels() -> list[DeliveryChannel]:
    # With a concurrency of 0 this process makes no deliveries of that kind, and leaves them to other processes.
    channels: list[DeliveryChannel] = []
    if settings.WEBHOOK_CONCURRENCY:
        channels.append(WebhookChannel(slots=settings.WEBHOOK_CONCURRENCY, egress=egress.default()))
    if settings.MAIL_CONCURRENCY and settings.EMAIL_HOST:
        channels.append(MailChannel(slots=settings.MAIL_CONCURRENCY))
    return channels


def _stop(**_: Any) -> None:
    work_queue.stop()
    _isolated.stop()


def _exit(*_: Any) -> NoReturn:
    _ignore_signals()
    # Python ignores the exception if the signal arrives during a callback of its garbage collector. Then Celery ends as
    # soon as it has started.
    state.should_stop = 0  # type: ignore[assignment]  # an exit code
    sys.exit(0)


def _ignore_signals() -> None:
    # A second SIGTERM must not interrupt the release of the runs.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

"""`manage.py isolated_worker`: a process, started by a worker, that continues background runs whose process died."""

import logging
import os
import signal
import threading
import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from core.compute import pool
from core.process_name import process_name
from core.telemetry import metrics, tracing
from core.work import presence, work_queue, worker_loop
from providers.clients import close_clients
from responses.lifecycle import dead_processes
from responses.lifecycle.worker import Dispatcher
from responses.models import Isolation
from responses.runs import store
from server.safety import refuse_unsafe_start
from server.web import warm_up
from server.web.http_server import allow_many_sockets

_POLL_SECONDS = 0.5
# Long enough that a queue of such runs does not need a new process for each run.
_IDLE_SECONDS = 10.0


class Command(BaseCommand):
    """Command that continues runs with the given isolation until none is left, SIGTERM arrives or its worker ends."""

    help = "Continue background runs whose worker died; started by workers."
    requires_system_checks = ()  # as for the worker

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--worker", type=int, required=True, help="process id of the worker; this process ends with it"
        )
        parser.add_argument("--isolation", type=int, choices=[Isolation.GROUP, Isolation.ALONE], required=True)
        parser.add_argument("--concurrency", type=int, default=1, help="maximum number of responses at the same time")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unsafe_start()
        is_stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: is_stopping.set())
        logging.captureWarnings(capture=True)
        allow_many_sockets()
        threading.Thread(target=_end_with, args=(options["worker"],), name="worker-watch", daemon=True).start()
        pool.configure(processes=settings.COMPUTE_PROCESSES, refuses=False, observe=metrics.count_computation)
        tracing.start("worker")
        store.writer.wait_forever()
        # The worker must know the name of this process before the process has any runs.
        self.stdout.write(process_name())
        self.stdout.flush()
        try:
            warm_up.load_modules()
            worker_loop.submit(warm_up.connect()).result()
            runs = Dispatcher(slots=options["concurrency"], isolation=Isolation(options["isolation"]))
            presence.start(dead_processes.release)
            work_queue.start(runs)
            idle_since = time.monotonic()
            while not is_stopping.wait(_POLL_SECONDS) and time.monotonic() - idle_since < _IDLE_SECONDS:
                if runs.work:
                    idle_since = time.monotonic()
        finally:
            work_queue.stop()
            work_queue.wait(Dispatcher.kind)
            worker_loop.submit(close_clients()).result()
            worker_loop.close()


def _end_with(worker: int) -> None:
    # Other workers continue the runs of a dead worker. This process must not execute the same runs at the same time.
    while os.getppid() == worker:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)

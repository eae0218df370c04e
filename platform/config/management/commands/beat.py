"""`manage.py beat`: the scheduler of periodic tasks; run one per installation."""

import logging
from argparse import ArgumentParser
from typing import Any

from celery.signals import before_task_publish
from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from config import metrics_server
from config.celery import app
from config.safety import refuse_unsafe_start
from kernel import heartbeats, metrics
from kernel.clock import now

_latest: dict[str, Any] = {}


class Command(BaseCommand):
    """Command that sends scheduled tasks until it receives SIGTERM."""

    help = "Run the scheduler of periodic tasks."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--metrics-port",
            type=int,
            default=settings.METRICS_PORT,
            help="port of the metrics (default: METRICS_PORT)",
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unsafe_start()
        logging.captureWarnings(capture=True)
        metrics_server.register()
        metrics_server.serve(metrics_server.listen(options["metrics_port"]))
        settings.STATE_DIR.mkdir(parents=True, exist_ok=True)
        before_task_publish.connect(_note_task, weak=False)
        # The heartbeat names the latest task, as a scheduler that is alive but sends nothing is as bad as none.
        heartbeats.start("beat", facts=lambda: dict(_latest))
        app.Beat(schedule=str(settings.STATE_DIR / "beat-schedule"), loglevel="INFO", quiet=True).run()


def _note_task(sender: str = "", **_: Any) -> None:
    metrics.TASKS_SENT.labels(sender).inc()
    _latest.update(task=sender, sent_at=now().timestamp())

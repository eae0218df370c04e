"""`manage.py beat`: the scheduler of periodic tasks; run one per installation."""

import logging
from typing import Any

from celery.signals import before_task_publish
from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from config.celery import app
from kernel import heartbeats
from kernel.clock import now

_latest: dict[str, Any] = {}


class Command(BaseCommand):
    """Command that sends scheduled tasks until it receives SIGTERM."""

    help = "Run the scheduler of periodic tasks."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        logging.captureWarnings(capture=True)
        settings.STATE_DIR.mkdir(parents=True, exist_ok=True)
        before_task_publish.connect(_note_task, weak=False)
        # The heartbeat names the latest task, as a scheduler that is alive but sends nothing is as bad as none.
        heartbeats.start("beat", facts=lambda: dict(_latest))
        app.Beat(schedule=str(settings.STATE_DIR / "beat-schedule"), loglevel="INFO", quiet=True).run()


def _note_task(sender: str = "", **_: Any) -> None:
    _latest.update(task=sender, sent_at=now().timestamp())

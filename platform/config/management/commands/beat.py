"""`manage.py beat`: the clock that starts periodic tasks; one per installation."""

from typing import Any

from celery.signals import before_task_publish
from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from config.celery import app
from kernel import heartbeats
from kernel.clock import now

_last: dict[str, Any] = {}


class Command(BaseCommand):
    """Sends the scheduled tasks until it gets SIGTERM."""

    help = "Run the scheduler of periodic tasks."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        settings.STATE_DIR.mkdir(parents=True, exist_ok=True)
        before_task_publish.connect(_sent, weak=False)
        heartbeats.start("beat", facts=_facts)
        app.Beat(schedule=str(settings.STATE_DIR / "beat-schedule"), loglevel="INFO", quiet=True).run()


def _sent(sender: str = "", **_: Any) -> None:
    _last.update(task=sender, sent_at=now().timestamp())


def _facts() -> dict[str, Any]:
    """Which task was sent last: a scheduler that lives and sends nothing is as good as none."""
    return dict(_last)

"""`manage.py beat`: the clock that starts periodic tasks; one per installation."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from config.celery import app


class Command(BaseCommand):
    """Sends the scheduled tasks until it gets SIGTERM."""

    help = "Run the scheduler of periodic tasks."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        settings.STATE_DIR.mkdir(parents=True, exist_ok=True)
        app.Beat(schedule=str(settings.STATE_DIR / "beat-schedule"), loglevel="INFO", quiet=True).run()

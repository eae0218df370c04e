"""`manage.py celery`: Celery's own command line, with the configuration of the platform."""

from typing import Any

from celery.bin.celery import celery
from django.core.management.base import BaseCommand
from typing_extensions import override


class Command(BaseCommand):
    """Passes its arguments to Celery unchanged, including options such as --json."""

    help = "Run Celery's command line for this platform, such as: celery inspect ping"

    @override
    def run_from_argv(self, argv: list[str]) -> None:
        # Not parsed by Django, which would refuse Celery's options.
        _run(argv[2:])

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        _run(args)


def _run(arguments: Any) -> None:
    celery(args=["-A", "server", *arguments], prog_name="manage.py celery")

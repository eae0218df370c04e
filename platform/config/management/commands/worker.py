"""`manage.py worker`: a Celery worker."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from typing_extensions import override

from config.celery import app
from config.safety import refuse_powerful_role


class Command(BaseCommand):
    """Runs tasks until it gets SIGTERM."""

    help = "Run a Celery worker."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--concurrency", type=int, default=4)

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_powerful_role()
        threads = ["--pool=threads", f"--concurrency={options['concurrency']}"]
        app.worker_main(["worker", *threads, "--loglevel=INFO", "--without-gossip", "--without-mingle"])

"""`manage.py web`: the web processes, served by uvicorn or daphne."""

import logging
import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from typing_extensions import override

from server.metrics import metrics_server
from server.safety import NotReady, log_slow_interpreter, refuse_unsafe_start
from server.web.http_server import serve


class Command(BaseCommand):
    """Command that serves the API and the admin until it receives SIGTERM or SIGINT."""

    help = "Serve the API and the admin."
    requires_system_checks = ()  # they take CPU time from processes that serve; `manage.py check` does them

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=settings.PORT)
        metrics_server.add_port_argument(parser)
        parser.add_argument("--server", choices=["daphne", "uvicorn"], default="uvicorn")
        parser.add_argument(
            "--processes", type=int, default=os.cpu_count() or 1, help="processes on the port (default: one per core)"
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unsafe_start()
        logging.captureWarnings(capture=True)
        try:
            serve(
                options["server"],
                host=options["host"],
                port=options["port"],
                processes=options["processes"],
                metrics_port=options["metrics_port"],
                listening=log_slow_interpreter,
            )
        except OSError as error:
            raise NotReady(f"Cannot listen on {options['host']}:{options['port']}: {error.strerror}.") from error
        sys.exit(0)

"""`manage.py rollup`: aggregate rows now, or rebuild the aggregates from a point in time."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from responses.rollups import aggregate


class Command(BaseCommand):
    """Command that does the work of the periodic task, but without its time limit."""

    help = "Aggregate rows for the usage pages. With --since, rebuild the aggregates from that time on."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", metavar="TIME", help="a date or time in UTC, such as 2026-11-01, or 'all'")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        if options["since"]:
            aggregate.discard(since=_moment(options["since"]))
        steps = late = 0
        more = True
        while more:
            rolled = aggregate.roll_up()
            steps, late, more = steps + rolled.steps, late + rolled.late, rolled.more
        self.stdout.write(f"{steps} steps aggregated, {late} late rows added.")


def _moment(text: str) -> datetime | None:
    if text == "all":
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        message = "--since must be a date or time such as 2026-11-01 or 2026-11-01T13:00, or 'all'."
        raise CommandError(message) from error

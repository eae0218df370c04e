"""`manage.py rollup`: sum up closed hours now, or rebuild the sums from a moment on."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from responses.rollups import aggregate


class Command(BaseCommand):
    """Does what the hourly task does, without its limits."""

    help = "Roll closed hours up into the sums that usage pages read. With --since, rebuild them from there on."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--since", metavar="TIME", help="a date or time (UTC), like 2026-11-01; 'all' for everything"
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        if options["since"]:
            aggregate.discard(since=_moment(options["since"]))
        hours = late = 0
        more = True
        while more:
            rolled = aggregate.roll_up()
            hours, late, more = hours + rolled.hours, late + rolled.late, rolled.more
        self.stdout.write(f"{hours} hours rolled up, {late} rows that ended late.")


def _moment(text: str) -> datetime | None:
    if text == "all":
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        message = "--since takes a date or time like 2026-11-01 or 2026-11-01T13:00, or 'all'."
        raise CommandError(message) from error

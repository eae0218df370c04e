"""`manage.py migrate`: Django's command, run as the owner of the tables and by only one node at a time."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from psycopg.errors import LockNotAvailable
from typing_extensions import override

from responses.lifecycle import partitions
from server.database import schema_snapshot

# While a migration waits for the lock of a table, every query of that table waits behind it.
_LOCK_TIMEOUT_MS = 5_000
_LOCK = 7_265_737_001  # arbitrary, but the same on every node and in every version
_OTHER_USES = ("app_label", "plan", "fake", "fake_initial", "run_syncdb", "check_unapplied", "prune", "no_snapshot")


class Command(migrate.Command):
    """Command that migrates as the owner (DATABASE_OWNER_URL), with an advisory lock against concurrent runs.

    The schema of an empty database is created from the schema snapshot, which takes a second instead of many.
    """

    @override
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--lock-timeout",
            type=int,
            default=_LOCK_TIMEOUT_MS,
            metavar="MS",
            help="milliseconds to wait for the lock of a table in use; 0 waits forever (default: 5000)",
        )
        parser.add_argument(
            "--no-snapshot", action="store_true", help="Run every migration, also in an empty database."
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        # The application's role does not own the tables, so it cannot alter them.
        options["database"] = "owner"
        with connections["owner"].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", [str(options["lock_timeout"])])
            try:
                if any(options[name] for name in _OTHER_USES) or not schema_snapshot.load(using="owner"):
                    super().handle(*args, **options)
                elif options["verbosity"] > 0:
                    self.stdout.write("Created the schema of the empty database from the snapshot.")
                if not any(options[name] for name in _OTHER_USES):
                    partitions.create_partitions(using="owner")
            except OperationalError as error:
                if not isinstance(error.__cause__, LockNotAvailable):
                    raise
                raise CommandError(
                    "A table was in use for too long, so that a migration gave up instead of blocking everything. What "
                    "was applied before is kept: run the command again, or with a longer --lock-timeout."
                ) from error
            finally:
                cursor.execute("RESET lock_timeout")
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])

"""`manage.py restore`: restores a backup into an empty database and checks the result."""

import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from server import env
from server.database import backup


class Command(BaseCommand):
    """Command that restores a backup, or tests whether it can be restored."""

    help = "Restore a backup into an empty database and an empty storage of files, and check the result."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="directory of the backup")
        parser.add_argument(
            "--drill",
            action="store_true",
            help="restore into a temporary database on the same server and a temporary directory, and drop both",
        )
        parser.add_argument(
            "--admin",
            metavar="URL",
            help="connection string of a superuser, who creates the extensions for a drill (default: "
            "DATABASE_ADMIN_URL; under `up`, that of its own PostgreSQL)",
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        directory: Path = options["directory"]
        try:
            if options["drill"]:
                with tempfile.TemporaryDirectory(prefix="restore-") as scratch:
                    admin = options["admin"] or env.text("DATABASE_ADMIN_URL")
                    restored, seconds = backup.drill(directory, scratch=Path(scratch), admin=admin or None)
            else:
                restored = backup.restore(directory)
        except backup.BackupError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(
                f"{error.filename or directory}: {error.strerror}; the restore is incomplete."
            ) from error
        found = f"{restored.rows} rows, {restored.files} files, and {restored.secrets} secrets that could be decrypted"
        if options["drill"]:
            minutes = backup.age(backup.read(directory)) / 60
            self.stdout.write(
                f"The backup of {minutes:.0f} minutes ago can be restored: {found}, in {seconds:.1f} s. "
                "Nothing was kept."
            )
        else:
            self.stdout.write(f"Restored {found}. Start the platform now.")

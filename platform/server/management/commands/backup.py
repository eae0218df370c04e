"""`manage.py backup`: writes the database and all files to a directory, and the keys to another place."""

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from server.database import backup, dated


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError("not a number of at least 1")
    return int(text)


class Command(BaseCommand):
    """Command that makes a backup while the platform runs."""

    help = "Write a consistent backup of the database and of all files to a new directory, while the platform runs."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="new or empty directory")
        parser.add_argument(
            "--dated", action="store_true", help="make the backup in a new directory in DIR that is named by the time"
        )
        parser.add_argument(
            "--keep", type=_number, metavar="N", help="with --dated: afterwards, delete all but the latest N backups"
        )
        parser.add_argument(
            "--keys", type=Path, metavar="FILE", help="also write the keys to this new file; store it separately"
        )
        parser.add_argument(
            "--allow-missing-files",
            action="store_true",
            help="make the backup although the content of some files is lost",
        )

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        folder: Path = options["directory"]
        if options["keep"] is not None and not options["dated"]:
            raise CommandError("--keep needs --dated: it deletes only backups in directories that --dated has named.")
        directory = dated.new_directory(folder) if options["dated"] else folder
        try:
            if options["keys"] is not None:
                backup.write_keys(options["keys"], backup=directory)
            manifest = backup.create(directory, allow_missing=options["allow_missing_files"])
        except backup.BackupError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{error.filename or directory}: {error.strerror}; the backup is incomplete.") from error
        self.stdout.write(
            f"{directory}: {sum(manifest.rows.values())} rows of {len(manifest.rows)} tables, "
            f"{len(manifest.files)} files, version {manifest.version}."
        )
        if options["keep"] is not None:
            for old in dated.delete_old(folder, keep=options["keep"]):
                self.stdout.write(f"{old} was deleted.")
        if manifest.missing:
            self.stdout.write(
                f"{len(manifest.missing)} files had no content; the manifest lists them. "
                "Files that are being uploaded or deleted have none."
            )
        if options["keys"] is None:
            self.stdout.write(
                "The keys are not in the backup. Without API_KEY_PEPPER and ENCRYPTION_KEYS it cannot be restored."
            )

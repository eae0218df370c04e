"""`manage.py dump_schema`: writes the schema snapshot."""

import shutil
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from server.database import schema_snapshot


class Command(BaseCommand):
    """Command that migrates an empty database and writes its schema to a file."""

    help = "Run all migrations in a temporary database and write platform/server/database/schema.sql."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--output", type=Path, default=schema_snapshot.PATH, help="file to write")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        if not schema_snapshot.is_empty(using="owner"):
            raise CommandError("The database is not empty.")
        if (pg_dump := shutil.which("pg_dump")) is None:
            raise CommandError("pg_dump is not on the PATH.")
        call_command("migrate", no_snapshot=True, verbosity=0)
        try:
            text = schema_snapshot.dump(using="owner", pg_dump=pg_dump)
        except subprocess.CalledProcessError as failed:
            raise CommandError(failed.stderr) from failed
        options["output"].write_text(text)

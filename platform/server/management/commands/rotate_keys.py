"""`manage.py rotate_keys`: re-encrypt everything with the first of ENCRYPTION_KEYS."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from server.database import key_rotation


class Command(BaseCommand):
    """Command that re-encrypts stored secrets while the platform runs. It can be repeated."""

    help = "Re-encrypt everything that ENCRYPTION_KEYS protect with the first of the keys, while the platform runs."

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only count the values")
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        dry_run, results = options["dry_run"], []
        for result in key_rotation.rotate(dry_run=dry_run):
            results.append(result)
            if not options["json"]:
                verb = "to re-encrypt" if dry_run else "re-encrypted"
                self.stdout.write(
                    f"{result.column}: {result.rotated} {verb}, {result.current} already with the first key"
                    + (f", {result.undecryptable} that no key decrypts" if result.undecryptable else "")
                )
        if options["json"]:
            totals = {
                name: sum(getattr(result, name) for result in results)
                for name in ("rotated", "current", "undecryptable")
            }
            shown = {"dry_run": dry_run, **totals, "columns": [asdict(result) for result in results]}
            self.stdout.write(json.dumps(shown))
        if any(result.undecryptable for result in results):
            raise CommandError(
                "Some values cannot be decrypted with ENCRYPTION_KEYS. Add the key that encrypted them, or enter them "
                "again in the console."
            )

"""Migrates and makes the demo objects, in one process: starting Django twice would cost every start another second.

`python -m launcher.prepare FILE [--demo-upstream URL]` leaves in FILE (0600) the JSON object of `prepare_demo`.
"""

import os
import sys
from io import StringIO
from pathlib import Path

import django
from django.core.management import call_command

from launcher.credentials import write_private


def main(file: str, *arguments: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    call_command("migrate", "--noinput")
    said = StringIO()
    call_command("prepare_demo", "--json", *arguments, stdout=said)
    write_private(path=Path(file), text=said.getvalue())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Migrations and demo objects: `python -m launcher.prepare FILE [--demo-upstream URL]`.

Writes the JSON object of `prepare_demo` to FILE (mode 0600).
"""

import os
import sys
from io import StringIO
from pathlib import Path

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from launcher.errors import RefusedStart
from launcher.state import write_private


def main(file: str, *arguments: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # Both commands run in one process: starting Django twice would make every start a second longer.
    django.setup()
    call_command("migrate", "--noinput")
    output = StringIO()
    call_command("prepare_demo", "--json", *arguments, stdout=output)
    write_private(path=Path(file), text=output.getvalue())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ImproperlyConfigured as wrong:
        refusal = RefusedStart.of(wrong)
        print(f"error: {refusal}", file=sys.stderr)
        sys.exit(refusal.exit_code)

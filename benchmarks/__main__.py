"""The command line: `python -m benchmarks [background|chaos|admin|requests|…] …`; see README.md here."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import background, conversations, first_request, first_start, full_size, matrix, vectors
from benchmarks.chaos import evaluation as chaos
from benchmarks.console import command as console
from launcher.errors import LaunchError

COMMANDS: Mapping[str, Callable[..., int]] = {
    "background": background.main,
    "chaos": chaos.main,
    "admin": console.main,
    "conversations": conversations.main,
    "vectors": vectors.main,
    "first-start": first_start.main,
    "first-request": first_request.main,
    **full_size.COMMANDS,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    command = COMMANDS.get(name)
    try:
        directory = Path(__file__).parent / "build" / f"run-{os.getpid()}"
        sys.exit(command(arguments, directory=directory) if command else matrix.main(sys.argv[1:], directory=directory))
    except LaunchError as failed:
        sys.exit(str(failed))

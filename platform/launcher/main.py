"""Dispatch of `manage.py` commands. Uses only the standard library until the virtual environment is active."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from launcher import bootstrap, sandboxes, state
from launcher.errors import LaunchError
from launcher.report import Report

# `api_coverage` writes a document and uses none of these, which the settings require.
UNUSED = {"SECRET_KEY": "-", "API_KEY_PEPPER": "-", "DATABASE_URL": "postgresql://-:-@localhost/-", "REDIS_URL": "-"}
DESCRIPTION = "Start the whole platform: database, broker, web, worker and beat."


def main(*, root: Path, argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    try:
        match list(argv[1:]):
            case ["up", *arguments]:
                return _up(root=root, argv=argv, arguments=arguments)
            case ["test", *arguments]:
                return _test(root=root, argv=argv, arguments=arguments)
            case ["sandbox"]:
                return sandboxes.serve()
            case _:
                return _django(root=root, argv=argv)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # During the installation; later the supervisor handles Ctrl-C. 128 + SIGINT, as shells report it.
        return 130


def _up(*, root: Path, argv: Sequence[str], arguments: list[str]) -> int:
    # Parsed first, so that a wrong option is reported before the installation, which may take half a minute.
    parser = ArgumentParser(prog="manage.py up", description=DESCRIPTION)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=_port, help="port to listen on (default PORT, else 8000 or the next free one)")
    parser.add_argument(
        "--no-input", action="store_true", help="for scripts: plain output without colors or progress lines"
    )
    options = parser.parse_args(arguments)
    bootstrap.enter(root=root, requirements=bootstrap.RUNTIME, argv=argv, report=Report(plain=options.no_input))
    from launcher import up

    return up.run(root=root, host=options.host, port=options.port, plain=options.no_input, environment=os.environ)


def _test(*, root: Path, argv: Sequence[str], arguments: list[str]) -> int:
    bootstrap.enter(root=root, requirements=bootstrap.DEVELOPMENT, argv=argv, report=Report())
    os.chdir(root)
    sys.stdout.flush()
    # A whole suite runs in parallel, this one or that of a marker (`test -m slow`: pytest uses the last -m). For a few
    # tests, starting the workers takes longer.
    match arguments:
        case [] | ["-m", _]:
            parallel = ["-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
        case _:
            parallel = []
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-m", "not slow", *parallel, *arguments])  # noqa: S606


def _django(*, root: Path, argv: Sequence[str]) -> int:
    bootstrap.enter_existing(root=root, argv=argv)
    for name, value in (UNUSED if argv[1:2] == ["api_coverage"] else _running_environment(root)).items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(list(argv))
    except ImproperlyConfigured as wrong:
        raise LaunchError(str(wrong)) from wrong
    return 0


def _running_environment(root: Path) -> dict[str, str]:
    here = state.locate(root=root, environment=os.environ)
    if not os.environ.get("DATABASE_URL"):
        return state.read_environment(state=here)
    try:
        running = state.read_environment(state=here)
    except LaunchError:
        # The instance belongs to another user, which does not matter: this command uses its own database.
        return {}
    # The owner role of the instance's database must not be used for the database that the caller named.
    running.pop("DATABASE_OWNER_URL", None)
    return running


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError
    return number

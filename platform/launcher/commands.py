"""Overview of the commands, and help that needs no environment. Uses the standard library only."""

import difflib
import tomllib
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from launcher.errors import LaunchError
from launcher.local_models import model_file

GROUPS = {
    "On one machine": {
        "up": "Start everything in the foreground: database, broker, web, worker, beat. Ctrl-C stops it.",
        "test": "Run the tests. Arguments are passed to pytest.",
        "install": "Install the packages in .venv without starting anything.",
    },
    "In a deployment": {
        "generate_secrets": "Print random values for all secrets of an installation, as lines NAME=value.",
        "prepare_database": "Create or update roles, database and extensions, as a superuser of PostgreSQL.",
        "migrate": "Apply the migrations of the database.",
        "web": "Serve the API and the admin.",
        "worker": "Run background responses and periodic tasks.",
        "isolated_worker": "Continue background runs whose worker died; started by workers.",
        "beat": "Run the scheduler of periodic tasks.",
        "sandbox": "Run the service that executes the code of models in isolation.",
        "healthcheck": "Check that a process of this machine or container works, for container engines.",
        "backup": "Write a consistent backup of the database and of all files, while the platform runs.",
        "restore": "Restore a backup into an empty database, or try whether it can be restored.",
    },
    "Administration": {
        "add_upstream": "Add an upstream, or update the one of this name, and route models to it.",
        "routes": "List the models with the upstreams that serve them, in the order in which they are tried.",
        "approvals": "List the calls that responses wait to have approved, the first to expire first.",
        "set_price": "Set the prices of a model, in US dollars per million tokens.",
        "update_prices": "Compare the prices of models with those that their providers publish, and update them.",
        "create_key": "Create an API key for a team. The team is created if it does not exist.",
        "set_limits": "Set limits and budgets of a team, of one of its API keys, or of its end users.",
        "create_prompt": "Create a prompt of a team, or add a version to the one of this name.",
        "createsuperuser": "Create a user who may do everything in the admin.",
        "changepassword": "Change the password of a user of the admin.",
        "send_test_mail": "Send a mail to an address, to test the mail settings.",
        "rotate_keys": "Re-encrypt everything that ENCRYPTION_KEYS protect with the first of the keys.",
        "audit_check": "Check the seals of the audit log.",
        "rollup": "Aggregate rows for the usage pages.",
        "reconcile": "Compare usage records with sums, responses, prices and an invoice.",
        "celery": "Run Celery's command line, such as: celery inspect ping",
    },
    "Development": {
        "seed_demo": "Add demo teams with users, API keys, responses and conversations of several weeks.",
        "prepare_demo": "Prepare a demo team with a key, an administrator and an upstream, as `up` does.",
        "api_coverage": "Generate the pages of the API reference and the tables of the manual.",
        "build_docs": "Build the documentation that web serves below /docs/guide/, if its sources have changed.",
        "dump_schema": "Run all migrations in a temporary database and write platform/server/database/schema.sql.",
        "makemigrations": "Create migrations for changed models.",
        "shell": "Open a Python shell with the models imported.",
    },
}
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class Parser(ArgumentParser):
    """Parser of our own commands. A wrong argument is reported in one line, like every other error.

    It refuses abbreviated options, as `django_commands` does for the commands of Django.
    """

    def __init__(self, command: str, description: str | None = None) -> None:
        program = f"python3 manage.py {command}"
        super().__init__(prog=program, description=description or SUMMARIES[command], allow_abbrev=False)

    # The decorator is in the standard library from Python 3.12 on.
    def error(self, message: str) -> NoReturn:  # type: ignore[explicit-override]
        self.exit(2, f"error: {message} (`{self.prog} --help` lists the options)\n")


def overview() -> str:
    """Return all commands of the platform in groups, on one screen."""
    lines = ["Usage: python3 manage.py COMMAND [OPTIONS]"]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<15} {summary}" for name, summary in group.items())]
    lines += [
        "",
        "`python3 manage.py help COMMAND` shows the options of a command, `help --commands` lists those of Django too.",
    ]
    return "\n".join(lines)


def version(root: Path) -> str:
    """Return the name and version of the platform."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return f"{project['name']} {project['version']}"


def summary(command: str) -> str:
    """Return the help of a command if the packages are not installed. Raises LaunchError for an unknown command."""
    if command in SUMMARIES:
        return (
            f"{command}: {SUMMARIES[command]}\n\n"
            "Its options are shown once the packages are installed: run `python3 manage.py install`."
        )
    similar = difflib.get_close_matches(command, SUMMARIES, n=1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    raise LaunchError(
        f"{command} is not a command of this platform.{hint} Django's commands are available after `python3 manage.py "
        "install`."
    )


def up_parser() -> Parser:
    """Return the parser of `up`."""
    parser = Parser("up", "Start the whole platform: database, broker, web, worker and beat.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=_port, help="port to listen on (default PORT, else 8000 or the next free one)")
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--model-file", type=Path, metavar="FILE", help="serve this model, a file in the format GGUF, with llama.cpp"
    )
    model.add_argument(
        "--model", choices=model_file.SHIPPED, help="serve this small model, which is installed if it is missing"
    )
    parser.add_argument(
        "--connect",
        action="store_true",
        help="connect the model servers on this machine (Ollama, LM Studio, vLLM, llama.cpp, SGLang) without asking",
    )
    _add_no_input(parser)
    return parser


def install_parser() -> Parser:
    """Return the parser of `install`."""
    parser = Parser("install", "Create .venv and install the packages that `up` and the other commands need.")
    parser.add_argument("--dev", action="store_true", help="also install the packages for the tests")
    parser.add_argument(
        "--telemetry", action="store_true", help="also install the packages for OpenTelemetry traces and metrics"
    )
    parser.add_argument("--llama", action="store_true", help="also install llama.cpp, for `up --model-file`")
    parser.add_argument(
        "--compile", action="store_true", help="compile bytecode, for images whose processes cannot write it"
    )
    _add_no_input(parser)
    return parser


def test_help() -> str:
    """Return the help of `test`."""
    return "\n".join(
        [
            "usage: python3 manage.py test [PYTEST OPTIONS] [FILE_OR_DIRECTORY ...]",
            "",
            SUMMARIES["test"],
            "",
            "Without arguments, all tests that are not marked slow run in several processes. Examples:",
            "  python3 manage.py test tests/unit             tests of a directory",
            "  python3 manage.py test tests/api -k cancel    tests whose names contain a word",
            "  python3 manage.py test -m slow                the slow tests",
            "",
            "After the first run, `.venv/bin/pytest --help` lists the options of pytest.",
        ]
    )


def healthcheck_parser() -> Parser:
    """Return the parser of `healthcheck`."""
    parser = Parser("healthcheck")
    parser.add_argument("process", choices=["web", "worker", "beat", "sandbox"], help="kind of process to check")
    return parser


def _add_no_input(parser: Parser) -> None:
    text = "for scripts: plain output without colors or progress lines"
    parser.add_argument("--no-input", action="store_true", help=text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"must be a number between 1 and 65535, not {text}")
    return int(text)


_DATABASE_VARIABLES = (
    "DATABASE_ADMIN_URL names the superuser, DATABASE_URL and DATABASE_OWNER_URL the roles and the database."
)
PARSERS: dict[str, Callable[[], Parser]] = {
    "up": up_parser,
    "install": install_parser,
    "sandbox": partial(Parser, "sandbox", f"{SUMMARIES['sandbox']} The variables SANDBOX_... configure it."),
    "generate_secrets": partial(Parser, "generate_secrets", f"{SUMMARIES['generate_secrets']} It stores nothing."),
    "prepare_database": partial(Parser, "prepare_database", f"{SUMMARIES['prepare_database']} {_DATABASE_VARIABLES}"),
    "healthcheck": healthcheck_parser,
}
"""The parsers of the commands that Django does not know, apart from `test`."""

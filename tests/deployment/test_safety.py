"""Configuration errors that prevent a start, each reported in one sentence, and Django's own deployment checks."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from launcher.errors import NOT_READY, WRONG_SETTINGS
from launcher.state import generate_secrets
from launcher.testing import PrivateServers
from server import safety
from tests.support import preloaded
from tests.support.clocks import ShiftedClock
from tests.support.management import manage
from tests.support.sampling import rest_at_night

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def empty_database(servers: PrivateServers) -> str:
    """The owner's URL of a database that is prepared, but not migrated."""
    owner, _ = servers.create_database(f"empty_{os.getpid()}")
    return owner


@pytest.fixture
def connection(empty_database: str) -> Iterator[safety.DatabaseConnection]:
    """A connection of the owner to that database."""
    with closing(psycopg.connect(empty_database, autocommit=True)) as connection:
        yield connection


@pytest.mark.parametrize("name", ["SECRET_KEY", "API_KEY_PEPPER", "METRICS_TOKEN", "SANDBOX_TOKEN"])
@pytest.mark.parametrize(
    "value", ["short", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "change-me-0123456789abcdefghijklmnop"]
)
def test_a_guessable_secret_is_rejected(settings: Any, name: str, value: str) -> None:
    setattr(settings, name, value)
    with pytest.raises(ImproperlyConfigured, match=rf"^{name} is too weak.*generate_secrets` prints\.$"):
        safety.refuse_unsafe_start()


@pytest.mark.usefixtures("database")
def test_unused_tokens_may_be_empty(settings: Any) -> None:
    settings.METRICS_TOKEN = settings.SANDBOX_TOKEN = settings.OIDC_CLIENT_SECRET = ""
    safety.refuse_unsafe_start()


@pytest.mark.parametrize("first", ["SECRET_KEY", "ENCRYPTION_KEYS"])
@pytest.mark.parametrize("second", ["API_KEY_PEPPER", "METRICS_TOKEN", "SANDBOX_TOKEN", "OIDC_CLIENT_SECRET"])
def test_a_value_that_serves_two_purposes_is_rejected(settings: Any, first: str, second: str) -> None:
    value = getattr(settings, first)
    setattr(settings, second, value[0] if isinstance(value, list) else value)
    with pytest.raises(ImproperlyConfigured, match=rf"^(?=.*{first})(?=.*{second}).* share a value"):
        safety.refuse_unsafe_start()


def test_an_encryption_key_of_the_wrong_form_is_rejected(settings: Any) -> None:
    settings.ENCRYPTION_KEYS = [Fernet.generate_key().decode(), "not-a-key"]
    with pytest.raises(ImproperlyConfigured, match="ENCRYPTION_KEYS contains a value that is not a Fernet key"):
        safety.refuse_unsafe_start()


@pytest.mark.usefixtures("database")
def test_a_prepared_and_migrated_database_is_accepted() -> None:
    safety.refuse_unsafe_start()


def test_an_available_extension_must_be_created(
    connection: safety.DatabaseConnection, servers: PrivateServers, empty_database: str
) -> None:
    assert safety.missing_extension(connection) is None
    with closing(psycopg.connect(servers.admin, dbname=connection.info.dbname, autocommit=True)) as admin:
        admin.execute("DROP EXTENSION vector")
        try:
            assert "lacks the extension vector" in (safety.missing_extension(connection) or "")
        finally:
            admin.execute("CREATE EXTENSION vector")


def test_a_clock_that_differs_by_a_third_of_a_lease_is_rejected(
    connection: safety.DatabaseConnection, settings: Any
) -> None:
    assert safety.clock_skew(connection) is None
    allowed = settings.LEASE_SECONDS / 3
    for seconds in (allowed + 60, -allowed - 60):
        reason = safety.clock_skew(connection, own_time=partial(_shifted, seconds))
        assert "differs from that of the database by" in (reason or "")


def _shifted(seconds: float) -> float:
    return time.time() + seconds


def test_missing_migrations_are_counted(connection: safety.DatabaseConnection) -> None:
    assert "migrations are not applied to the database" in (safety.missing_migrations(connection) or "")


@pytest.fixture(scope="module")
def unsafe_starts(
    servers: PrivateServers, empty_database: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, str]]:
    """Environment variables that each prevent every process from starting."""
    without_extension, _ = servers.create_database(f"without_extension_{os.getpid()}")
    address = urlsplit(without_extension)
    superuser = conninfo_to_dict(servers.admin)
    with closing(psycopg.connect(servers.admin, dbname=address.path.lstrip("/"), autocommit=True)) as admin:
        admin.execute("DROP EXTENSION vector")
    return {
        "short secret": {"SECRET_KEY": "short"},
        "placeholder": {"API_KEY_PEPPER": "change-me-0123456789abcdefghijklmnop"},
        "short token of the sandbox": {"SANDBOX_TOKEN": "x"},
        "short token of the metrics": {"METRICS_TOKEN": "x"},
        "invalid key": {"ENCRYPTION_KEYS": "not-a-key"},
        "shared secret": {"METRICS_TOKEN": os.environ["SECRET_KEY"]},
        "superuser": {
            "DATABASE_URL": f"postgresql://{superuser['user']}:{quote(str(superuser['password']))}"
            f"@{address.hostname}:{address.port}{address.path}"
        },
        "extension": {"DATABASE_URL": without_extension},
        "migrations": {"DATABASE_URL": empty_database},
        "clock": ShiftedClock(tmp_path_factory.mktemp("clock"), seconds=3600).variables,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("cause", "begin", "remedy"),
    [
        ("short secret", "SECRET_KEY is too weak", "generate_secrets` prints."),
        pytest.param(
            "placeholder", "API_KEY_PEPPER is too weak", "generate_secrets` prints.", marks=pytest.mark.nightly
        ),
        pytest.param(
            "short token of the sandbox",
            "SANDBOX_TOKEN is too weak",
            "generate_secrets` prints.",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "short token of the metrics",
            "METRICS_TOKEN is too weak",
            "generate_secrets` prints.",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "invalid key",
            "ENCRYPTION_KEYS contains a value that is not a Fernet key",
            "generate_secrets` prints.",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "shared secret",
            "SECRET_KEY and METRICS_TOKEN share a value",
            "generate_secrets` prints.",
            marks=pytest.mark.nightly,
        ),
        ("superuser", "DATABASE_URL uses the role 'platform_superuser'", "(docs/howto/operations.md)."),
        ("extension", "The database lacks the extension vector", "then `python3 manage.py migrate`."),
        ("migrations", "", "migrations are not applied to the database: run `python3 manage.py migrate` first."),
        ("clock", "The clock of this machine differs from that of the database by 3600", "both with NTP."),
    ],
)
def test_an_unsafe_web_process_exits_with_one_sentence(
    unsafe_starts: dict[str, dict[str, str]], cause: str, begin: str, remedy: str
) -> None:
    code = NOT_READY if cause in {"extension", "migrations", "clock"} else WRONG_SETTINGS
    (printed,) = _refused_start("web", code=code, **unsafe_starts[cause])
    assert printed.startswith(f"error: {begin}")
    assert printed.endswith(remedy)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["worker", "beat"])
def test_other_processes_are_checked_too(empty_database: str, command: str) -> None:
    (printed,) = _refused_start(command, code=NOT_READY, DATABASE_URL=empty_database)
    assert printed.endswith("migrations are not applied to the database: run `python3 manage.py migrate` first.")


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("command", "variables", "error"),
    [
        ("web", {"SECRET_KEY": "short"}, "SECRET_KEY is too weak"),
        ("worker", {"LEASE_SECONDS": "abc"}, "LEASE_SECONDS must be an integer"),
        (
            "beat",
            {"SECRET_KEY": "", "SECRET_KEY_FILE": "/nowhere"},
            "SECRET_KEY_FILE names a file that cannot be read",
        ),
    ],
)
def test_a_wrong_setting_ends_every_process_with_an_exit_code_of_its_own(
    command: str, variables: dict[str, str], error: str
) -> None:
    changed = {name: value for name, value in variables.items() if value}
    without = [name for name, value in variables.items() if not value]
    (printed,) = _refused_start(command, code=WRONG_SETTINGS, without=without, **changed)
    assert printed.startswith(f"error: {error}")


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("name", ["METRICS_PORT", "PORT", "SMTP_PORT"])
def test_a_wrong_port_ends_a_command_like_any_wrong_setting(name: str) -> None:
    (printed,) = _refused_start("migrate", code=WRONG_SETTINGS, **{name: "65536"})
    assert printed == f"error: {name} must be a port of at most 65535, not '65536'."


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("command", rest_at_night(["web --port=0", "worker", "beat"], first=1))
def test_a_metrics_port_in_use_is_retried_later(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (printed,) = _refused_start(command, code=NOT_READY, METRICS_PORT=port)
        assert printed == f"error: Cannot listen on 127.0.0.1:{port} (METRICS_PORT): Address already in use."
    assert _refused_start(f"{command} --metrics-port=70000", code=WRONG_SETTINGS) == [
        "error: The port of the metrics (METRICS_PORT) must be below 65536, not 70000."
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_a_port_above_65535_is_refused() -> None:
    """The system calls would take the number modulo 65536 and listen on another port."""
    printed = _refused_start("web --port=70000", code=WRONG_SETTINGS)
    assert printed == ["error: The port must be below 65536, not 70000."]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listen", "code", "error"),
    [
        ("nowhere", WRONG_SETTINGS, "SANDBOX_LISTEN must be host:port or the path of a socket, not 'nowhere'."),
        ("127.0.0.1:70000", WRONG_SETTINGS, "The port of SANDBOX_LISTEN must be below 65536, not 70000."),
        ("/nowhere/socket", NOT_READY, "Cannot listen on /nowhere/socket (SANDBOX_LISTEN): No such file or directory."),
    ],
)
def test_the_sandbox_refuses_an_address_in_one_sentence(listen: str, code: int, error: str) -> None:
    printed = _refused_start("sandbox", code=code, SANDBOX_LISTEN=listen, SANDBOX_TOKEN="token")
    assert printed[-1] == f"error: {error}"


def _refused_start(command: str, *, code: int, without: Sequence[str] = (), **variables: str) -> list[str]:
    """Return the output of a process that must exit at once."""
    environment = {name: value for name, value in os.environ.items() if name not in without}
    done = preloaded.run(command.split(), environment={**environment, **variables})
    assert done.returncode == code, done
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.slow
def test_djangos_checks_of_a_deployment_find_nothing() -> None:
    production = {**generate_secrets(), "SECURE_TLS": "1", "ALLOWED_HOSTS": "api.example.com", "DEBUG": "0"}
    done = manage("check", "--deploy", "--fail-level", "WARNING", **production)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.slow
def test_strict_transport_security_covers_subdomains_only_if_configured() -> None:
    names = "s.SECURE_HSTS_SECONDS, s.SECURE_HSTS_INCLUDE_SUBDOMAINS, s.SECURE_HSTS_PRELOAD"
    printed = f"from server import settings as s; print({names})"
    for variables, expected in (
        ({"SECURE_TLS": "1"}, "31536000 False False"),
        (
            {"SECURE_TLS": "1", "HSTS_SECONDS": "60", "HSTS_INCLUDE_SUBDOMAINS": "1", "HSTS_PRELOAD": "1"},
            "60 True True",
        ),
        ({"SECURE_TLS": "0"}, "0 False False"),
    ):
        environment = {**os.environ, **variables, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
        done = subprocess.run(
            [sys.executable, "-c", printed], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected

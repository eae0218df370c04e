"""Safety checks that are done before a process serves requests: secrets, database role, extensions, clock, migrations.

Each failure is one sentence that says what to do.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

import psycopg
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.migrations.loader import MigrationLoader

from core import interpreter
from core.db.database import PlatformConnection, database_conninfo

logger = logging.getLogger(__name__)

DatabaseConnection = psycopg.Connection[tuple[object, ...]]

_ROLE = "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
# A server without pgvector works without vector stores. If the server has it, CREATE EXTENSION was forgotten.
_FORGOTTEN_EXTENSION = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL"
# A standby that has not been promoted, or a primary that was demoted.
_READ_ONLY = "SELECT current_setting('transaction_read_only')"
_CONNECT_SECONDS = 2
# Minimum length of random values; `generate_secrets` prints 43 characters.
_SECRET_CHARACTERS = 32
_DIFFERENT_CHARACTERS = 10
_PREFIXES = ("django-insecure-", "change", "secret", "password", "example")


class NotReady(ImproperlyConfigured):
    """The machine or the database is not ready, whereas the settings may be right: a later start can succeed."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h, after which service managers try again


def refuse_unsafe_start() -> None:
    """Raise `ImproperlyConfigured` or `NotReady` with the first reason why a process must not start."""
    if not settings.DEBUG and (reason := weak_secret()):
        raise ImproperlyConfigured(reason)
    # An unreachable database is no reason to exit: the readiness probe repeats the check of the role.
    with suppress(psycopg.OperationalError), _connection() as connection:
        if reason := _powerful_role(connection):
            raise ImproperlyConfigured(reason)
        reasons = [clock_skew(connection)]
        if settings.REQUIRE_PREPARED_DATABASE:
            reasons += [missing_extension(connection), missing_migrations(connection)]
        if found := next(filter(None, reasons), None):
            raise NotReady(found)


def log_slow_interpreter() -> None:
    """Log a warning if this interpreter takes more CPU than others of its version."""
    if warning := interpreter.current().warning():
        logger.warning(warning)


def weak_secret() -> str | None:
    """Return the reason why a secret can be guessed, is invalid or is used twice, or None."""
    hint = "set it to a value that `python3 manage.py generate_secrets` prints."
    secrets = {"SECRET_KEY": settings.SECRET_KEY, "API_KEY_PEPPER": settings.API_KEY_PEPPER}
    # Only deployments with a sandbox, or with metrics for other machines, have these.
    tokens = {"METRICS_TOKEN": settings.METRICS_TOKEN, "SANDBOX_TOKEN": settings.SANDBOX_TOKEN}
    secrets |= {name: value for name, value in tokens.items() if value}
    for name, value in secrets.items():
        if (
            len(value) < _SECRET_CHARACTERS
            or len(set(value)) < _DIFFERENT_CHARACTERS
            or value.lower().startswith(_PREFIXES)
        ):
            return f"{name} is too weak, because it is short, repeats characters or is a placeholder: {hint}"
    for key in settings.ENCRYPTION_KEYS:
        try:
            Fernet(key)
        except ValueError:
            return f"ENCRYPTION_KEYS contains a value that is not a Fernet key: {hint}"
    # Includes secrets of other programs: a reader of one program's configuration must not learn another secret.
    owners: dict[str, str] = {}
    # Chosen by the identity provider, so its strength is not checked.
    if settings.OIDC_CLIENT_SECRET:
        secrets["OIDC_CLIENT_SECRET"] = settings.OIDC_CLIENT_SECRET
    for name, value in [*secrets.items(), *(("ENCRYPTION_KEYS", key) for key in settings.ENCRYPTION_KEYS)]:
        if value in owners:
            return f"{owners[value]} and {name} share a value; each secret must differ: {hint}"
        owners[value] = name
    return None


def unusable_database() -> str | None:
    """Return the reason why the database must not be used now, or None; raises `psycopg.OperationalError`."""
    with _connection() as connection:
        (is_read_only,) = connection.execute(_READ_ONLY).fetchone() or ("",)
        return "the database is read-only" if is_read_only == "on" else _powerful_role(connection)


def _connection() -> DatabaseConnection:
    # Not from the pool: while the database is unreachable, waiting for a pooled connection takes much longer.
    return PlatformConnection.connect(database_conninfo(), connect_timeout=_CONNECT_SECONDS)


def _powerful_role(connection: DatabaseConnection) -> str | None:
    # Such a role ignores row-level security: one forgotten filter would leak rows between teams.
    name, is_powerful = connection.execute(_ROLE).fetchone() or ("", False)
    # Development databases often have a single role.
    if not is_powerful or settings.DEBUG:
        return None
    return (
        f"DATABASE_URL uses the role '{name}', which is a superuser or has BYPASSRLS, so row-level security would have "
        "no effect. Use a role with neither (docs/howto/operations.md)."
    )


def missing_extension(connection: DatabaseConnection) -> str | None:
    """Return the error that an extension was not created although the server has it, or None."""
    if connection.execute(_FORGOTTEN_EXTENSION).fetchone() is None:
        return None
    return (
        "The database lacks the extension vector, which its server offers: run `python3 manage.py prepare_database`, "
        "then `python3 manage.py migrate`."
    )


def clock_skew(connection: DatabaseConnection, *, own_time: Callable[[], float] = time.time) -> str | None:
    """Return the error that the clocks of this machine and of the database differ too much, or None."""
    before = own_time()
    (moment,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
    after = own_time()
    if not isinstance(moment, datetime):
        return None
    skew = max(moment.timestamp() - after, before - moment.timestamp())
    # A lease is renewed three times before it ends: with a larger difference, a living process could lose its runs.
    if skew <= settings.LEASE_SECONDS / 3:
        return None
    return (
        f"The clock of this machine differs from that of the database by {skew:.0f} seconds, which would end leases "
        "too early or too late: synchronize both with NTP."
    )


def missing_migrations(connection: DatabaseConnection) -> str | None:
    """Return the error with the number of migrations that are not applied, or None."""
    known = set(MigrationLoader(None).disk_migrations or {})
    applied: set[tuple[object, ...]] = set()
    (table,) = connection.execute("SELECT to_regclass('django_migrations')").fetchone() or (None,)
    if table is not None:
        applied = set(connection.execute("SELECT app, name FROM django_migrations").fetchall())
    missing = len(known - applied)
    if not missing:
        return None
    return f"{missing} migrations are not applied to the database: run `python3 manage.py migrate` first."

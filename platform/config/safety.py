"""Safety check of the database role, done before a process serves requests."""

from contextlib import suppress

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_ROLE = "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
_CONNECT_SECONDS = 2


def refuse_powerful_role() -> None:
    """Raise `ImproperlyConfigured` if the application's role bypasses row-level security."""
    # An unreachable database is no reason to exit: the readiness probe repeats the check.
    with suppress(psycopg.OperationalError):
        if (reason := powerful_role()) is not None:
            raise ImproperlyConfigured(reason)


def powerful_role() -> str | None:
    """Return the reason why the application's role must not be used, or None; raises `psycopg.OperationalError`.

    A superuser or a role with BYPASSRLS ignores row-level security: one forgotten filter would leak rows between teams.
    """
    database = settings.DATABASES["default"]
    # Not from the pool: while the database is unreachable, waiting for a pooled connection takes much longer.
    with psycopg.connect(
        host=database["HOST"],
        port=database["PORT"],
        user=database["USER"],
        password=database["PASSWORD"],
        dbname=database["NAME"],
        connect_timeout=_CONNECT_SECONDS,
    ) as connection:
        name, is_powerful = connection.execute(_ROLE).fetchone() or ("", False)
    # Development databases often have a single role.
    if not is_powerful or settings.DEBUG:
        return None
    return (
        f"DATABASE_URL uses the role '{name}', which is a superuser or has BYPASSRLS, so row-level security would have "
        "no effect. Use a role with neither (docs/howto/operations.md)."
    )

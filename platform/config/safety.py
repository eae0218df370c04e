"""What must hold before a process serves anybody."""

from contextlib import suppress

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_ROLE = "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
_CONNECT_SECONDS = 2


def refuse_powerful_role() -> None:
    """A superuser or a role with BYPASSRLS sees through row-level security: one forgotten filter would leak teams.

    A database that does not answer yet is asked again by the probe of readiness.
    """
    with suppress(psycopg.OperationalError):
        if (reason := powerful_role()) is not None:
            raise ImproperlyConfigured(reason)


def powerful_role() -> str | None:
    """Why the application's role must not serve; None when it may. Raises psycopg's error when nobody answers.

    Over a connection of its own: one of the pool would be waited for, however long the database is away.
    """
    given = settings.DATABASES["default"]
    with psycopg.connect(
        host=given["HOST"],
        port=given["PORT"],
        user=given["USER"],
        password=given["PASSWORD"],
        dbname=given["NAME"],
        connect_timeout=_CONNECT_SECONDS,
    ) as database:
        name, is_powerful = database.execute(_ROLE).fetchone() or ("", False)
    if not is_powerful or settings.DEBUG:
        return None
    return (
        f"DATABASE_URL names the role '{name}', which is a superuser or has BYPASSRLS: row-level security would "
        "not hold. Name a role without either (docs/operations.md)."
    )

"""What must hold before a process serves anybody."""

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

_ROLE = "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"


def refuse_powerful_role() -> None:
    """A superuser or a role with BYPASSRLS sees through row-level security: one forgotten filter would leak teams."""
    with connection.cursor() as cursor:
        cursor.execute(_ROLE)
        name, is_powerful = cursor.fetchone() or ("", False)
    connection.close()
    if is_powerful and not settings.DEBUG:
        msg = (
            f"DATABASE_URL names the role '{name}', which is a superuser or has BYPASSRLS: row-level security would "
            "not hold. Name a role without either (docs/operations.md)."
        )
        raise ImproperlyConfigured(msg)

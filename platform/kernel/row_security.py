"""Row-level security: the migration operation that locks a table, and the setting that opens it for some teams.

Every tenant table has ENABLE and FORCE ROW LEVEL SECURITY with one policy, so that a query that forgot its team sees
nothing, even as the owner of the tables. The setting is local to a transaction: outside of one it is gone at once.
Which code may open what is decided in `tenants.scope`, the only caller of `open_to`.
"""

from collections.abc import Iterable

from django.conf import settings
from django.db import connections
from django.db.migrations.operations import RunSQL
from django.db.migrations.operations.base import Operation

EVERY_TEAM = "*"

# The sub-select makes PostgreSQL evaluate the setting once a query, not once a row.
_POLICY = (
    "{column} = ANY ((SELECT string_to_array(current_setting('app.team_ids', true), ','))::text[]) "
    "OR (SELECT current_setting('app.team_ids', true)) = '*'"
)


def lock_table(table: str, *, column: str = "team_id") -> Operation:
    """The migration operation that puts a table under row-level security."""
    return RunSQL(
        sql=[*lock_statements(table, column=column)],
        reverse_sql=[
            f'DROP POLICY team ON "{table}"',
            f'ALTER TABLE "{table}" NO FORCE ROW LEVEL SECURITY',
            f'ALTER TABLE "{table}" DISABLE ROW LEVEL SECURITY',
        ],
    )


def lock_statements(table: str, *, column: str = "team_id") -> list[str]:
    """The statements that put a table under row-level security."""
    condition = _POLICY.format(column=column)
    return [
        f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY',
        f'ALTER TABLE "{table}" FORCE ROW LEVEL SECURITY',
        f'CREATE POLICY team ON "{table}" USING ({condition}) WITH CHECK ({condition})',
    ]


def open_to(team_ids: Iterable[str], *, using: str = "default") -> None:
    """Let the current transaction see these teams (or `EVERY_TEAM`)."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('app.team_ids', %s, true)", [",".join(team_ids)])


def opened_to(*, using: str = "default") -> list[str]:
    """Which teams the current transaction sees."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('app.team_ids', true), '')")
        (teams,) = cursor.fetchone()
    return str(teams).split(",")


def grant_to_application(*, using: str) -> None:
    """Let the application's role use all tables and sequences; it stays neither superuser nor owner."""
    role = settings.DATABASES["default"]["USER"]
    owner = settings.DATABASES[using]["USER"]
    if role == owner:
        return
    with connections[using].cursor() as cursor:
        quoted = connections[using].ops.quote_name(role)
        for what in ("TABLES", "SEQUENCES"):
            rights = "SELECT, INSERT, UPDATE, DELETE" if what == "TABLES" else "USAGE, SELECT"
            cursor.execute(f"GRANT {rights} ON ALL {what} IN SCHEMA public TO {quoted}")
            cursor.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT {rights} ON {what} TO {quoted}")


def keep_append_only(*tables: str, using: str) -> None:
    """Take the right to change or remove rows of these tables from the application's role."""
    role = settings.DATABASES["default"]["USER"]
    if role == settings.DATABASES[using]["USER"]:
        return
    with connections[using].cursor() as cursor:
        quote = connections[using].ops.quote_name
        for table in tables:
            cursor.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {quote(table)} FROM {quote(role)}")

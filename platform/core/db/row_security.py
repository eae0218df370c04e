"""Row-level security: the migration operation that enables it for a table, and the setting that selects teams.

Every tenant table has ENABLE and FORCE ROW LEVEL SECURITY with one policy. A query without a team therefore sees no
rows, even as the owner of the tables. The setting is local to a transaction and resets when it ends. `tenants.scope` is
the only caller of `open_to` and decides which code may see which teams.
"""

from collections.abc import Iterable

from django.conf import settings
from django.db import connections
from django.db.migrations.operations import RunSQL
from django.db.migrations.operations.base import Operation

EVERY_TEAM = "*"

# The sub-select makes PostgreSQL evaluate the setting once per query instead of once per row.
_POLICY = (
    "{column} = ANY ((SELECT string_to_array(current_setting('app.team_ids', true), ','))::text[]) "
    "OR (SELECT current_setting('app.team_ids', true)) = '*'"
)


def enable_row_security(table: str, *, column: str = "team_id") -> Operation:
    """Return the migration operation that enables row-level security for a table."""
    return RunSQL(
        sql=[*row_security_statements(table, column=column)],
        reverse_sql=[
            f'DROP POLICY team ON "{table}"',
            f'ALTER TABLE "{table}" NO FORCE ROW LEVEL SECURITY',
            f'ALTER TABLE "{table}" DISABLE ROW LEVEL SECURITY',
        ],
    )


def row_security_statements(table: str, *, column: str = "team_id") -> list[str]:
    """Return the SQL statements that enable row-level security for a table."""
    condition = _POLICY.format(column=column)
    return [
        f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY',
        f'ALTER TABLE "{table}" FORCE ROW LEVEL SECURITY',
        f'CREATE POLICY team ON "{table}" USING ({condition}) WITH CHECK ({condition})',
    ]


def open_to(team_ids: Iterable[str], *, using: str = "default") -> None:
    """Make the rows of these teams (or `EVERY_TEAM`) visible to the current transaction."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('app.team_ids', %s, true)", [",".join(team_ids)])


def visible_teams(*, using: str = "default") -> list[str]:
    """Return the ids of the teams whose rows the current transaction sees."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('app.team_ids', true), '')")
        (teams,) = cursor.fetchone()
    return str(teams).split(",")


def grant_to_application(*, using: str) -> None:
    """Grant the application's role access to all tables and sequences, present and future."""
    role = settings.DATABASES["default"]["USER"]
    owner = settings.DATABASES[using]["USER"]
    # Development uses one role for everything. In production the application's role owns nothing: an owner could
    # disable the policies.
    if role == owner:
        return
    with connections[using].cursor() as cursor:
        quoted = connections[using].ops.quote_name(role)
        for kind in ("TABLES", "SEQUENCES"):
            rights = "SELECT, INSERT, UPDATE, DELETE" if kind == "TABLES" else "USAGE, SELECT"
            cursor.execute(f"GRANT {rights} ON ALL {kind} IN SCHEMA public TO {quoted}")
            cursor.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT {rights} ON {kind} TO {quoted}")


def revoke_changes(*tables: str, using: str) -> None:
    """Revoke the application's right to update or delete rows of append-only tables."""
    role = settings.DATABASES["default"]["USER"]
    if role == settings.DATABASES[using]["USER"]:
        return
    with connections[using].cursor() as cursor:
        quote = connections[using].ops.quote_name
        for table in tables:
            cursor.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {quote(table)} FROM {quote(role)}")

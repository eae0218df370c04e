"""What the superuser prepares once in a cluster: two roles, a database, its extensions.

The owner role migrates and owns every table; the application role, which web and worker use, can neither bypass
row-level security nor create anything. What it may do with a table is granted by the migrations.
"""

from dataclasses import dataclass, field
from typing import LiteralString
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from launcher.errors import LaunchError

EXTENSIONS = ("vector", "pg_trgm")


@dataclass(frozen=True, kw_only=True)
class DatabaseRole:
    """A database role that logs in by password."""

    name: str
    password: str = field(repr=False)

    def url(self, *, host: str, port: int, database: str) -> str:
        return f"postgresql://{quote(self.name)}:{quote(self.password)}@{host}:{port}/{database}"


def prepare(*, admin: str, database: str, owner: DatabaseRole, app: DatabaseRole) -> None:
    """Create or correct roles and database; safe to repeat. ``admin`` is a superuser's connection string."""
    with psycopg.connect(admin, autocommit=True) as connection:
        _ensure_role(connection, owner, attributes="LOGIN NOSUPERUSER CREATEDB NOCREATEROLE NOBYPASSRLS")
        _ensure_role(connection, app, attributes="LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS")
        # So that the owner can act as the application, in tests and in migrations that check themselves.
        _execute(connection, "GRANT {app} TO {owner}", app=app.name, owner=owner.name)
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone()
        if known is None:
            _execute(connection, "CREATE DATABASE {database} OWNER {owner}", database=database, owner=owner.name)
    _prepare_inside(admin=admin, database=database, owner=owner, app=app)


def _prepare_inside(*, admin: str, database: str, owner: DatabaseRole, app: DatabaseRole) -> None:
    with psycopg.connect(admin, dbname=database, autocommit=True) as connection:
        _execute(connection, "REVOKE ALL ON DATABASE {database} FROM PUBLIC", database=database)
        _execute(connection, "GRANT CONNECT ON DATABASE {database} TO {app}", database=database, app=app.name)
        _execute(connection, "ALTER SCHEMA public OWNER TO {owner}", owner=owner.name)
        _execute(connection, "GRANT USAGE ON SCHEMA public TO {app}", app=app.name)
        for extension in EXTENSIONS:
            offered = "SELECT 1 FROM pg_available_extensions WHERE name = %s AND installed_version IS NULL"
            if connection.execute(offered, [extension]).fetchone():
                _execute(connection, "CREATE EXTENSION IF NOT EXISTS {extension}", extension=extension)
        # Behind row-level security no index is used for a comparison that might tell of rows that nobody may see; these
        # tell nothing, and without their indexes every row of a large store would be read, or of all responses whose
        # metadata are asked for.
        connection.execute("ALTER FUNCTION ts_match_vq(tsvector, tsquery) LEAKPROOF")
        connection.execute("ALTER FUNCTION jsonb_contains(jsonb, jsonb) LEAKPROOF")


def _ensure_role(
    connection: psycopg.Connection[tuple[object, ...]], role: DatabaseRole, *, attributes: LiteralString
) -> None:
    known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role.name]).fetchone()
    verb = sql.SQL("ALTER ROLE" if known else "CREATE ROLE")
    # Only the verifier travels: a statement that fails is written to the server's log.
    verifier = connection.pgconn.encrypt_password(role.password.encode(), role.name.encode(), b"scram-sha-256")
    statement = sql.SQL("{verb} {name} {attributes} PASSWORD {verifier}").format(
        verb=verb,
        name=sql.Identifier(role.name),
        attributes=sql.SQL(attributes),
        verifier=sql.Literal(verifier.decode()),
    )
    connection.execute(statement)


def _execute(connection: psycopg.Connection[tuple[object, ...]], statement: LiteralString, **names: str) -> None:
    identifiers = {key: sql.Identifier(name) for key, name in names.items()}
    connection.execute(sql.SQL(statement).format(**identifiers))


def databases(*, admin: str, prefix: str) -> list[str]:
    """Names of the databases that start with a prefix."""
    with psycopg.connect(admin, autocommit=True) as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [prefix]).fetchall()
    return [str(name) for (name,) in rows]


def drop(*, admin: str, database: str) -> None:
    with psycopg.connect(admin, autocommit=True) as connection:
        _execute(connection, "DROP DATABASE IF EXISTS {database} WITH (FORCE)", database=database)


def drop_role(*, admin: str, role: DatabaseRole) -> None:
    """Needs the databases that it owns to be gone."""
    with psycopg.connect(admin, autocommit=True) as connection:
        _execute(connection, "DROP ROLE IF EXISTS {role}", role=role.name)


def address(*, admin: str) -> tuple[str, int]:
    """Host and port that a connection string leads to."""
    parts = conninfo_to_dict(admin)
    return str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432)


def is_ready(*, admin: str) -> bool:
    """Whether the server lets its superuser in now. Raises LaunchError when it never will."""
    try:
        psycopg.connect(admin, connect_timeout=5).close()
    except psycopg.OperationalError as refused:
        if "password authentication failed" not in str(refused):
            return False
        raise LaunchError(
            "The PostgreSQL data was made with other passwords than those in secrets.json; restore that file, or move "
            "the data away to start empty."
        ) from refused
    return True

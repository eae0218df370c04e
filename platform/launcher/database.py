"""Preparation of a PostgreSQL cluster by its superuser: two roles, a database and its extensions.

The owner role runs migrations and owns all tables. The application role, used by web and worker, can neither bypass
row-level security nor create objects; migrations grant its permissions on tables.
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
    """A database role with a password login."""

    name: str
    password: str = field(repr=False)

    def url(self, *, host: str, port: int, database: str) -> str:
        return f"postgresql://{quote(self.name)}:{quote(self.password)}@{host}:{port}/{database}"


def prepare(*, admin: str, database: str, owner: DatabaseRole, app: DatabaseRole) -> None:
    """Create or update roles and database. Idempotent. ``admin`` is the connection string of a superuser."""
    with psycopg.connect(admin, autocommit=True) as connection:
        _ensure_role(connection, owner, attributes="LOGIN NOSUPERUSER CREATEDB NOCREATEROLE NOBYPASSRLS")
        _ensure_role(connection, app, attributes="LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS")
        # Lets the owner act as the application in tests and in migrations that check row-level security.
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
        # Under row-level security, PostgreSQL evaluates a function before the policies only if it is leakproof, and
        # otherwise does not use its index. These functions do not reveal their arguments; without them, full-text and
        # metadata searches would read every row.
        connection.execute("ALTER FUNCTION ts_match_vq(tsvector, tsquery) LEAKPROOF")
        connection.execute("ALTER FUNCTION jsonb_contains(jsonb, jsonb) LEAKPROOF")


def _ensure_role(
    connection: psycopg.Connection[tuple[object, ...]], role: DatabaseRole, *, attributes: LiteralString
) -> None:
    known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role.name]).fetchone()
    verb = sql.SQL("ALTER ROLE" if known else "CREATE ROLE")
    # Sends only the SCRAM verifier: the server writes failed statements to its log.
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
    """Return the names of the databases that start with a prefix."""
    with psycopg.connect(admin, autocommit=True) as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [prefix]).fetchall()
    return [str(name) for (name,) in rows]


def drop(*, admin: str, database: str) -> None:
    with psycopg.connect(admin, autocommit=True) as connection:
        _execute(connection, "DROP DATABASE IF EXISTS {database} WITH (FORCE)", database=database)


def drop_role(*, admin: str, role: DatabaseRole) -> None:
    """Drop a role. The databases that it owns must have been dropped before."""
    with psycopg.connect(admin, autocommit=True) as connection:
        _execute(connection, "DROP ROLE IF EXISTS {role}", role=role.name)


def address(*, admin: str) -> tuple[str, int]:
    """Return the host and port of a connection string."""
    parts = conninfo_to_dict(admin)
    return str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432)


def is_ready(*, admin: str) -> bool:
    """Return whether the superuser can connect now. Raises LaunchError if the password is wrong."""
    try:
        psycopg.connect(admin, connect_timeout=5).close()
    except psycopg.OperationalError as refused:
        if "password authentication failed" not in str(refused):
            return False
        raise LaunchError(
            "The PostgreSQL data was created with other passwords than those in secrets.json. Restore that file, or "
            "move the data away to start with an empty database."
        ) from refused
    return True

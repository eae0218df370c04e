"""Commands for deployments without `up`: new secrets, database setup by a superuser, health of a process.

Only `print_secrets` works without the packages.
"""

import asyncio
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from launcher import address, state
from launcher.errors import LaunchError, RefusedStart

# Prefix of the heartbeats in Redis (`core.work.heartbeats`); kind, host, pid and a random number follow it.
_HEARTBEATS = "platform:process"


def print_secrets() -> None:
    """Print a new value for every secret."""
    values = {**state.generate_secrets(), "SEARXNG_SECRET": secrets.token_urlsafe(32)}
    for name, value in values.items():
        print(f"{name}={value}")


def prepare_database(*, environment: Mapping[str, str]) -> int:
    """Create or update roles and database for an installation, and return the exit code. Raises LaunchError."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from launcher import postgres

    urls = {
        name: _read(name, environment) for name in ("DATABASE_ADMIN_URL", "DATABASE_OWNER_URL", "DATABASE_URL")
    }  # fmt: skip
    if missing := [name for name, url in urls.items() if not url]:
        raise RefusedStart(f"{missing[0]} is not set. It must look like postgresql://user:password@host:5432/database.")
    try:
        parts = {name: conninfo_to_dict(url) for name, url in urls.items()}
    except psycopg.ProgrammingError as wrong:
        raise RefusedStart(f"A database URL is invalid: {wrong}.") from wrong
    roles = {
        name: postgres.DatabaseRole(name=str(part.get("user") or ""), password=str(part.get("password") or ""))
        for name, part in parts.items()
    }
    owner, app = roles["DATABASE_OWNER_URL"], roles["DATABASE_URL"]
    database = str(parts["DATABASE_URL"].get("dbname") or "")
    if database != parts["DATABASE_OWNER_URL"].get("dbname") or not database:
        raise RefusedStart("DATABASE_URL and DATABASE_OWNER_URL must name the same database.")
    if not (owner.name and owner.password and app.name and app.password):
        raise RefusedStart("DATABASE_URL and DATABASE_OWNER_URL must contain the user and password of a role.")
    if len({role.name for role in roles.values()}) < len(roles):
        raise RefusedStart(
            "DATABASE_ADMIN_URL, DATABASE_OWNER_URL and DATABASE_URL must name three different roles: row-level "
            "security does not apply to superusers."
        )
    try:
        postgres.prepare_database(admin=urls["DATABASE_ADMIN_URL"], database=database, owner=owner, app=app)
    except psycopg.Error as failed:
        raise LaunchError(f"The database could not be prepared: {str(failed).strip()}") from failed
    print(f"The database {database} has its roles ({owner.name}, {app.name}) and extensions.")
    return 0


def check_health(process: str, *, environment: Mapping[str, str]) -> int:
    """Return 0 if a process of this machine or container works. Raises LaunchError if it does not."""
    match process:
        case "web":
            port = environment.get("PORT") or str(address.DEFAULT_PORT)
            if not port.isdigit():
                raise RefusedStart(f"PORT must be a number between 1 and 65535, not {port!r}.")
            web = address.Address(host=address.LOOPBACK, port=int(port))
            if not web.is_ready(host_header=address.host_header(environment)):
                raise LaunchError(f"web is not ready on {web.url}.")
        case "sandbox":
            from sandbox.client import SandboxClient, SandboxUnavailable

            listen = environment.get("SANDBOX_LISTEN") or "127.0.0.1:8090"
            token = environment.get("SANDBOX_TOKEN", "")
            try:
                asyncio.run(SandboxClient(address=listen, token=token).info())
            except SandboxUnavailable as reason:
                raise LaunchError(f"The sandbox does not work: {reason}") from reason
        case _:
            import redis

            pattern = f"{_HEARTBEATS}:{process}:{socket.gethostname()}:*"
            try:
                with redis.Redis.from_url(
                    _read("REDIS_URL", environment), socket_timeout=5, socket_connect_timeout=5
                ) as client:
                    found = next(client.scan_iter(pattern, count=1000), None)
            except (redis.RedisError, ValueError) as failed:
                raise LaunchError(f"Redis, to which {process} reports, cannot be asked: {failed}.") from failed
            if found is None:
                raise LaunchError(f"{process} has not reported to Redis in the last 15 seconds.")
    return 0


def _read(name: str, environment: Mapping[str, str]) -> str:
    """Read a variable, or the file whose path is in NAME_FILE."""
    if (file := environment.get(f"{name}_FILE")) and name not in environment:
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RefusedStart(f"{name}_FILE names a file that cannot be read: {error}.") from error
    return environment.get(name, "").strip()

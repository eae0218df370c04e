"""Private servers for one test run, with a new database that is dropped at the end.

Each run takes a free slot, so that simultaneous runs do not wait for or disturb each other. A slot keeps its PostgreSQL
cluster, because creating one takes seconds.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Self

from launcher import postgres, processes, state, valkey
from launcher.address import any_free_port
from launcher.errors import LaunchError
from launcher.home import ServerHome, abandoned_homes, server_home
from launcher.postgres import DatabaseRole
from launcher.processes import ChildCommand, Records, identify, wait_until
from launcher.valkey import Valkey

MAX_SLOTS = 100


@dataclass(frozen=True, kw_only=True)
class PrivateServers:
    """URLs of the servers of a run. ``stop`` ends the servers and drops the database; it may be called repeatedly."""

    owner_url: str = field(repr=False)
    app_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    state_dir: Path
    stop: Callable[[], None] = field(repr=False)


def start_servers(directory: Path, *, environment: Mapping[str, str] = os.environ) -> PrivateServers:
    """Start PostgreSQL and Valkey below ``directory`` and create the database ``test_<pid>``.

    If TEST_DATABASE_URL (of a superuser) or TEST_REDIS_URL is set, that server is used instead. Raises LaunchError if a
    server does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("state-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and identify(int(pid)) is None:
            shutil.rmtree(path, ignore_errors=True)
    with ExitStack() as undo:
        slot = _Slot.take(directory)
        undo.callback(slot.lock.close)
        state_dir = directory / f"state-{os.getpid()}"
        state_dir.mkdir(mode=0o700, exist_ok=True)
        undo.callback(shutil.rmtree, state_dir, ignore_errors=True)
        existing = environment.get("TEST_DATABASE_URL")
        owner, app = _use_existing_postgres(existing, undo) if existing else _start_postgres(slot, undo)
        redis_url = environment.get("TEST_REDIS_URL") or _start_valkey(slot, undo)
        stop = partial(_stop, undo.pop_all(), starter=os.getpid())
    return PrivateServers(owner_url=owner, app_url=app, redis_url=redis_url, state_dir=state_dir, stop=stop)


def _stop(undo: ExitStack, *, starter: int) -> None:
    # A forked child runs the same exit handlers and must not stop the servers of its parent.
    if os.getpid() == starter:
        undo.close()


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """A directory locked by this run. The kernel releases the lock when the process ends, also after a crash."""

    home: ServerHome
    directory: Path
    records: Records
    lock: IO[bytes]

    @classmethod
    def take(cls, parent: Path) -> Self:
        for number in range(MAX_SLOTS):
            directory = parent / f"slot-{number}"
            directory.mkdir(mode=0o700, exist_ok=True)
            lock = (directory / "lock").open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            records = Records(directory / "pids")
            records.end_leftovers()
            home = server_home(state_dir=directory)
            for abandoned in abandoned_homes(state_dir=directory):
                shutil.rmtree(abandoned, ignore_errors=True)
            return cls(home=home, directory=directory, records=records, lock=lock)
        raise LaunchError(f"All {MAX_SLOTS} slots in {parent} are in use by other test runs.")

    def start(self, command: ChildCommand, undo: ExitStack, *, ready: Callable[[], bool], what: str) -> None:
        command.log.unlink(missing_ok=True)
        process = processes.start(command)
        self.records.add(command=command, process=process)
        undo.callback(self.records.remove, name=command.name)
        undo.callback(processes.end, process, asking=command.stop_signal, patience=5.0)
        if not wait_until(lambda: process.poll() is not None or ready(), seconds=60) or process.poll() is not None:
            raise LaunchError(f"{what} did not start. See its log in the directory of the slot.")


def _start_postgres(slot: _Slot, undo: ExitStack) -> tuple[str, str]:
    password = state.load_secrets(state_dir=slot.directory, environment={})["POSTGRES_SUPERUSER_PASSWORD"]

    def start() -> str:
        cluster = postgres.open_cluster(home=slot.home, port=any_free_port(), password=password, durable=False)
        postgres.clear_stale(data=cluster.data)
        command = postgres.command(cluster=cluster, settings=postgres.THROWAWAY, log=slot.directory / "postgres.log")
        slot.start(command, undo, ready=partial(postgres.is_ready, admin=cluster.admin), what="PostgreSQL")
        return cluster.admin

    try:
        admin = start()
    except LaunchError:
        # The cluster runs without fsync, so a crash of the machine may have damaged it. It contains nothing to keep.
        shutil.rmtree(slot.home.directory / "postgres", ignore_errors=True)
        admin = start()
    for leftover in postgres.databases(admin=admin, prefix="test_"):
        postgres.drop_database(admin=admin, database=leftover)
    return _create_database(f"test_{os.getpid()}", admin=admin, undo=undo, roles=_roles(prefix="platform"))


def _start_valkey(slot: _Slot, undo: ExitStack) -> str:
    password, program = state.generate_secrets()["VALKEY_PASSWORD"], valkey.find_program(home=slot.home)
    server = Valkey(program=program, home=slot.home, port=any_free_port(), password=password)
    command = valkey.command(valkey=server, log=slot.directory / "valkey.log", durable=False)
    slot.start(command, undo, ready=partial(valkey.is_ready, valkey=server), what="Valkey")
    return server.url


def _create_database(
    name: str, *, admin: str, undo: ExitStack, roles: tuple[DatabaseRole, DatabaseRole]
) -> tuple[str, str]:
    """Create a database and return the URLs of its owner and of the application role."""
    undo.callback(postgres.drop_database, admin=admin, database=name)
    owner, app = roles
    postgres.prepare_database(admin=admin, database=name, owner=owner, app=app)
    host, port = postgres.host_and_port(admin=admin)
    return owner.url(host=host, port=port, database=name), app.url(host=host, port=port, database=name)


def _roles(*, prefix: str) -> tuple[DatabaseRole, DatabaseRole]:
    made = state.generate_secrets()
    owner = DatabaseRole(name=f"{prefix}_owner", password=made["POSTGRES_OWNER_PASSWORD"])
    return owner, DatabaseRole(name=f"{prefix}_app", password=made["POSTGRES_APP_PASSWORD"])


def _use_existing_postgres(admin: str, undo: ExitStack) -> tuple[str, str]:
    # Others may use the server, too: unique names for database and roles, which are dropped at the end.
    name = f"test_{secrets.token_hex(4)}"
    roles = _roles(prefix=name)
    for role in roles:
        undo.callback(postgres.drop_role, admin=admin, role=role)
    return _create_database(name, admin=admin, undo=undo, roles=roles)

"""Private servers for one test run, with a new database that is dropped at the end.

Each run takes a free slot, so that simultaneous runs do not wait for or disturb each other. A slot keeps its PostgreSQL
cluster, because creating one takes seconds.
"""

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self

from launcher import postgres, processes, state, valkey
from launcher.errors import LaunchError
from launcher.home import ServerHome, abandoned_homes, server_home
from launcher.postgres import DatabaseRole
from launcher.processes import ChildCommand, Records, identify
from launcher.supervisor import tail
from launcher.valkey import Valkey

MAX_SLOTS = 100
LAST_LINES = 10


class PrivateServers:
    """The servers of a run. Their URLs are valid from the beginning, but the servers run only after `start`."""

    def __init__(self, directory: Path, *, environment: Mapping[str, str] = os.environ) -> None:
        """Take a slot below ``directory`` and choose ports, names and passwords.

        If TEST_DATABASE_URL (of a superuser) or TEST_REDIS_URL is set, that server is used instead. Raises LaunchError
        if no slot is free.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("state-*"):
            pid = path.name.split("-")[1]
            if pid.isdigit() and identify(int(pid)) is None:
                shutil.rmtree(path, ignore_errors=True)
        self._undo = ExitStack()
        self._starter = os.getpid()
        self._is_started = False
        self._slot = _Slot.take(directory)
        self._undo.callback(self._slot.lock.close)
        self.state_dir = directory / f"state-{os.getpid()}"
        self.state_dir.mkdir(mode=0o700, exist_ok=True)
        self._undo.callback(shutil.rmtree, self.state_dir, ignore_errors=True)
        made = state.generate_secrets()
        self._admin = environment.get("TEST_DATABASE_URL")
        # Others may use an existing server, too: unique names for database and roles, which are dropped at the end.
        unique = f"test_{secrets.token_hex(4)}"
        self._drops_roles = self._admin is not None
        self._database = unique if self._admin else f"test_{os.getpid()}"
        prefix = unique if self._admin else "platform"
        self._owner = DatabaseRole(name=f"{prefix}_owner", password=made["POSTGRES_OWNER_PASSWORD"])
        self._app = DatabaseRole(name=f"{prefix}_app", password=made["POSTGRES_APP_PASSWORD"])
        if self._admin:
            self._host, self._port = postgres.host_and_port(admin=self._admin)
        else:
            self._port_holder = _PortHolder(self._undo)
            self._host, self._port = "127.0.0.1", self._port_holder.port
        self._valkey_password, self._valkey_port = made["VALKEY_PASSWORD"], _PortHolder(self._undo)
        self._external_redis = environment.get("TEST_REDIS_URL")

    @property
    def programs(self) -> Path:
        """The directory with the programs of the embedded PostgreSQL, such as pg_dump."""
        return postgres.find_programs(home=self._slot.home()).directory

    @property
    def owner_url(self) -> str:
        return self._owner.url(host=self._host, port=self._port, database=self._database)

    @property
    def app_url(self) -> str:
        return self._app.url(host=self._host, port=self._port, database=self._database)

    @property
    def redis_url(self) -> str:
        return self._external_redis or f"redis://:{self._valkey_password}@127.0.0.1:{self._valkey_port.port}/0"

    @property
    def admin(self) -> str:
        """Connection string of the superuser. Raises LaunchError before the servers have been started."""
        if self._admin is None:
            raise LaunchError("The servers have not been started.")
        return self._admin

    def start(self) -> None:
        """Start PostgreSQL and Valkey and create the database, unless that is done. Raises LaunchError."""
        if self._is_started:
            return
        if self._admin is None:
            self._admin = self._start_postgres()
        if self._drops_roles:
            for role in (self._owner, self._app):
                self._undo.callback(postgres.drop_role, admin=self._admin, role=role)
        if not self._external_redis:
            self._start_valkey()
        self.create_database(self._database)
        self._is_started = True

    def create_database(self, name: str) -> tuple[str, str]:
        """Create an empty database, with the extensions. Return the URLs of its owner and of the application role."""
        self._undo.callback(postgres.drop_database, admin=self.admin, database=name)
        postgres.prepare_database(admin=self.admin, database=name, owner=self._owner, app=self._app)
        owner, app = (role.url(host=self._host, port=self._port, database=name) for role in (self._owner, self._app))
        return owner, app

    def stop(self) -> None:
        """End the servers and drop the databases. May be called repeatedly."""
        # A forked child runs the same exit handlers and must not stop the servers of its parent.
        if os.getpid() == self._starter:
            self._undo.close()

    def _start_postgres(self) -> str:
        """Start PostgreSQL and return the connection string of its superuser."""
        slot, home = self._slot, self._slot.home()
        password = state.load_secrets(state_dir=slot.directory, environment={})["POSTGRES_SUPERUSER_PASSWORD"]
        self._port_holder.release()

        def start() -> str:
            cluster = postgres.open_cluster(home=home, port=self._port, password=password, durable=False)
            postgres.clear_stale(data=cluster.data)
            log = slot.directory / "postgres.log"
            command = postgres.command(cluster=cluster, settings=postgres.THROWAWAY, log=log)
            slot.start(command, self._undo, ready=partial(postgres.is_ready, admin=cluster.admin), what="PostgreSQL")
            return cluster.admin

        try:
            admin = start()
        except LaunchError:
            # The cluster runs without fsync, so a crash of the machine may have damaged it. It contains nothing to
            # keep.
            shutil.rmtree(home.directory / "postgres", ignore_errors=True)
            admin = start()
        for leftover in postgres.databases(admin=admin, prefix="test_"):
            postgres.drop_database(admin=admin, database=leftover)
        return admin

    def _start_valkey(self) -> None:
        home = self._slot.home()
        program, port = valkey.find_program(home=home), self._valkey_port.port
        server = Valkey(program=program, home=home, port=port, password=self._valkey_password)
        command = valkey.command(valkey=server, log=self._slot.directory / "valkey.log", durable=False)
        self._valkey_port.release()
        self._slot.start(command, self._undo, ready=partial(valkey.is_ready, valkey=server), what="Valkey")


def start_servers(directory: Path, *, environment: Mapping[str, str] = os.environ) -> PrivateServers:
    """Start private servers and return them. Raises LaunchError if one does not start."""
    servers = PrivateServers(directory, environment=environment)
    try:
        servers.start()
    except LaunchError:
        servers.stop()
        raise
    return servers


class _PortHolder:
    """A free port that no other process receives until a server is about to use it."""

    def __init__(self, undo: ExitStack) -> None:
        # Bound, but not listening: connections are refused as long as there is no server.
        self._socket = undo.enter_context(socket.socket())
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """A directory locked by this run. The kernel releases the lock when the process ends, also after a crash."""

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
            return cls(directory=directory, records=records, lock=lock)
        raise LaunchError(f"All {MAX_SLOTS} slots in {parent} are in use by other test runs.")

    def home(self) -> ServerHome:
        home = server_home(state_dir=self.directory)
        for abandoned in abandoned_homes(state_dir=self.directory):
            shutil.rmtree(abandoned, ignore_errors=True)
        return home

    def start(self, command: ChildCommand, undo: ExitStack, *, ready: Callable[[], bool], what: str) -> None:
        command.log.unlink(missing_ok=True)
        process = processes.start(command)
        self.records.add(command=command, process=process)
        undo.callback(self.records.remove, name=command.name)
        undo.callback(processes.end, process, asking=command.stop_signal, patience=5.0)
        if not processes.wait_for_start(process, ready=ready, written=lambda: command.log.stat().st_size):
            processes.end(process, asking=command.last_signal, patience=5.0)
            last = "\n".join(tail(command.log, lines=LAST_LINES))
            raise LaunchError(f"{what} did not start. The end of its log, {command.log}:\n{last}")

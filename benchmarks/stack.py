"""The processes of the benchmark: mock upstream, pass-through proxy, PostgreSQL, Valkey and a web process.

The platform runs as in production, with durable PostgreSQL, authentication and storage, except that it shares the
machine with the load. All processes are children of this one, in a directory that is removed afterwards.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.error import URLError

import psycopg

from benchmarks.load import Target
from benchmarks.native import program
from launcher import credentials, database, postgres, processes, valkey
from launcher.database import DatabaseRole
from launcher.errors import LaunchError
from launcher.home import ServerHome, server_home
from launcher.ports import any_free
from launcher.postgres import Cluster
from launcher.processes import ChildCommand
from launcher.valkey import Valkey

ROOT = Path(__file__).parents[1]
MANAGE = str(ROOT / "manage.py")
DATABASE = "benchmark"
APPLICATION_ROLE = "platform_app"
PROXY_PARTS = (("uvloop", "asyncio"), ("httptools", "h11"))
# Counts statements and rows without logging; its cost is far below the noise.
POSTGRES_SETTINGS = {
    **postgres.DURABLE,
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "off",
}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The running processes. ``admin`` is a superuser's connection string for the platform's database."""

    mock: Target
    proxy: Target
    platform: Target
    proxy_parts: str
    admin: str = field(repr=False)
    worker_pid: int | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        return self.mock, self.proxy, self.platform


@contextmanager
def running(*, directory: Path, server: str, proxy_python: str, with_worker: bool = False) -> Iterator[Stack]:
    """Run the stack in a new directory. ``server`` is the value of `manage.py web --server`.

    Raises LaunchError with the end of the log if a process does not start.
    """
    directory.mkdir(mode=0o711, parents=True)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        start = Starter(directory=directory, undo=undo)
        mock = _start_mock(start)
        proxy = _start_proxy(start, upstream=mock.url, python=proxy_python)
        home = home_in(directory, undo)
        cluster, postgres_pid = _start_postgres(start, home)
        environment = environment_of(directory, cluster, redis_url=_start_valkey(start, home))
        key = _prepare_platform(environment, upstream=mock.url)
        platform = _start_web(start, environment, server=server, key=key, database_pid=postgres_pid)
        yield Stack(
            mock=mock,
            proxy=proxy,
            platform=platform,
            proxy_parts=_proxy_parts(proxy_python),
            admin=superuser(cluster),
            worker_pid=_start_worker(start, environment) if with_worker else None,
        )


@contextmanager
def running_database(
    *, directory: Path, settings: Mapping[str, str] = POSTGRES_SETTINGS
) -> Iterator[tuple[Mapping[str, str], str]]:
    """Run only the migrated servers; yield the platform's environment and a superuser's connection string."""
    directory.mkdir(mode=0o711, parents=True)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        start = Starter(directory=directory, undo=undo)
        home = home_in(directory, undo)
        cluster, _ = _start_postgres(start, home, settings)
        environment = environment_of(directory, cluster, redis_url=_start_valkey(start, home))
        manage(environment, "migrate")
        yield environment, superuser(cluster)


@contextmanager
def running_site(*, directory: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run a web process on running servers and yield its port."""
    with ExitStack() as undo:
        start = Starter(directory=directory, undo=undo)
        web = _start_web(start, environment, server="daphne", key="", database_pid=None)
        yield int(web.url.rpartition(":")[2])


@dataclass(frozen=True, kw_only=True)
class Starter:
    """Starts processes with logs in the directory, and stops them at the end."""

    directory: Path
    undo: ExitStack

    def __call__(
        self, name: str, argv: tuple[str, ...], *, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **(environment or {})}
        return self.run(ChildCommand(name=name, argv=argv, log=self.log(name), directory=ROOT, environment=environment))

    def run(self, command: ChildCommand) -> subprocess.Popen[bytes]:
        process = processes.start(command)
        self.undo.callback(processes.end, process, asking=command.stop_signal, patience=10.0)
        return process

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def wait_for(
        self, name: str, *, ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60.0
    ) -> None:
        over = processes.wait_until(lambda: process.poll() is not None or ready(), seconds=seconds)
        if not over or process.poll() is not None:
            end = self.log(name).read_text(errors="replace")[-3000:]
            raise LaunchError(f"The {name} did not come up; the end of its log:\n{end}")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _start_mock(start: Starter) -> Target:
    port = any_free()
    process = start("mock", (str(program("mock")), "--port", str(port)))
    target = Target(name="mock", url=f"http://127.0.0.1:{port}", pid=process.pid, api="chat")
    start.wait_for("mock", ready=partial(answers, f"{target.url}/health"), process=process)
    return target


def _start_proxy(start: Starter, *, upstream: str, python: str) -> Target:
    port = any_free()
    options = ("--host", "127.0.0.1", "--port", str(port), "--no-access-log", "--log-level", "warning")
    argv = (python, "-m", "uvicorn", "benchmarks.proxy:app", *options)
    process = start("proxy", argv, environment={"UPSTREAM": upstream})
    target = Target(name="proxy", url=f"http://127.0.0.1:{port}", pid=process.pid, api="chat")
    start.wait_for("proxy", ready=partial(answers, f"{target.url}/health"), process=process)
    return target


def _proxy_parts(python: str) -> str:
    """Return the event loop and HTTP parser of the proxy's uvicorn, which determine its speed."""
    asked = "from importlib.util import find_spec as f; print(bool(f('uvloop')), bool(f('httptools')))"
    found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    loop, parser = (name if there == "True" else other for there, (name, other) in zip(found, PROXY_PARTS, strict=True))
    return f"uvicorn with {loop} and {parser}"


def home_in(directory: Path, undo: ExitStack) -> ServerHome:
    """Return the home of the servers, which is outside of the directory for root, and remove it at the end."""
    home = server_home(state_dir=directory)
    undo.callback(shutil.rmtree, home.directory, ignore_errors=True)
    return home


def _start_postgres(
    start: Starter, home: ServerHome, settings: Mapping[str, str] = POSTGRES_SETTINGS
) -> tuple[Cluster, int]:
    password = credentials.load(state_dir=start.directory, environment={})["POSTGRES_SUPERUSER_PASSWORD"]
    cluster = postgres.open_cluster(home=home, port=any_free(), password=password)
    process = start.run(postgres.command(cluster=cluster, settings=settings, log=start.log("postgres")))
    start.wait_for("postgres", ready=partial(database.is_ready, admin=cluster.admin), process=process)
    return cluster, process.pid


def _start_valkey(start: Starter, home: ServerHome) -> str:
    password = credentials.load(state_dir=start.directory, environment={})["VALKEY_PASSWORD"]
    server = Valkey(program=valkey.find_program(home=home), home=home, port=any_free(), password=password)
    process = start.run(valkey.command(valkey=server, log=start.log("valkey")))
    start.wait_for("valkey", ready=partial(valkey.is_ready, valkey=server), process=process)
    return server.url


def environment_of(directory: Path, cluster: Cluster, *, redis_url: str) -> dict[str, str]:
    """Create roles and database, and return the environment of the platform."""
    secrets = credentials.load(state_dir=directory, environment={})
    owner = DatabaseRole(name="platform_owner", password=secrets["POSTGRES_OWNER_PASSWORD"])
    app = DatabaseRole(name=APPLICATION_ROLE, password=secrets["POSTGRES_APP_PASSWORD"])
    database.prepare(admin=cluster.admin, database=DATABASE, owner=owner, app=app)
    with psycopg.connect(superuser(cluster), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
    address = partial(DatabaseRole.url, host="127.0.0.1", port=cluster.port, database=DATABASE)
    return {
        **{name: secrets[name] for name in credentials.APPLICATION},
        "DATABASE_URL": address(app),
        "DATABASE_OWNER_URL": address(owner),
        "REDIS_URL": redis_url,
        "ALLOWED_HOSTS": "127.0.0.1",
        "STATE_DIR": str(directory),
        "DEBUG": "false",
    }


def superuser(cluster: Cluster) -> str:
    return psycopg.conninfo.make_conninfo(cluster.admin, dbname=DATABASE)


def _prepare_platform(environment: Mapping[str, str], *, upstream: str) -> str:
    """Migrate, create a team with an API key, route every model to the mock, and return the key."""
    manage(environment, "migrate")
    made = json.loads(manage(environment, "create_key", "--team", "bench", "--json"))
    address = f"{upstream}/v1"
    manage(environment, "add_upstream", "--name", "mock", "--base-url", address, "--models", "*", "--default", "--json")
    return str(made["key"])


def manage(environment: Mapping[str, str], *arguments: str) -> str:
    command = [sys.executable, MANAGE, *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise LaunchError(f"`manage.py {arguments[0]}` failed:\n{done.stdout}{done.stderr}"[-3000:])
    return done.stdout


def _start_web(
    start: Starter, environment: Mapping[str, str], *, server: str, key: str, database_pid: int | None
) -> Target:
    port = any_free()
    argv = (sys.executable, MANAGE, "web", "--host", "127.0.0.1", "--port", str(port), "--server", server)
    process = start("web", argv, environment={**environment, "PORT": str(port)})
    target = Target(
        name="platform",
        url=f"http://127.0.0.1:{port}",
        pid=process.pid,
        api="responses",
        headers=(f"Authorization: Bearer {key}",),
        database_pid=database_pid,
    )
    start.wait_for("web", ready=partial(answers, f"{target.url}/readyz"), process=process)
    return target


def _start_worker(start: Starter, environment: Mapping[str, str]) -> int:
    process = start("worker", (sys.executable, MANAGE, "worker"), environment=environment)
    start.wait_for("worker", ready=lambda: "celery@" in start.log("worker").read_text(), process=process)
    return process.pid

"""The processes of the benchmarks: mock upstream, pass-through proxy, PostgreSQL, Valkey, web processes and workers.

The platform runs as in production, with durable PostgreSQL, authentication and storage, except that it shares the
machine with the load. All processes are children of this one, in a directory that is removed afterwards.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import psycopg

from benchmarks.load import Target, program
from launcher import postgres, processes, state, valkey
from launcher.address import any_free_port
from launcher.errors import LaunchError
from launcher.home import server_home
from launcher.postgres import DatabaseRole
from launcher.processes import ChildCommand, Process
from launcher.valkey import Valkey

ROOT = Path(__file__).parents[1]
MANAGE = str(ROOT / "manage.py")
DATABASE = "benchmark"
APPLICATION_ROLE = "platform_app"
# Counts statements and rows without logging; its cost is far below the noise.
POSTGRES_SETTINGS = {
    **postgres.DURABLE,
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "off",
}
# Only statements of the platform: PostgreSQL checks foreign keys in the role of the tables' owner.
STATEMENTS = f" FROM pg_stat_statements WHERE userid = (SELECT oid FROM pg_roles WHERE rolname = '{APPLICATION_ROLE}')"


@dataclass(kw_only=True)
class Server:
    """A running process, with the command and the readiness check to start it again."""

    command: ChildCommand
    is_ready: Callable[[], bool]
    process: Process


class Programs:
    """Starts the processes of the platform and runs its commands as in production."""

    def start(self, command: ChildCommand) -> Process:
        """Start a process that runs until it is stopped."""
        return processes.start(command)

    def manage(self, environment: Mapping[str, str], *arguments: str) -> str:
        """Run a command of `manage.py` and return its output. Raises LaunchError if it fails."""
        return manage(environment, *arguments)


class Servers:
    """PostgreSQL and Valkey in a new directory, and the processes of the platform that use them.

    `environment` is the platform's, `admin` a superuser's connection string for its database. Everything is stopped and
    removed by `undo`. Raises LaunchError with the end of the log if a process does not start.
    """

    def __init__(
        self, directory: Path, undo: ExitStack, *, settings: Mapping[str, str], durable: bool, programs: Programs
    ) -> None:
        self.directory, self._undo, self._programs = directory, undo, programs
        self._started: list[Server] = []
        directory.mkdir(mode=0o711, parents=True)
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        # Outside of the directory for root, who may not run PostgreSQL.
        home = server_home(state_dir=directory)
        undo.callback(shutil.rmtree, home.directory, ignore_errors=True)
        secrets = state.load_secrets(state_dir=directory, environment={})
        cluster = postgres.open_cluster(
            home=home, port=any_free_port(), password=secrets["POSTGRES_SUPERUSER_PASSWORD"]
        )
        self.cluster = cluster
        command = postgres.command(cluster=cluster, settings=settings, log=self.log("postgres"))
        self.postgres = self.run(command, is_ready=partial(postgres.is_ready, admin=cluster.admin))
        program_path = valkey.find_program(home=home)
        server = Valkey(program=program_path, home=home, port=any_free_port(), password=secrets["VALKEY_PASSWORD"])
        command = valkey.command(valkey=server, log=self.log("valkey"), durable=durable)
        self.valkey = self.run(command, is_ready=partial(valkey.is_ready, valkey=server))
        owner = DatabaseRole(name="platform_owner", password=secrets["POSTGRES_OWNER_PASSWORD"])
        app = DatabaseRole(name=APPLICATION_ROLE, password=secrets["POSTGRES_APP_PASSWORD"])
        postgres.prepare_database(admin=cluster.admin, database=DATABASE, owner=owner, app=app)
        self.admin = psycopg.conninfo.make_conninfo(cluster.admin, dbname=DATABASE)
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
        address = partial(DatabaseRole.url, host="127.0.0.1", port=cluster.port, database=DATABASE)
        self.environment = {
            **{name: secrets[name] for name in state.APPLICATION_SECRETS},
            "DATABASE_URL": address(app),
            "DATABASE_OWNER_URL": address(owner),
            "REDIS_URL": server.url,
            "ALLOWED_HOSTS": "127.0.0.1",
            "STATE_DIR": str(directory),
            "DEBUG": "false",
            # The load of many clients comes from one key.
            "MAX_OPEN_REQUESTS_PER_KEY": "100000",
        }
        self.manage("migrate")

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def run(self, command: ChildCommand, *, is_ready: Callable[[], bool] | None) -> Server:
        """Start a process that ends with the block, and wait until it is ready if a check is given."""
        process = self._programs.start(command)
        self._undo.callback(processes.end, process, asking=command.stop_signal, patience=10.0)
        server = Server(command=command, is_ready=is_ready or (lambda: True), process=process)
        self.wait_for(server)
        self._started.append(server)
        return server

    def deaths(self) -> list[str]:
        """Return a sentence about each process that was started and has ended, with the end of its log."""
        return [
            f"{server.command.name} has ended ({processes.how_it_ended(code)}); the end of its log: {log[-500:]}"
            for server in self._started
            if (code := server.process.poll()) is not None
            for log in [server.command.log.read_text(errors="replace").strip()]
        ]

    def wait_for(self, server: Server) -> None:
        """Wait until a process is ready, however slow the machine is."""
        written = lambda: server.command.log.stat().st_size  # noqa: E731
        if not processes.wait_for_start(server.process, ready=server.is_ready, written=written):
            end = server.command.log.read_text(errors="replace")[-3000:]
            raise LaunchError(f"The {server.command.name} did not come up; the end of its log:\n{end}")

    def command(self, name: str, *argv: str, **environment: str) -> ChildCommand:
        """Return the command of a process with the platform's environment."""
        values = {**os.environ, **self.environment, **environment}
        return ChildCommand(name=name, argv=argv, log=self.log(name), directory=ROOT, environment=values)

    def start(self, name: str, *argv: str, is_ready: Callable[[], bool] | None = None, **environment: str) -> Server:
        """Start a process with the platform's environment."""
        return self.run(self.command(name, *argv, **environment), is_ready=is_ready)

    def manage(self, *arguments: str) -> str:
        """Run a command of `manage.py` with the platform's environment and return its output."""
        return self.manage_with({}, *arguments)

    def manage_with(self, variables: Mapping[str, str], *arguments: str) -> str:
        """Run a command of `manage.py` with additional environment variables and return its output."""
        return self._programs.manage({**self.environment, **variables}, *arguments)

    def route(self, upstream: str) -> str:
        """Create a team with an API key, route every model to the upstream, and return the key."""
        made = json.loads(self.manage("create_key", "--team", "bench", "--json"))
        address = ("--base-url", f"{upstream}/v1", "--models", "*", "--default", "--json")
        self.manage("add_upstream", "--name", "mock", *address)
        return str(made["key"])

    def start_web(
        self, *, server: str = "uvicorn", processes: int | None = 1, key: str = "", name: str = "web"
    ) -> Target:
        """Start web processes with `manage.py web --server SERVER`, to be measured with the key.

        Without a number there are as many as by default. `name` is that of the process and its log.
        """
        port = any_free_port()
        url = f"http://127.0.0.1:{port}"
        argv: tuple[str, ...] = (
            sys.executable,
            MANAGE,
            "web",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--server",
            server,
            *(() if processes is None else ("--processes", str(processes))),
        )
        web = self.start(name, *argv, is_ready=partial(is_up, f"{url}/readyz"), PORT=str(port))
        return Target(
            name="platform",
            url=url,
            pid=web.process.pid,
            api="responses",
            headers={"Authorization": f"Bearer {key}"},
            database_pid=self.postgres.process.pid,
        )


@contextmanager
def running_servers(
    directory: Path,
    *,
    settings: Mapping[str, str] = POSTGRES_SETTINGS,
    durable: bool = True,
    programs: Programs | None = None,
) -> Iterator[Servers]:
    """Run PostgreSQL and Valkey in a new directory. Valkey keeps its data over a restart if it is `durable`."""
    with ExitStack() as undo:
        yield Servers(directory, undo, settings=settings, durable=durable, programs=programs or Programs())


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The platform with a mock upstream and a pass-through proxy. ``admin`` is a superuser's connection string."""

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
def running(
    *,
    directory: Path,
    server: str = "uvicorn",
    processes: int = 1,
    proxy_python: str = sys.executable,
    with_worker: bool = False,
) -> Iterator[Stack]:
    """Run the stack in a new directory."""
    started = running_stack(directory=directory, server=server, processes=processes, proxy_python=proxy_python)
    with started as (servers, stack):
        if not with_worker:
            yield stack
            return
        is_ready = lambda: "celery@" in servers.log("worker").read_text()  # noqa: E731
        worker = servers.start("worker", sys.executable, MANAGE, "worker", is_ready=is_ready)
        yield replace(stack, worker_pid=worker.process.pid)


@contextmanager
def running_stack(
    *,
    directory: Path,
    server: str = "uvicorn",
    processes: int = 1,
    proxy_python: str = sys.executable,
    **environment: str,
) -> Iterator[tuple[Servers, Stack]]:
    """Run the stack in a new directory, and yield it with its servers, so that more processes can be started.

    `environment` is added to the usual variables of the platform's processes.
    """
    with running_servers(directory) as servers:
        servers.environment |= environment
        mock = _bare(servers, "mock", str(program("mock")), "--port")
        uvicorn = ("-m", "uvicorn", "benchmarks.proxy:app", "--no-access-log", "--log-level", "warning", "--port")
        proxy = _bare(servers, "proxy", proxy_python, *uvicorn, UPSTREAM=mock.url)
        platform = servers.start_web(server=server, processes=processes, key=servers.route(mock.url))
        # The event loop and HTTP parser of the proxy's uvicorn determine its speed.
        script = "from importlib.util import find_spec as f; print(*(n for n in ('uvloop', 'httptools') if f(n)))"
        found = subprocess.run([proxy_python, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        parts = f"uvicorn with {' and '.join(found) or 'asyncio and h11'}"
        try:
            yield servers, Stack(mock=mock, proxy=proxy, platform=platform, proxy_parts=parts, admin=servers.admin)
        finally:
            # The cause of whatever else has failed.
            for death in servers.deaths():
                tell(death)


def _bare(servers: Servers, name: str, *argv: str, **environment: str) -> Target:
    port = any_free_port()
    url = f"http://127.0.0.1:{port}"
    started = servers.start(name, *argv, str(port), is_ready=partial(is_up, f"{url}/health"), **environment)
    return Target(name=name, url=url, pid=started.process.pid, api="chat", headers={})


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def manage(environment: Mapping[str, str], *arguments: str, root: Path = ROOT) -> str:
    """Run a command of a checkout's `manage.py` and return its output. Raises LaunchError if it fails."""
    done = subprocess.run(
        [sys.executable, str(root / "manage.py"), *arguments],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise LaunchError(f"`manage.py {arguments[0]}` failed:\n{done.stdout}{done.stderr}"[-3000:])
    return done.stdout


class Client:
    """A persistent HTTP connection to a target."""

    def __init__(self, target: Target) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(target.url).netloc, timeout=300)
        self._headers = {"Content-Type": "application/json", **target.headers}

    def open(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> http.client.HTTPResponse:
        """Send a request and return the unread response. Raises LaunchError unless its status is 200."""
        raw = None if body is None else json.dumps(body)
        self._connection.request(method, f"/v1{path}", body=raw, headers=self._headers)
        answer = self._connection.getresponse()
        if answer.status != http.client.OK:
            raise LaunchError(f"{method} {path} was answered {answer.status}: {answer.read()[:500]!r}")
        return answer

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], float]:
        """Return the response body and the milliseconds until it was received."""
        began = time.perf_counter()
        data = self.open(method, path, body).read()
        elapsed = 1000 * (time.perf_counter() - began)
        return json.loads(data), elapsed


def ask(target: Target, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Send a single request and return its body."""
    return Client(target).ask(method, path, body)[0]


def statements(admin: str) -> tuple[int, int]:
    """Return how many statements the platform has executed, without BEGIN and COMMIT, and the rows they affected."""
    totals = "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(rows), 0)::bigint" + STATEMENTS
    with psycopg.connect(admin) as connection:
        calls, rows = connection.execute(totals.encode()).fetchone() or (0, 0)
    return calls, rows


def tell(text: str) -> None:
    """Print progress, which is not part of the result."""
    print(text, file=sys.stderr, flush=True)

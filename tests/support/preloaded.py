"""Processes of the platform that are forked from one that has loaded its code, as `manage.py web --processes` does.

Loading takes seconds of CPU time, and tests of failures start hundreds of processes. One template has loaded libraries
and the modules that need no settings. It forks short-lived commands. For each server and environment, it also forks a
template that loads the code of the server with this environment and forks the server. Tests of the launcher and of `up`
start processes as in production.
"""

import atexit
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from typing import NoReturn

import orjson

from launcher import processes
from launcher.main import main
from launcher.processes import PR_SET_PDEATHSIG, ChildCommand, Process
from tests import recording

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (str(ROOT / "platform"), str(ROOT))
_MODULES = {
    "web": ("server.management.commands.web", "server.asgi", "server.urls"),
    "worker": ("server.management.commands.worker", "server.tasks"),
    "beat": ("server.management.commands.beat", "server.tasks"),
}
"""Modules that a template loads, by command; their processes import them all."""
_LIBRARIES = (
    "aiohttp",
    "anyio._core._sockets",
    "celery.app.amqp",
    "celery.app.task",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "cryptography.fernet",
    "django.core.handlers.asgi",
    "django.db.models",
    "django.forms",
    "django.template",
    "django.views.generic",
    "fido2.server",
    "httpcore2",
    "httpx2",
    "jsonschema",
    "kombu.transport.redis",
    "markdown",
    "markdown_it",
    "mcp",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "mcp_types",
    "openai.resources.chat",
    "openai.resources.responses",
    "openai.types.responses",
    "orjson",
    "psycopg_pool",
    "pydantic",
    "pygments.formatters.html",
    "redis.asyncio",
    "regex",
    "requests",
    "rich.traceback",
    "structlog",
    "urllib3",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "websockets.server",
    "yaml",
)
"""Libraries that take long to load and read neither settings nor variables that tests set."""
_WITHOUT_SETTINGS = (
    "conversations.items",
    "containers.network",
    "engine.loop",
    "engine.turn",
    "responses.requests.parameters",
    "responses.requests.tool_offer",
    "gateway.audio.schema",
    "responses.schema.choices",
    "responses.schema.create",
    "responses.schema.file_search",
    "responses.schema.images",
    "skills.bundle",
    "tools.code_interpreter.schema",
    "tools.file_search.schema",
    "tools.image_generation.schema",
    "tools.mcp.schema",
    "tools.tool_search.schema",
    "tools.web_search.execution",
    "tools.vectors.requests",
)
"""Modules of the platform that read no settings while they are loaded; without settings, reading one is an error."""
# Besides the templates whose processes run.
_MOST_IDLE_TEMPLATES = 3
_START_SECONDS = 300.0
_RUN_SECONDS = 600.0
_LONGEST_MESSAGE = 1024 * 1024
# Set by pytest; it changes with every test and does not affect the platform.
_IRRELEVANT = "PYTEST_CURRENT_TEST"
# A hook into the start of an interpreter.
_NEEDS_A_START = ("PYTHONPROFILEIMPORTTIME",)
# A library that is loaded before the program, and the file that the one of `clocks` maps. Forks inherit both.
_INHERITED = ("LD_PRELOAD", "CLOCK_SHIFT")
# Where `ip netns` keeps network namespaces, and their kind for setns(2).
_NAMESPACES, _CLONE_NEWNET = Path("/run/netns"), 0x40000000
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def start(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: int,
    prefix: Sequence[str] = (),
    new_session: bool = False,
    network: str = "",
) -> Process:
    """Start `manage.py` with these arguments; its output goes to the file descriptor `output`.

    `prefix` are the words of a program that runs the command. `new_session` makes it the leader of a new session.
    `network` is the name of its network namespace.
    """
    if prefix or not environment.keys().isdisjoint(_NEEDS_A_START):
        command = [*prefix, sys.executable, "manage.py", *arguments]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=new_session,
        )
    order = _Order(
        arguments=arguments,
        environment=environment,
        outputs=(output, output),
        new_session=new_session,
        network=network,
    )
    with _lock:
        if arguments[0] in _MODULES:
            with suppress(_TemplateEnded):
                return _template(arguments[0], environment).fork(order)
        # Without its own template, or with settings that its template refused.
        return _libraries(environment).fork(order)


def start_child(command: ChildCommand) -> Process:
    """Start a child process as `launcher.processes.start` does; `manage.py` is forked."""
    argv, network = command.argv, ""
    if argv[:3] == ("ip", "netns", "exec"):
        argv, network = argv[4:], argv[3]
    if argv[:2] != (sys.executable, str(ROOT / "manage.py")):
        return processes.start(command)
    with command.log.open("ab") as log:
        return start(argv[2:], environment=command.environment, output=log.fileno(), new_session=True, network=network)


def run(arguments: Sequence[str], *, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run `manage.py` with these arguments until it ends."""
    if not environment.keys().isdisjoint(_NEEDS_A_START):
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        order = _Order(arguments=arguments, environment=environment, outputs=(out.fileno(), err.fileno()))
        with _lock:
            process = _libraries(environment).fork(order)
        try:
            code = process.wait(_RUN_SECONDS)
        finally:
            process.kill()
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess(["manage.py", *arguments], code, *texts)


def _template(command: str, environment: Mapping[str, str]) -> "_Template":
    """Return the template of a server and its environment."""
    key = (command, frozenset((name, value) for name, value in environment.items() if name != _IRRELEVANT))
    template = _templates.pop(key, None)
    if template is None or not template.is_alive():
        template = _Template(command, environment)
    _templates[key] = template
    # The most recently used ones are the last.
    idle = [known for known, other in _templates.items() if other is not template and other.is_idle()]
    for old in idle[:-_MOST_IDLE_TEMPLATES]:
        _templates.pop(old).close()
    return template


def _libraries(environment: Mapping[str, str]) -> "_Template":
    """Return the template without settings for processes with this environment."""
    key = tuple(environment.get(name, "") for name in _INHERITED)
    if key not in _without_settings:
        own = {name: value for name, value in os.environ.items() if name not in _INHERITED}
        inherited = {name: value for name, value in zip(_INHERITED, key, strict=True) if value}
        _without_settings[key] = _Template("", {**own, **inherited})
    return _without_settings[key]


@dataclass(frozen=True, kw_only=True)
class _Order:
    """A process to fork, with the file descriptors of its output and its errors.

    `is_template`: it forks other processes on orders from a socket, its only file descriptor.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    outputs: Sequence[int]
    new_session: bool = False
    network: str = ""
    is_template: bool = False


class _TemplateEnded(Exception):
    """The template has ended because its settings were refused."""


class _Template:
    """A process that has loaded the code of a command, seen from the tests."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: Process
        with theirs:
            if command:
                order = _Order(
                    arguments=(command,), environment=environment, outputs=(theirs.fileno(),), is_template=True
                )
                self._process = _libraries(environment).fork(order)
            else:
                code = f"import sys; sys.path[:0] = {_SOURCES!r}; from tests.support import preloaded; "
                self._process = subprocess.Popen(
                    [sys.executable, "-c", f"{code}preloaded.serve({theirs.fileno()})"],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
        self._pids: Queue[int] = Queue()
        self._ended = threading.Condition()
        self._codes: dict[int, int | None] = {}
        threading.Thread(target=self._listen, name="template", daemon=True).start()

    def fork(self, order: "_Order") -> "_ForkedProcess":
        """Return a new process. Raises _TemplateEnded."""
        values = {
            "arguments": list(order.arguments),
            "environment": dict(order.environment),
            "new_session": order.new_session,
            "network": order.network,
            "is_template": order.is_template,
        }
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [orjson.dumps(values)], list(order.outputs))
        if not (pid := self._pids.get(timeout=_START_SECONDS)):
            # A later call gets it as well instead of waiting.
            self._pids.put(0)
            raise _TemplateEnded
        return _ForkedProcess(self, pid)

    def is_alive(self) -> bool:
        """Return whether it can fork processes."""
        return self._process.poll() is None

    def is_idle(self) -> bool:
        """Return whether all of its processes have ended."""
        with self._ended:
            return None not in self._codes.values()

    def exit_code(self, pid: int, *, timeout: float | None) -> int | None:
        """Return the exit code of a process after at most this many seconds, or None while it runs."""
        with self._ended:
            self._ended.wait_for(lambda: self._codes[pid] is not None, timeout)
            return self._codes[pid]

    def close(self) -> None:
        """End the template."""
        self._control.shutdown(socket.SHUT_RDWR)
        self._process.wait()

    def _listen(self) -> None:
        while message := self._receive():
            pid, code = orjson.loads(message)
            with self._ended:
                self._codes[pid] = code
                self._ended.notify_all()
            if code is None:
                self._pids.put(pid)
        # The kernel kills its processes when it ends. Their numbers may soon be those of others.
        with self._ended:
            self._codes = {pid: -signal.SIGKILL if code is None else code for pid, code in self._codes.items()}
            self._ended.notify_all()
        self._pids.put(0)

    def _receive(self) -> bytes:
        try:
            return self._control.recv(_LONGEST_MESSAGE)
        except ConnectionResetError:
            return b""


class _ForkedProcess:
    """A process of a template, with the methods of `subprocess.Popen`."""

    def __init__(self, template: _Template, pid: int) -> None:
        self.pid = pid
        self._exit_code = partial(template.exit_code, pid)

    def poll(self) -> int | None:
        return self._exit_code(timeout=0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._exit_code(timeout=timeout)) is None:
            raise subprocess.TimeoutExpired("manage.py", timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            # The process may end in between, and only its template can wait for it.
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_lock = threading.Lock()
_templates: dict[tuple[str, frozenset[tuple[str, str]]], _Template] = {}
_without_settings: dict[tuple[str, ...], _Template] = {}


@atexit.register
def _close_templates() -> None:
    for template in (*_templates.values(), *_without_settings.values()):
        template.close()


# -- in the template ---------------------------------------------------------------------------------------------------


def serve(number: int) -> None:
    """Load libraries and fork processes for the messages on the socket with this file descriptor."""
    gc.disable()
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    for name in (*_LIBRARIES, *_WITHOUT_SETTINGS):
        importlib.import_module(name)
    _fork_processes(socket.socket(fileno=number))


def _fork_processes(control: socket.socket) -> None:
    """Fork a process for each message until the socket is closed. Returns in these processes as well."""
    if threading.active_count() > 1:
        raise RuntimeError("A process with threads cannot be forked.")
    # A signal makes it readable, so that the loop wakes from `select`.
    signaled, signals = socket.socketpair()
    signals.setblocking(False)
    signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([control, signaled], [], [])
        if control in ready:
            message, outputs, _, _ = socket.recv_fds(control, _LONGEST_MESSAGE, 2)
            if not message:
                return
            if not (pid := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (control, signaled, signals):
                    end.close()
                _become(outputs, **orjson.loads(message))
            for output in outputs:
                os.close(output)
            children.add(pid)
            control.send(orjson.dumps([pid, None]))
        if signaled in ready:
            signaled.recv(1024)
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    children.remove(pid)
                    control.send(orjson.dumps([pid, os.waitstatus_to_exitcode(status)]))


def _become(
    outputs: Sequence[int],
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    new_session: bool,
    network: str,
    is_template: bool,
) -> NoReturn:
    """Run a command or a template in this process, which the kernel kills when its parent ends."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if new_session:
        os.setsid()
    if network and _libc is not None:
        with (_NAMESPACES / network).open() as namespace:
            if _libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise RuntimeError(f"The network namespace {network} cannot be entered.")
    os.environ.clear()
    os.environ.update(environment)
    if is_template:
        _load(arguments[0])
        _fork_processes(socket.socket(fileno=outputs[0]))
        sys.exit()
    for stream, output in zip((sys.stdout, sys.stderr), outputs, strict=True):
        os.dup2(output, stream.fileno())
        os.close(output)
    if recording.DIRECTORY in os.environ:
        recording.follow()
    sys.argv = ["manage.py", *arguments]
    sys.exit(main(root=ROOT, argv=sys.argv))


def _load(command: str) -> None:
    # The same steps as in the command, up to the fork of several web processes.
    import django
    from django.db.migrations.loader import MigrationLoader

    django.setup()
    for name in _MODULES[command]:
        importlib.import_module(name)
    # Each process compares the migrations of the database with those on disk before it starts.
    MigrationLoader(None)

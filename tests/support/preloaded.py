"""Processes of the platform that are forked from one that has loaded its code, as `manage.py web --processes` does.

Loading takes seconds of CPU time, and tests of failures start hundreds of processes. The first process with some
command and environment is forked from a template that has loaded libraries only, because the platform's modules read
settings while they are loaded. Later ones are forked from a template that has loaded the code of the command with the
same environment. Tests of the launcher and of `up` start processes as in production.
"""

import atexit
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from queue import Queue
from typing import NoReturn, Protocol

import orjson

from launcher.main import main
from tests import recording

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (str(ROOT / "platform"), str(ROOT))
_MODULES = {
    "web": ("config.management.commands.web", "config.asgi", "config.urls"),
    "worker": ("config.management.commands.worker",),
    "beat": ("config.management.commands.beat",),
}
"""Modules that a template loads, by command; their processes import them all."""
_LIBRARIES = (
    "aiohttp",
    "celery.app.amqp",
    "celery.app.task",
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
    "markdown_it",
    "openai.resources.chat",
    "openai.resources.responses",
    "openai.types.responses",
    "orjson",
    "psycopg_pool",
    "pydantic",
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
_MOST_TEMPLATES = 4
_START_SECONDS = 300.0
_LONGEST_MESSAGE = 1024 * 1024
# Of pytest; it changes with every test and means nothing to the platform.
_IRRELEVANT = "PYTEST_CURRENT_TEST"
# Hooks into the start of an interpreter.
_NEEDS_A_START = ("LD_PRELOAD", "PYTHONPROFILEIMPORTTIME")


class Process(Protocol):
    """The part of `subprocess.Popen` that both kinds of processes have."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


def start(
    arguments: Sequence[str], *, environment: Mapping[str, str], output: int, prefix: Sequence[str] = ()
) -> Process:
    """Start `manage.py` with these arguments; its output goes to the file descriptor `output`.

    `prefix` are the words of a program that runs the command.
    """
    relevant = {name: value for name, value in environment.items() if name != _IRRELEVANT}
    key = (arguments[0], frozenset(relevant.items()))
    with _lock:
        if prefix or not relevant.keys().isdisjoint(_NEEDS_A_START):
            command = [*prefix, sys.executable, "manage.py", *arguments]
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if key not in _started:
            _started.add(key)
            return _libraries().fork(arguments, environment=environment, output=output)
        template = _templates.pop(key, None)
        if template is None or not template.is_alive():
            template = _Template(arguments[0], environment)
        _templates[key] = template
        for old in [old for old, other in _templates.items() if other is not template and other.is_idle()]:
            if len(_templates) > _MOST_TEMPLATES:
                _templates.pop(old).close()
        return template.fork(arguments, environment=environment, output=output)


@cache
def _libraries() -> "_Template":
    """Return the template that has loaded libraries only."""
    return _Template("", os.environ)


class _Template:
    """A process that has loaded the code of a command, seen from the tests."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = (
            f"import sys; sys.path[:0] = {_SOURCES!r}; from tests.support.preloaded import serve; serve(*sys.argv[1:])"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), command],
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

    def fork(self, arguments: Sequence[str], *, environment: Mapping[str, str], output: int) -> "_ForkedProcess":
        """Return a new process."""
        order = orjson.dumps({"arguments": list(arguments), "environment": dict(environment)})
        socket.send_fds(self._control, [order], [output])
        if not (pid := self._pids.get(timeout=_START_SECONDS)):
            raise RuntimeError("The template of the process has ended; its output says why.")
        return _ForkedProcess(self, pid)

    def is_alive(self) -> bool:
        """Return whether it can fork processes."""
        return self._process.poll() is None

    def is_idle(self) -> bool:
        """Return whether all of its processes have ended."""
        with self._ended:
            return None not in self._codes.values()

    def exit_code(self, pid: int, *, timeout: float | None) -> int | None:
        """Return the exit code of a process, after at most so many seconds; None while it runs."""
        with self._ended:
            self._ended.wait_for(lambda: self._codes[pid] is not None, timeout)
            return self._codes[pid]

    def close(self) -> None:
        """End the template."""
        self._control.shutdown(socket.SHUT_RDWR)
        self._process.wait()

    def _listen(self) -> None:
        while message := self._control.recv(_LONGEST_MESSAGE):
            pid, code = orjson.loads(message)
            with self._ended:
                self._codes[pid] = code
                self._ended.notify_all()
            if code is None:
                self._pids.put(pid)
        self._pids.put(0)


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
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_lock = threading.Lock()
_started: set[tuple[str, frozenset[tuple[str, str]]]] = set()
_templates: dict[tuple[str, frozenset[tuple[str, str]]], _Template] = {}


@atexit.register
def _close_templates() -> None:
    for template in _templates.values():
        template.close()
    if _libraries.cache_info().currsize:
        _libraries().close()


# -- in the template ---------------------------------------------------------------------------------------------------


def serve(number: str, command: str) -> None:
    """Load the code of a command, or libraries if it is empty, and fork a process for each message on the socket.

    `number` is the file descriptor of the socket.
    """
    control = socket.socket(fileno=int(number))
    _load(command)
    # A signal makes it readable, so that the loop wakes from `select`.
    signaled, signals = socket.socketpair()
    signals.setblocking(False)
    signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([control, signaled], [], [])
        if control in ready:
            message, outputs, _, _ = socket.recv_fds(control, _LONGEST_MESSAGE, 1)
            if not message:
                return
            if not (pid := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (control, signaled, signals):
                    end.close()
                _become(outputs[0], **orjson.loads(message))
            os.close(outputs[0])
            children.add(pid)
            control.send(orjson.dumps([pid, None]))
        if signaled in ready:
            signaled.recv(1024)
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    children.remove(pid)
                    control.send(orjson.dumps([pid, os.waitstatus_to_exitcode(status)]))


def _load(command: str) -> None:
    # As the command does it, up to the point at which several web processes are forked as well.
    gc.disable()
    if command:
        import django

        django.setup()
    for name in _MODULES[command] if command else _LIBRARIES:
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise RuntimeError("A process with threads cannot be forked.")


def _become(output: int, *, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a command in this process."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    if recording.DIRECTORY in os.environ:
        recording.follow()
    sys.argv = ["manage.py", *arguments]
    sys.exit(main(root=ROOT, argv=sys.argv))

"""Prepares `.venv` from the locked, hashed requirements and goes on in it. Standard library only.

It works with whatever a Python comes with: uv where there is one, else the environment's own pip (ensurepip), else
a pip of the system that installs into the environment from outside. A stamp in the environment says which requirements
are in it, so that a later start asks nobody.
"""

import fcntl
import hashlib
import json
import os
import selectors
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NoReturn, cast

from launcher.errors import LaunchError
from launcher.report import Report

RUNTIME = "requirements.txt"
DEVELOPMENT = "requirements-dev.txt"  # a superset of the above
STAMP = "requirements-stamp.json"
OLDEST = (3, 11)
# Two that nobody has by chance: a Django that the system has for itself is not this platform's environment.
TELLING = ("django", "channels", "unfold")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The virtual environment of a checkout."""

    root: Path

    @property
    def directory(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def is_ours(self) -> bool:
        """Whether we run in it already."""
        return Path(sys.prefix).resolve() == self.directory.resolve()


def enter(*, root: Path, requirements: str, argv: Sequence[str], report: Report) -> None:
    """Make sure that the environment holds the requirements, and go on in it: returns only when we run in it.

    Raises LaunchError when it cannot be made or filled.
    """
    environment = Environment(root=root)
    if not is_prepared(environment=environment, requirements=requirements):
        with _alone(root):
            # Another start may have done it while we waited.
            if not is_prepared(environment=environment, requirements=requirements):
                prepare(environment=environment, requirements=requirements, report=report)
    if not environment.is_ours:
        _go_on(environment, argv)


def enter_existing(*, root: Path, argv: Sequence[str]) -> None:
    """For the commands that do not install: go on in the environment, unless this Python has what is needed itself."""
    if all(find_spec(name) for name in TELLING):
        return
    environment = Environment(root=root)
    if environment.is_ours or not environment.python.exists():
        raise LaunchError(
            "The environment is not prepared yet: run `python3 manage.py up` or `python3 manage.py test`."
        )
    _go_on(environment, argv)


def _go_on(environment: Environment, argv: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(environment.python, [str(environment.python), *argv])  # noqa: S606 - we become it


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One start at a time installs; the lock is on the checkout's directory itself and leaves no file."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_prepared(*, environment: Environment, requirements: str) -> bool:
    """Whether the stamp speaks of these requirements and of the Python that the environment has now."""
    version = _version(environment)
    return version is not None and _stamp(environment).get(requirements) == _fingerprint(
        environment.root / requirements, version=version
    )


def _stamp(environment: Environment) -> dict[str, str]:
    try:
        stamp: dict[str, str] = json.loads((environment.directory / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def _fingerprint(requirements: Path, *, version: tuple[int, int]) -> str:
    return hashlib.sha256(repr(version).encode() + requirements.read_bytes()).hexdigest()


def _version(environment: Environment) -> tuple[int, int] | None:
    """Ask the environment's Python, whose base may have been upgraded or removed; None when it does not run."""
    try:
        asked = _quietly([str(environment.python), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"])
        major, minor = (int(word) for word in asked.stdout.split())
    except (OSError, ValueError):
        return None
    return major, minor


def prepare(*, environment: Environment, requirements: str, report: Report) -> None:
    """Make the environment where there is none that works, install, and stamp it."""
    uv = _find_uv()
    report.step(f"Preparing {environment.directory} from {requirements} (only now and when it changes)")
    if not _works(environment):
        shutil.rmtree(environment.directory, ignore_errors=True)
        _create(environment, uv=uv, report=report)
    version = _version(environment)
    if version is None:
        raise LaunchError(f"The virtual environment {environment.directory} was made, but its Python does not run.")
    _install(environment, requirements, uv=uv, report=report)
    names = (RUNTIME, DEVELOPMENT) if requirements == DEVELOPMENT else (requirements,)
    stamps = {name: _fingerprint(environment.root / name, version=version) for name in names}
    (environment.directory / STAMP).write_text(json.dumps({**_stamp(environment), **stamps}, indent=2))
    report.step("The environment is ready")


def _works(environment: Environment) -> bool:
    """An interpreter that was replaced by the next minor version runs, but does not see what was installed."""
    version = _version(environment)
    if version is None or version < OLDEST:
        return False
    return (environment.directory / "lib" / f"python{version[0]}.{version[1]}" / "site-packages").is_dir()


def _find_uv() -> str | None:
    """A uv that runs: what is on the PATH may be the shim of a version manager that has none."""
    uv = shutil.which("uv")
    return uv if uv and _succeeds([uv, "--version"]) else None


def _create(environment: Environment, *, uv: str | None, report: Report) -> None:
    target = str(environment.directory)
    commands = [[sys.executable, "-m", "venv", "--without-pip", target]]
    if uv:
        # This very interpreter: left to choose, uv may try to download one.
        commands.insert(0, [uv, "venv", "--no-project", "--python", sys.executable, target])
    _first_that_works(commands, report=report, otherwise=f"The virtual environment {target} could not be made")


def _install(environment: Environment, requirements: str, *, uv: str | None, report: Report) -> None:
    # The lock is complete, so there is nothing to resolve.
    what = ["--require-hashes", "--no-deps", "-r", str(environment.root / requirements)]
    commands = [[uv, "pip", "install", "--python", str(environment.python), *what]] if uv else []
    tail = ["install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", *what]
    _first_that_works(
        _chain(commands, ([*pip, *tail] for pip in _pips(environment, report=report))),
        report=report,
        otherwise=(
            "The requirements could not be installed; where there is neither uv nor pip nor ensurepip, install one of "
            "them first (on Debian and Ubuntu: apt install python3-venv)"
        ),
    )


def _chain(first: list[list[str]], second: Iterator[list[str]]) -> Iterator[list[str]]:
    """Lazily: looking for a pip may install one."""
    yield from first
    yield from second


def _pips(environment: Environment, *, report: Report) -> Iterator[list[str]]:
    """Ways to call a pip for the environment, the nearest first."""
    report.status("Looking for pip")
    inside = [str(environment.python), "-m", "pip"]
    if _succeeds([*inside, "--version"]) or _succeeds([str(environment.python), "-m", "ensurepip", "--default-pip"]):
        yield inside
    outside = [[sys.executable, "-m", "pip"], ["pip3"], ["pip"]]
    for pip in outside:
        if shutil.which(pip[0]) and _succeeds([*pip, "--python", str(environment.python), "--version"]):
            yield [*pip, "--python", str(environment.python)]


def _first_that_works(commands: Iterator[list[str]] | list[list[str]], *, report: Report, otherwise: str) -> None:
    said: list[str] = []
    for command in commands:
        code, said = _run_visibly(command, report=report)
        if code == 0:
            return
    for line in said[-15:]:
        report.line(f"          {line}")
    raise LaunchError(f"{otherwise}.")


def _run_visibly(command: list[str], *, report: Report) -> tuple[int, list[str]]:
    """Run it with its latest line of output as a sign of life; returns exit code and output."""
    said: list[str] = []
    pending = b""
    with (
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        output = cast("IO[bytes]", process.stdout)  # a pipe was asked for
        selector.register(output, selectors.EVENT_READ)
        while True:
            report.status(said[-1] if said else f"{Path(command[0]).name} …")
            if not selector.select(timeout=0.5):
                continue
            piece = output.read(65536)
            if not piece:
                break
            *lines, pending = (pending + piece).split(b"\n")
            said += [text for line in lines if (text := line.decode(errors="replace").strip())]
    return process.returncode, said


def _quietly(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _succeeds(command: list[str]) -> bool:
    try:
        return _quietly(command).returncode == 0
    except OSError:
        return False

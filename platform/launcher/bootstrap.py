"""Creation of the virtual environment from the locked, hashed requirements. Uses the standard library only.

It installs with uv if available, else with the environment's own pip (ensurepip), else with a pip of the system from
outside. A stamp file in the environment records the installed requirements, so later starts run no installer.
"""

import fcntl
import hashlib
import json
import os
import selectors
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import IO, NoReturn, cast

from launcher.errors import LaunchError
from launcher.report import Report

RUNTIME = "requirements/runtime.txt"
DEVELOPMENT = "requirements/development.txt"  # a superset of the above
STAMP = "requirements-stamp.json"
OLDEST = (3, 11)
# Django alone may be a system package; all three together exist only in an environment made for this platform.
REQUIRED_PACKAGES = ("django", "channels", "unfold")


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
    def is_active(self) -> bool:
        """True if this process runs in the environment."""
        return Path(sys.prefix).resolve() == self.directory.resolve()


def enter(*, root: Path, requirements: str, argv: Sequence[str], report: Report) -> None:
    """Install the requirements if necessary and restart this process in the environment.

    Returns only if the process runs in the environment already. Raises LaunchError if the installation fails.
    """
    environment = Environment(root=root)
    if not is_prepared(environment=environment, requirements=requirements):
        # The lock is on the directory of the checkout, so no lock file is left behind.
        descriptor = os.open(root, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have installed them while this one waited for the lock.
            if not is_prepared(environment=environment, requirements=requirements):
                prepare(environment=environment, requirements=requirements, report=report)
        finally:
            os.close(descriptor)
    if not environment.is_active:
        _restart_in(environment, argv)


def enter_existing(*, root: Path, argv: Sequence[str]) -> None:
    """Restart this process in the environment, unless this Python has the packages. Never installs anything.

    Raises LaunchError if there is no environment.
    """
    # An installation may also do without a virtual environment.
    if all(find_spec(name) for name in REQUIRED_PACKAGES):
        return
    environment = Environment(root=root)
    if environment.is_active or not environment.python.exists():
        raise LaunchError(
            "The virtual environment does not exist yet. Run `python3 manage.py up` or `python3 manage.py test` first."
        )
    _restart_in(environment, argv)


def _restart_in(environment: Environment, argv: Sequence[str]) -> NoReturn:
    # execv drops buffered output.
    sys.stdout.flush()
    os.execv(environment.python, [str(environment.python), *argv])  # noqa: S606 - replaces this process


def is_prepared(*, environment: Environment, requirements: str) -> bool:
    """Return whether the stamp matches the requirements file and the Python version of the environment."""
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
    """Return the version of the environment's Python, or None if it does not run."""
    # It has to be executed: the interpreter that it links to may have been upgraded or removed.
    try:
        result = _run_quietly([str(environment.python), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"])
        major, minor = (int(word) for word in result.stdout.split())
    except (OSError, ValueError):
        return None
    return major, minor


def prepare(*, environment: Environment, requirements: str, report: Report) -> None:
    """Create the environment if necessary, install the requirements and write the stamp."""
    report.step(f"Installing {requirements} in {environment.directory} (only now and when the file changes)")
    target, uv = str(environment.directory), shutil.which("uv")
    # Executed once: it may be the shim of a version manager that has no uv installed.
    uv = uv if uv and _succeeds([uv, "--version"]) else None
    version = _version(environment)
    # After an upgrade to the next minor version, the interpreter runs but searches another directory for packages.
    if (
        version is None
        or version < OLDEST
        or not (environment.directory / "lib" / f"python{version[0]}.{version[1]}" / "site-packages").is_dir()
    ):
        shutil.rmtree(environment.directory, ignore_errors=True)
        # Without an explicit interpreter, uv may try to download one.
        by_uv = [[uv, "venv", "--no-project", "--python", sys.executable, target]] if uv else []
        commands = [*by_uv, [sys.executable, "-m", "venv", "--without-pip", target]]
        _run_first_working(commands, report=report, failure=f"The virtual environment {target} could not be created")
    version = _version(environment)
    if version is None:
        raise LaunchError(f"The virtual environment {target} was created, but its Python does not run.")
    # The lock file lists all dependencies, so there is nothing to resolve.
    packages = ["--require-hashes", "--no-deps", "-r", str(environment.root / requirements)]
    by_uv = [[uv, "pip", "install", "--python", str(environment.python), *packages]] if uv else []
    tail = ["install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", *packages]
    _run_first_working(
        # Lazy, because searching for a pip may install one.
        chain(by_uv, ([*pip, *tail] for pip in _pips(environment, report=report))),
        report=report,
        failure=(
            "The requirements could not be installed. If there is no uv, pip or ensurepip, install one of them first "
            "(on Debian and Ubuntu: apt install python3-venv)"
        ),
    )
    names = (RUNTIME, DEVELOPMENT) if requirements == DEVELOPMENT else (requirements,)
    stamps = {name: _fingerprint(environment.root / name, version=version) for name in names}
    (environment.directory / STAMP).write_text(json.dumps({**_stamp(environment), **stamps}, indent=2))
    report.step("Virtual environment ready")


def _pips(environment: Environment, *, report: Report) -> Iterator[list[str]]:
    """Yield commands that run a pip for the environment, the most specific first."""
    report.status("Searching for pip")
    inside = [str(environment.python), "-m", "pip"]
    if _succeeds([*inside, "--version"]) or _succeeds([str(environment.python), "-m", "ensurepip", "--default-pip"]):
        yield inside
    for pip in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        if shutil.which(pip[0]) and _succeeds([*pip, "--python", str(environment.python), "--version"]):
            yield [*pip, "--python", str(environment.python)]


def _run_first_working(commands: Iterable[list[str]], *, report: Report, failure: str) -> None:
    """Run commands until one succeeds, and show their latest output line as progress.

    Raises LaunchError after the output of the last command if all fail.
    """
    lines: list[str] = []
    for command in commands:
        lines, pending = [], b""
        with (
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
            ) as process,
            selectors.DefaultSelector() as selector,
        ):
            output = cast("IO[bytes]", process.stdout)  # not None, because of stdout=PIPE
            selector.register(output, selectors.EVENT_READ)
            while True:
                report.status(lines[-1] if lines else f"{Path(command[0]).name} …")
                if not selector.select(timeout=0.5):
                    continue
                piece = output.read(65536)
                if not piece:
                    break
                *whole, pending = (pending + piece).split(b"\n")
                lines += [text for line in whole if (text := line.decode(errors="replace").strip())]
        if process.returncode == 0:
            return
    for text in lines[-15:]:
        report.line(f"          {text}")
    raise LaunchError(f"{failure}.")


def _run_quietly(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _succeeds(command: list[str]) -> bool:
    try:
        return _run_quietly(command).returncode == 0
    except OSError:
        return False

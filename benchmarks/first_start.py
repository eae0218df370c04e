"""`python -m benchmarks first-start`: wall and CPU time from a fresh clone until the platform is ready."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Floor
from launcher.address import any_free_port

ROOT = Path(__file__).parents[1]
MOST_WALL, MOST_CPU, MOST_SECOND = 60.0, 40.0, 5.0
TIMEOUT = 900.0
# Only the configuration of the package index is kept; everything else is empty.
CONFIGURATION = re.compile(
    r"(PIP|UV)_(\w*INDEX\w*|FIND_LINKS|CONFIG_FILE|CERT|TRUSTED_HOST|INSECURE_HOST|KEYRING\w*)|SSL_CERT_\w+"
    r"|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy"
)
STEP = re.compile(r"\s*\d+\.\d s  (.*)")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Seconds until Ready, CPU seconds of all processes until then, and both at every line of the output."""

    wall: float
    cpu: float
    steps: list[tuple[float, float, str]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An interpreter and a user, on a fresh clone with empty caches."""

    python: Path
    user: str
    directory: Path

    @property
    def _account(self) -> dict[str, Any]:
        if self.user == pwd.getpwuid(os.geteuid()).pw_name:
            return {}
        entry = pwd.getpwnam(self.user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    @property
    def name(self) -> str:
        asked = [str(self.python), "-c", "import platform; print(platform.python_version())"]
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, check=True, cwd="/", **self._account)
        except (OSError, subprocess.CalledProcessError) as refused:
            raise SystemExit(
                f"{self.user} cannot run {self.python}: copy it to a place that all users can read."
            ) from refused
        return f"{answer.stdout.strip()} as {self.user}"

    def prepare(self) -> None:
        """Clone the checkout and create an empty home, both owned by the user."""
        subprocess.run(
            ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(self.directory / "clone")], check=True
        )
        (self.directory / "home").mkdir()
        if account := self._account:
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, account["user"], account["group"], follow_symlinks=False)

    def start(self) -> Start:
        """Run `up` until it is ready, and stop it. Raises SystemExit with the output if it fails."""
        environment = {name: value for name, value in os.environ.items() if CONFIGURATION.fullmatch(name)}
        # No uv, no caches, no user configuration.
        environment |= {"PATH": f"{self.python.parent}:/usr/bin:/bin", "HOME": str(self.directory / "home")}
        argv = [str(self.python), "manage.py", "up", "--no-input", "--port", str(any_free_port())]
        began, lines, steps = time.monotonic(), list[str](), list[tuple[float, float, str]]()
        process = subprocess.Popen(
            argv,
            cwd=self.directory / "clone",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **self._account,
        )
        try:
            assert process.stdout
            for line in process.stdout:
                lines.append(line)
                if step := STEP.match(line):
                    steps.append((time.monotonic() - began, _cpu_seconds(process.pid), step[1]))
                    if step[1].startswith("Ready."):
                        wall, cpu, _ = steps[-1]
                        return Start(wall=wall, cpu=cpu, steps=steps)
                if time.monotonic() - began > TIMEOUT:
                    break
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
        raise SystemExit(f"`{' '.join(argv)}` did not become ready:\n{''.join(lines)}")

    @property
    def installed(self) -> tuple[int, float]:
        """The number of distributions and the megabytes of the environment."""
        environment = self.directory / "clone" / ".venv"
        size = sum(path.lstat().st_blocks * 512 for path in environment.rglob("*"))
        return len(list(environment.glob("lib/python3.*/site-packages/*.dist-info"))), size / 1e6


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants, including those that have ended."""
    total = 0.0
    for process in [(parent := psutil.Process(pid)), *parent.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


@contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. With `--check`, return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks first-start")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    parser.add_argument("--python", action="append", type=Path, help="interpreter; repeat for several")
    parser.add_argument("--user", action="append", help="user to run as, which needs root; repeat for several")
    parser.add_argument("--busy", type=int, default=0, help="number of busy processes beside it")
    parser.add_argument("--steps", action="store_true", help="also print both times at every step")
    options = parser.parse_args(arguments)
    this = Path(getattr(sys, "_base_executable", sys.executable))
    figures: list[Floor] = []
    for python in options.python or [this]:
        for user in options.user or [pwd.getpwuid(os.geteuid()).pw_name]:
            # Below /tmp, because other users cannot enter every checkout.
            place = Path(tempfile.mkdtemp(prefix="first-start-"))
            place.chmod(0o755)
            trial = Trial(python=python, user=user, directory=place)
            try:
                name = trial.name
                trial.prepare()
                with _busy(options.busy):
                    first = trial.start()
                    second = trial.start()
                distributions, megabytes = trial.installed
            finally:
                shutil.rmtree(place, ignore_errors=True)
            for start in (first, second) if options.steps else ():
                for wall, cpu, text in start.steps:
                    print(f"{wall:7.1f} s {cpu:7.1f} CPU s  {text}")
            limited = [
                Floor(name=f"{name}: seconds from clone to ready", figure=first.wall, limit=MOST_WALL),
                Floor(name=f"{name}: CPU seconds from clone to ready", figure=first.cpu, limit=MOST_CPU),
                Floor(name=f"{name}: seconds of the second start", figure=second.wall, limit=MOST_SECOND),
            ]
            for figure in limited:
                print(figure.text())
            print(f"        {name}: {second.cpu:.1f} CPU seconds of the second start")
            print(f"        {name}: {distributions} distributions with {megabytes:.0f} MB", flush=True)
            figures += limited
    return 1 if options.check and not all(figure.holds for figure in figures) else 0

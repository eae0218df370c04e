"""Virtual environments in the user's cache folder, installed from locks with uv."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.compare.interpreters import Python
from benchmarks.stack import tell
from launcher.errors import LaunchError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "responses-platform" / "servers"


def installed(name: str, *, lock: Path, python: Python) -> Path:
    """Return the folder of programs of an environment, installed from its lock if it is not yet there.

    Raises LaunchError with the reason if it cannot be installed here.
    """
    digest = hashlib.sha256(f"{python.path} {python.build.version}".encode() + lock.read_bytes()).hexdigest()[:12]
    environment = CACHE / f"{name.replace(' ', '-')}-{digest}"
    complete = environment / "complete"
    if not complete.exists():
        tell(f"installing {name} in {environment}, on {python.build.describe()}")
        shutil.rmtree(environment, ignore_errors=True)
        uv = _uv()
        _run(name, uv, "venv", "--quiet", "--no-python-downloads", "--python", python.path, environment)
        target = ("--python", environment / "bin" / "python")
        _run(name, uv, "pip", "install", "--quiet", *target, "--require-hashes", "--no-deps", "-r", lock)
        complete.touch()
    return environment / "bin"


def _uv() -> str:
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.exists() else shutil.which("uv")
    if not found:
        message = "The other servers are installed with uv: run `python3 manage.py install --dev`."
        raise LaunchError(message)
    return found


def _run(name: str, *command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{name} could not be installed: {done.stderr.strip()[-600:]}"
        raise LaunchError(message)

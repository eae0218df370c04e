"""The Python interpreters of this machine, and the choice of one that was built with optimisation.

Users of the servers run the builds of distributions, python.org or Docker. An interpreter that pyenv compiled is 10 to
20 % slower (`core.interpreter`): it would slow down the servers in Python, but not those in Rust.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.stack import ROOT
from core import interpreter
from core.interpreter import Interpreter
from launcher.bootstrap import OLDEST

# Executed by each interpreter, of which some are too old for the module.
_QUESTION = """
import sys
sys.path.append(sys.argv[1])
import dataclasses, json, os
from core import interpreter
print(json.dumps([os.path.realpath(sys.executable), dataclasses.asdict(interpreter.current())]))
"""


@dataclass(frozen=True, kw_only=True)
class Python:
    """An interpreter of this machine. `path` has no symbolic links, so that it is the same from any environment."""

    path: Path
    build: Interpreter

    @property
    def series(self) -> tuple[int, int]:
        """The version without its last number, such as 3 and 11."""
        major, minor, *_ = self.build.version.split(".")
        return int(major), int(minor)


def own() -> Python:
    """Return the interpreter of this process."""
    return Python(path=Path(sys.executable).resolve(), build=interpreter.current())


def at(program: str | Path) -> Python | None:
    """Return the interpreter of a program; None if it does not run or is too old."""
    command = [str(program), "-I", "-c", _QUESTION, str(ROOT / "platform")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    # A shim of pyenv is in PATH even if its version is not selected.
    if done.returncode:
        return None
    path, build = json.loads(done.stdout)
    found = Python(path=Path(path), build=Interpreter(**build))
    return found if found.series >= OLDEST else None


@cache
def found() -> tuple[Python, ...]:
    """Return the interpreters in PATH, in the usual folders and of pyenv, without duplicates."""
    programs = dict.fromkeys([own().path, *(program.resolve() for program in _programs())])
    pythons = [python for program in programs if (python := at(program))]
    return tuple({python.path: python for python in pythons}.values())


def _programs() -> Iterator[Path]:
    # Interpreters of pyenv may be missing in PATH.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = [*map(Path, os.get_exec_path()), Path("/usr/local/bin"), Path("/usr/bin"), *pyenv.glob("*/bin")]
    for folder in folders:
        yield from (path for path in folder.glob("python3*") if re.fullmatch(r"python3(\.\d+)?", path.name))


def preferred(pythons: Sequence[Python], *, current: Python) -> Python:
    """Return the current interpreter, or an optimised one if the current one is slow.

    One of the same series is preferred to others, then the newest.
    """
    if not current.build.is_slow:
        return current
    candidates = [python for python in pythons if python.build.is_profile_guided]
    return max(candidates, key=lambda python: (python.series == current.series, python.series), default=current)


def suitable(pythons: Sequence[Python], *, oldest: tuple[int, int]) -> Python | None:
    """Return an interpreter that is not older than a series: optimised if possible, then as old as possible."""
    candidates = sorted((python for python in pythons if python.series >= oldest), key=lambda python: python.series)
    return max(candidates, key=lambda python: bool(python.build.is_profile_guided), default=None)

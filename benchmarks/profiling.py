"""Profile of the platform under load: functions of the web process from py-spy, statements from PostgreSQL."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.stack import STATEMENTS

ROOT = Path(__file__).parents[1]
SAMPLES_PER_SECOND = 200


@contextmanager
def recording(*, pid: int, seconds: float, file: Path) -> Iterator[None]:
    """Sample the process and its children for a number of seconds. The file is complete after the block.

    Only threads that hold the GIL are sampled: the GIL is the scarce resource of a process, and py-spy takes many
    waiting threads for active ones. System calls run without it and are not sampled. py-spy needs root, or
    kernel.yama.ptrace_scope 0.
    """
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--output", str(file)]
    command += ["--gil", "--subprocesses", "--threads", "--full-filenames", "--format", "raw"]
    command += ["--rate", str(SAMPLES_PER_SECOND), "--duration", str(max(1, round(seconds)))]
    recorder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
    finally:
        output, _ = recorder.communicate(timeout=60)
    if recorder.returncode:
        raise SystemExit(f"py-spy could not record the web process:\n{output}")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Samples by function, and by packages on the stack."""

    samples: int
    packages: Counter[str]
    functions: Counter[str]
    ours: Counter[str]
    libraries: Counter[str]

    def text(self) -> str:
        parts = (
            ("by package, own time", self.packages, 12),
            ("by function, own time", self.functions, 20),
            ("our functions, with what they call", self.ours, 40),
            ("functions of libraries, with what they call", self.libraries, 40),
        )
        return "\n".join(
            line
            for title, counter, length in parts
            for line in (
                f"-- {title}",
                *(f"  {100 * n / max(1, self.samples):5.1f} %  {name}" for name, n in counter.most_common(length)),
            )
        )


def summarised(raw: str) -> Profile:
    """Parse py-spy's raw format: a line per stack with frames from the outermost and the number of samples."""
    packages, functions, ours, libraries = (Counter[str]() for _ in range(4))
    for line in raw.splitlines():
        stack, _, number = line.rpartition(" ")
        # Without line numbers, with paths relative to the library or the checkout.
        stack = re.sub(r":\d+\)", ")", stack).replace(f"({ROOT}/", "(./")
        stack = re.sub(r"\([^)]*(?:site-packages|python3\.\d+)/", "(", stack)
        frames = [frame for frame in stack.split(";") if not frame.startswith(("thread", "process"))]
        if not frames:
            continue
        packages[_package(frames[-1])] += int(number)
        functions[frames[-1]] += int(number)
        for frame in set(frames):
            (ours if _is_ours(frame) else libraries)[frame] += int(number)
    return Profile(samples=functions.total(), packages=packages, functions=functions, ours=ours, libraries=libraries)


def _is_ours(frame: str) -> bool:
    return "(./" in frame


def _package(frame: str) -> str:
    found = re.search(r"\((?:\./(?:platform/)?)?([^/).]+)", frame)
    name = found.group(1) if found else "?"
    return f"{name} (ours)" if _is_ours(frame) else name


def statements(admin: str, *, requests: int) -> list[str]:
    """Return calls, time and rows per request of each statement since the last reset, the most frequent first."""
    query = (
        f"SELECT calls, total_exec_time, rows, regexp_replace(query, '\\s+', ' ', 'g'){STATEMENTS} "
        "ORDER BY calls DESC, total_exec_time DESC LIMIT 60"
    )
    with psycopg.connect(admin) as connection:
        found = connection.execute(query.encode()).fetchall()
    return [
        f"  {calls / requests:6.2f} calls {1000 * spent / requests:6.0f} us {rows / requests:7.2f} rows  {text[:200]}"
        for calls, spent, rows, text in found
    ]

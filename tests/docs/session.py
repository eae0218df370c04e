"""A reader who follows a page: one shell and one Python, which share environment and directory."""

import json
import re
import subprocess
import sys
from pathlib import Path

from launcher import processes
from launcher.processes import wait_until

BLOCK_SECONDS = 300
_PYTHON = """
import contextlib, io, json, os, sys, traceback
sys.path.insert(0, "")
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    given = json.loads(line)
    os.environ.clear(); os.environ.update(given["environment"]); os.chdir(given["directory"])
    output, error = io.StringIO(), None
    with contextlib.redirect_stdout(output):
        try:
            exec(compile(given["code"], given["name"], "exec"), namespace)
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps({"output": output.getvalue(), "error": error}), flush=True)
"""


class Session:
    """One shell, so that jobs, variables and the directory last for the whole page, and one Python."""

    def __init__(self, *, directory: Path, scratch: Path, environment: dict[str, str]) -> None:
        scratch.mkdir(parents=True)
        self._scratch = scratch
        self._number = 0
        self._environment, self._directory = environment, str(directory)
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        self._python = subprocess.Popen(
            [sys.executable, "-c", _PYTHON],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            env=environment,
            text=True,
        )

    def bash(self, text: str) -> str:
        """Run a block and return its output. Raises AssertionError if a command fails."""
        self._number += 1
        stem = self._scratch / str(self._number)
        output, state, script = stem.with_suffix(".out"), stem.with_suffix(".state"), stem.with_suffix(".sh")
        script.write_text(text)
        # The shell itself writes the state. A failing command ends the shell, and then there is no state.
        command = (
            f"set -euo pipefail\nsource {script} > {output} 2>&1 < /dev/null\nset +u\n"
            f"{{ pwd; env -0; }} > {state}.part; mv {state}.part {state}\n"
        )
        assert self._shell.stdin is not None
        self._shell.stdin.write(command.encode())
        self._shell.stdin.flush()
        wait_until(lambda: state.exists() or self._shell.poll() is not None, seconds=BLOCK_SECONDS)
        printed = output.read_text(errors="replace") if output.exists() else ""
        assert state.exists(), f"a command failed or did not end:\n{text}\n--- output\n{printed}"
        directory, _, variables = state.read_text().partition("\n")
        self._directory = directory
        self._environment = dict(pair.partition("=")[::2] for pair in variables.split("\0") if pair)
        return printed

    def python(self, text: str, *, name: str) -> str:
        """Run a block after the earlier ones of the page and return its output."""
        given = {"code": text, "name": name, "environment": self._environment, "directory": self._directory}
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(given) + "\n")
        self._python.stdin.flush()
        answer = json.loads(self._python.stdout.readline())
        assert answer["error"] is None, f"{answer['error']}\n--- output\n{answer['output']}"
        return str(answer["output"])

    def save(self, name: str, text: str) -> None:
        """Save a block as a file of the current directory."""
        path = Path(self._directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def close(self) -> None:
        """End both, and all processes that the page started."""
        self._python.kill()
        self._python.wait()
        processes.kill_group(self._shell)
        self._shell.wait()


def shows(printed: str, expected: str) -> bool:
    """Return whether the lines of a documented output occur in the actual output; `…` stands for any text."""
    pattern = "\\n".join(
        ".*?".join(map(re.escape, line.strip().split("…"))) for line in expected.strip("\n").split("\n")
    )
    lines = "\n".join(line.strip() for line in printed.split("\n"))
    return re.search(f"^{pattern}$", lines, re.MULTILINE) is not None

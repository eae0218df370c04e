"""`python -m benchmarks coverage`: the lines of the product that tests execute.

Lines that web and worker processes execute are included. The command runs a suite or the named tests, prints the share
of executed lines, and writes the record from which `python3 manage.py test --changed` chooses tests.
"""

import os
import shutil
import subprocess
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import coverage

from tests.recording import DIRECTORY, MEASURED, ROOT
from tests.recording.record import LINES, RECORD, write


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the tests and return pytest's exit code."""
    parser = ArgumentParser(prog="python -m benchmarks coverage")
    parser.add_argument("--suite", choices=["quick", "slow", "both"], default="quick", help="(default: %(default)s)")
    parser.add_argument("tests", nargs=REMAINDER, help="arguments of pytest instead of a suite")
    options = parser.parse_args(arguments)
    data = directory / "executed"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    environment = {**os.environ, DIRECTORY: str(data)}
    choice = {"quick": ["-m", "not slow"], "slow": ["-m", "slow"], "both": ["-m", "slow or not slow"]}[options.suite]
    parallel = ["-n", str(1 + (os.cpu_count() or 1)), "--dist", "loadfile"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.recording.plugin", *(options.tests or choice + parallel)]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    combined = coverage.Coverage(data_file=str(data / "data"), config_file=False, include=MEASURED)
    combined.combine([str(data)])
    share = combined.report(file=sys.stderr, skip_covered=True, show_missing=False)
    record = write(combined.get_data())
    combined.save()
    shutil.copy(data / "data", LINES)
    print(f"{share:.2f} % of the lines were executed; {RECORD.relative_to(ROOT)} has {len(record)} modules.")
    return code

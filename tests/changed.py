"""`python3 manage.py test --changed`: the quick tests that a change since `main` can affect.

Which test files execute a function is known from a recorded run, because most of the product is executed in processes
of its own, which coverage tools in the tests' process do not measure. `python -m benchmarks coverage` records one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import orjson

from tests.recording import PRODUCT, ROOT
from tests.recording.record import RECORD, files_executing, importing

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
# Tests of files that no process executes, by the beginning of their paths.
_OTHERS = {
    "docs/": ("tests/docs", "tests/architecture"),
    "deploy/": ("tests/deployment",),
    "benchmarks/": ("tests/architecture/test_nightly.py", "tests/docs/test_commands.py"),
    ".github/": ("tests/architecture/test_nightly.py",),
    "requirements/": ("tests/architecture",),
    "pyproject.toml": ("tests/architecture",),
    "README.md": ("tests/docs",),
    "CONTRIBUTING.md": ("tests/docs", "tests/architecture"),
}
# Pages of the console are rendered from files that coverage.py does not measure.
_CONSOLE = ("templates/", "static/")
_MIGRATIONS = ("tests/storage/test_migration_rules.py", "tests/storage/test_row_security.py")
_QUICK = "not slow and not nightly and not combination"


def main(arguments: list[str]) -> int:
    """Run the tests with these arguments of pytest and return its exit code."""
    changes = changed_lines()
    if not (files := affected(changes)):
        sys.stdout.write("No test executes what has changed since main.\n")
        return 0
    sys.stdout.write(
        f"Files that have changed since main: {len(changes)}. Of tests that can be affected: {len(files)}.\n"
    )
    sys.stdout.flush()
    parallel = ["-n", str(min(4, 1 + (os.cpu_count() or 1))), "--dist", "worksteal"] if len(files) > 3 else []
    command = [sys.executable, "-m", "pytest", "-m", _QUICK, *parallel, *arguments, *files]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    # All tests of the files may be slow.
    return 0 if code == 5 else code


def changed_lines() -> dict[str, list[int]]:
    """Return the files that differ from the last common commit with `main`, and their changed lines."""
    branches = _git("branch", "--all", "--format", "%(refname:short)").split()
    branch = next((name for name in ("main", "origin/main") if name in branches), None)
    if branch is None:
        raise SystemExit("There is no branch main to compare with.")
    base = _git("merge-base", branch, "HEAD").strip()
    new = _git("ls-files", "--others", "--exclude-standard").splitlines()
    return lines_of(_git("diff", "-U0", "--no-renames", base)) | {name: [] for name in new}


def lines_of(diff: str) -> dict[str, list[int]]:
    """Return the files of a diff without context, and their changed lines."""
    changes = dict[str, list[int]]()
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE)[1:]:
        name = part.partition("\n")[0].rpartition(" b/")[2]
        hunks = [(int(start), int(count or 1)) for start, count in _HUNK.findall(part)]
        # Where lines were only removed, the neighbouring lines count as changed.
        changes[name] = [line for start, count in hunks for line in range(start, start + (count or 2))]
    return changes


def affected(changes: dict[str, list[int]]) -> list[str]:
    """Return the test files that changes can affect."""
    tests, product = {ROOT / name for name in changes if name.startswith("tests/")}, _product(changes)
    chosen = {str(path.relative_to(ROOT)) for path in importing({path for path in tests if path.suffix == ".py"})}
    if product:
        if not RECORD.exists():
            raise SystemExit(
                "Which tests execute the changed modules is not known yet: `.venv/bin/python -m benchmarks coverage` "
                "records it once, in about a quarter of an hour."
            )
        record = orjson.loads(RECORD.read_bytes())
        for name in product:
            # Other files, such as a script for Redis, are used by the modules in the same folder.
            is_module = name.endswith(".py")
            modules = [name] if is_module else [module for module in record if Path(module).parent == Path(name).parent]
            for module in modules:
                chosen |= files_executing(record, module, changes[name] if is_module else [])
    for name in changes:
        if name.endswith("conftest.py"):
            chosen.add(str(Path(name).parent))
        if "/migrations/" in name:
            chosen.update(_MIGRATIONS)
        chosen.update(path for start, paths in _OTHERS.items() if name.startswith(start) for path in paths)
        if name.startswith(_CONSOLE):
            chosen.add("tests/admin")
    return sorted(path for path in chosen if (ROOT / path).exists())


def _product(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.partition("/")[0] in PRODUCT]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

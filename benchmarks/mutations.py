"""`python -m benchmarks mutations`: puts faults into the product one at a time, and checks that tests find them.

Each fault is small: a negated condition, a write that does not happen, a query without its team, a limit that is off by
one. A seed chooses them among the lines that tests execute, with equal numbers of each kind. The tests that executed
the line run in a copy of the checkout. If the tests of CI do not find the fault, the nightly tests are tried. A test
that also fails without the fault does not count. Needs the record of `python -m benchmarks coverage --suite both`.
"""

import ast
import os
import random
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.stack import tell
from launcher.errors import LaunchError
from tests.recording import PRODUCT, ROOT
from tests.recording.record import LINES, files_of_lines, functions_of

_WRITES = {"bulk_create", "bulk_update", "commit", "create", "delete", "execute", "save", "update", "update_or_create"}
_QUERIES = {"exclude", "filter", "get"}
_TEAM = re.compile(r"team(_id)?(__in)?")
_OTHER_BOUND = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
# Separate programs, whose tests start them as in production, without a record of lines.
_OTHER_PROGRAMS = ("platform/launcher/", "platform/sandbox/", "platform/demo_upstream/", "platform/guide/")
_SECONDS = 900
# Hundreds of test files execute a line that many requests use. Files that execute few lines in total run first.
_MOST_FILES = 40
_IN_CI = "not nightly and not combination"
_AT_NIGHT = "nightly or combination"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of one place: `text` replaces the characters from `start` to `end` of a module."""

    kind: str
    module: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """Return the source with the fault."""
        return source[: self.start] + self.text + source[self.end :]


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Try the faults and return 1 if a fault was found by nightly tests only."""
    parser = ArgumentParser(prog="python -m benchmarks mutations")
    parser.add_argument("--count", type=int, default=60, help="faults (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default %(default)s)")
    parser.add_argument("--skip", type=int, default=0, help="faults of the seed that are not tried (default 0)")
    options = parser.parse_args(arguments)
    if not LINES.exists():
        raise LaunchError("Which tests execute a line is not recorded: `python -m benchmarks coverage --suite both`.")
    executed = {str(path.relative_to(ROOT)): files_of_lines(path) for path in _modules()}
    weight = Counter(file for lines in executed.values() for files in lines.values() for file in files)
    faults = chosen(executed, count=options.count, seed=options.seed)
    tree, results = _Tree(directory), Counter[str]()
    try:
        for number, fault in enumerate(faults[options.skip :], options.skip):
            files = sorted(executed[fault.module][fault.line], key=lambda file: weight[file])[:_MOST_FILES]
            outcome, test = tree.try_fault(fault, files)
            results[outcome] += 1
            place = f"{fault.module}:{fault.line}"
            print(f"{number:3} {outcome:10} {fault.kind:8} {place}  {fault.text!r}  {test}", flush=True)
    finally:
        tree.remove()
    print(", ".join(f"{number} {outcome}" for outcome, number in results.most_common()))
    return int(bool(results["at night"]))


def chosen(executed: dict[str, dict[int, set[str]]], *, count: int, seed: int) -> list[Fault]:
    """Return faults in lines that tests execute, in a random order and with equal numbers of each kind."""
    kinds: dict[str, list[Fault]] = {}
    for module, lines in sorted(executed.items()):
        for fault in faults_of(module, (ROOT / module).read_text()):
            if fault.line in lines:
                kinds.setdefault(fault.kind, []).append(fault)
    order = random.Random(seed)
    share = -(-count // len(kinds))
    faults = [fault for _, found in sorted(kinds.items()) for fault in order.sample(found, min(share, len(found)))]
    order.shuffle(faults)
    return faults[:count]


def faults_of(module: str, source: str) -> Iterator[Fault]:
    """Yield all faults that can be put into the functions of a module."""
    functions = functions_of(source)
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.decode()))

    def place(line: int, column: int) -> int:
        # The parser counts bytes.
        return starts[line - 1] + len(lines[line - 1][:column].decode())

    def fault(kind: str, node: ast.expr | ast.stmt, text: str) -> Fault:
        start = place(node.lineno, node.col_offset)
        end = place(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return Fault(kind=kind, module=module, line=node.lineno, start=start, end=end, text=text)

    for node in ast.walk(ast.parse(source)):
        if getattr(node, "lineno", 0) not in functions:
            continue
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield fault("negated", test, f"(not ({ast.unparse(test)}))")
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _WRITES:
                yield fault("dropped", node, "pass")
            case ast.Expr(value=ast.Await(value=ast.Call(func=ast.Attribute(attr=name)))) if name in _WRITES:
                yield fault("dropped", node, "pass")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="scope"), attr="team")):
                yield fault("unscoped", node, "scope.every_team()")
            case ast.Call(func=ast.Attribute(attr=name), keywords=keywords) if name in _QUERIES:
                others = [keyword for keyword in keywords if not (keyword.arg and _TEAM.fullmatch(keyword.arg))]
                if others != keywords:
                    yield fault("unscoped", node, ast.unparse(ast.Call(node.func, node.args, others)))
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OTHER_BOUND:
                text = f"{ast.unparse(left)} {_OTHER_BOUND[type(operator)]} {ast.unparse(right)}"
                yield fault("off by 1", node, f"({text})")


class _Tree:
    """A copy of the checkout, in which tests run."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "tree"
        directory.mkdir(parents=True)
        _git("worktree", "add", "--detach", "--quiet", str(self._path), "HEAD")
        (self._path / ".venv").symlink_to(ROOT / ".venv")

    def try_fault(self, fault: Fault, files: Sequence[str]) -> tuple[str, str]:
        """Return which tests of these files find a fault, and the name of one of them."""
        path = self._path / fault.module
        original = path.read_text()
        for outcome, marks, size in (("found", _IN_CI, "sample"), ("at night", _AT_NIGHT, "full")):
            tell(f"{fault.module}:{fault.line} {fault.kind}: {len(files)} files, {marks}")
            path.write_text(fault.applied(original))
            try:
                test = self._first_failure(files, marks=marks, size=size)
            finally:
                path.write_text(original)
            if test and (test == "-" or not self._first_failure([test], marks=f"{_IN_CI} or {_AT_NIGHT}", size=size)):
                return outcome, test
        return "missed", ""

    def _first_failure(self, tests: Sequence[str], *, marks: str, size: str) -> str:
        """Return the first test that fails; "-" if the run ends without one, or not in time."""
        parallel = ["-n", str(1 + (os.cpu_count() or 1)), "--dist", "loadfile"] if len(tests) > 3 else []
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, *parallel, *tests]
        environment = {**os.environ, "TEST_SIZE": size}
        try:
            done = subprocess.run(
                command, cwd=self._path, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return "-"
        if done.returncode in {0, 5}:
            return ""
        if done.returncode == pytest.ExitCode.USAGE_ERROR:
            raise LaunchError(f"The tests cannot be run; the record may be of other files:\n{done.stdout}{done.stderr}")
        return next(iter(_FAILED.findall(done.stdout)), "-")

    def remove(self) -> None:
        """Remove the copy."""
        _git("worktree", "remove", "--force", str(self._path))


def _modules() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if "/migrations/" not in name and not name.startswith(_OTHER_PROGRAMS):
                yield path


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True)

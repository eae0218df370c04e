"""The record: the functions of the product, and the test files that execute them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import coverage
import orjson

from tests.recording import ROOT

_IMPORT = re.compile(r"^from (tests[\w.]*) import (\([^)]*\)|[^(\n]*)", re.MULTILINE)
RECORD = ROOT / ".test-run" / "executed.json"
LINES = ROOT / ".test-run" / "executed.coverage"
"""The measured data, in the format of coverage.py: the test files that execute each line."""

Record = dict[str, dict[str, list[str]]]
"""By module and function, the test files that execute it. A module's own lines have an empty name."""


def functions_of(source: str) -> dict[int, str]:
    """Return the name of the innermost function for each line in the body of a function."""
    names = dict[int, str]()

    def visit(node: ast.AST, parents: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*parents, child.name)
                # The first line is executed when the module is loaded.
                lines = range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1)
                names.update(dict.fromkeys(lines, ".".join(inner)))
                visit(child, inner)
            else:
                visit(child, (*parents, child.name) if isinstance(child, ast.ClassDef) else parents)

    visit(ast.parse(source), ())
    return names


def write(data: coverage.CoverageData) -> Record:
    """Write the record of measured data and return it."""
    record: Record = {}
    # Templates are measured as well, by the names under which they are compiled.
    for path in filter(lambda path: path.suffix == ".py", map(Path, data.measured_files())):
        functions, found = functions_of(path.read_text()), dict[str, set[str]]()
        for line, contexts in data.contexts_by_lineno(str(path)).items():
            found.setdefault(functions.get(line, ""), set()).update(filter(None, contexts))
        record[str(path.relative_to(ROOT))] = {function: sorted(files) for function, files in found.items()}
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_bytes(orjson.dumps(record, option=orjson.OPT_SORT_KEYS))
    return record


def files_of_lines(module: Path) -> dict[int, set[str]]:
    """Return the test files that executed each line of a module in the latest recorded run."""
    data = coverage.CoverageData(basename=str(LINES))
    data.read()
    lines = data.contexts_by_lineno(str(module))
    return {line: set(files) for line, contexts in lines.items() if (files := [name for name in contexts if name])}


def files_executing(record: Record, module: str, lines: list[int]) -> set[str]:
    """Return the test files that execute the functions of changed lines.

    For lines outside of functions, and for functions that the record does not know, these are all files that execute
    any function of the module.
    """
    if not (functions := record.get(module)):
        return set()
    source = ROOT / module
    names = functions_of(source.read_text()) if source.exists() else {}
    changed = {names.get(line, "") for line in lines} or {""}
    known = {name for name in changed if name and name in functions}
    chosen = {file for name in known for file in functions[name]}
    if known != changed:
        chosen.update(file for name, files in functions.items() if name for file in files)
    return chosen


@cache
def imports_of(path: Path) -> frozenset[Path]:
    """Return the modules of the tests that a module of the tests imports."""
    # Parsing all tests takes seconds.
    names = set[str]()
    for module, imported in _IMPORT.findall(path.read_text()):
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", imported))}
    files = (ROOT / f"{name.replace('.', '/')}.py" for name in names)
    return frozenset(file for file in files if file.exists())


def importing(changed: set[Path]) -> Iterator[Path]:
    """Yield the test files that import a changed module of the tests, directly or indirectly."""

    def reaches(path: Path, seen: set[Path]) -> bool:
        if path in changed:
            return True
        seen.add(path)
        return any(reaches(imported, seen) for imported in imports_of(path) if imported not in seen)

    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if reaches(path, set()):
            yield path

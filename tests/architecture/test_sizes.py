"""Functions stay small enough to be read at once, files small enough to be known."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("platform", "tenants", "conversations", "responses")
MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_FILE = 500


def modules() -> Iterator[tuple[str, str]]:
    """Name and text of each module of the product, migrations apart: Django writes those."""
    for path in [ROOT / "manage.py", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]:
        if "migrations" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{name}:{found.lineno} {found.name}": (found.end_lineno or 0) - found.lineno + 1
        for name, text in modules()
        for found in functions(text)
    }
    assert len(lengths) > 500
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


def test_no_file_outgrows_its_reader() -> None:
    lengths = {name: text.count("\n") for name, text in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = {name for name, text in modules() if text.strip() and ast.get_docstring(ast.parse(text)) is None}
    assert silent == set()

"""The table of errors contains every code that the server sends."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import errors
from core.errors import ApiError, Failure, error_table

ROOT = Path(__file__).parents[2]
_PROGRAMS = {"demo_upstream", "guide", "launcher", "sandbox"}
PRODUCT = [ROOT / name for name in ("tenants", "conversations", "responses")] + [
    folder for folder in (ROOT / "platform").iterdir() if folder.name not in _PROGRAMS
]


def kinds_of_errors(parent: type[ApiError] = ApiError) -> Iterator[type[ApiError]]:
    """All subclasses of a class of errors."""
    for child in parent.__subclasses__():
        yield child
        yield from kinds_of_errors(child)


def test_every_class_of_errors_is_in_the_module() -> None:
    assert {kind.__module__ for kind in kinds_of_errors()} == {"core.errors"}


@pytest.mark.slow
def test_codes_and_statuses_are_written_in_the_table_only() -> None:
    """Other modules raise the error that has the code, and create failures of runs from errors."""
    names = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ApiError)}
    wrong = []
    for path in (path for folder in PRODUCT for path in folder.rglob("*.py") if path.name != "errors.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", "")
                literals = [keyword.arg for keyword in node.keywords if isinstance(keyword.value, ast.Constant)]
                if name == "Failure" or (name in names and {"code", "status"}.intersection(map(str, literals))):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []


def test_no_error_gets_its_code_after_construction() -> None:
    for path in (path for folder in PRODUCT for path in folder.rglob("*.py")):
        assert not re.search(r"\berror\.code = ", path.read_text()), path


@pytest.mark.parametrize("code", errors.UPSTREAM_REJECTIONS)
def test_failures_of_runs_use_codes_of_the_table(code: str) -> None:
    error = Failure(code=code, message="No.", status=400).as_api_error()
    assert error.code in type(error).codes


def test_the_table_has_one_line_for_each_status_and_code() -> None:
    rows = [(status, code) for status, _, code, _ in error_table()]
    assert len(rows) == len(set(rows))
    assert rows == sorted(rows, key=lambda row: row[0])
    assert {code for _, code in rows} == {
        code for kind in kinds_of_errors() for code in (kind.default_code, *kind.codes)
    }

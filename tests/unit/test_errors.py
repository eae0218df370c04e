"""The table of errors: every code that the server sends is in it, and the tree in the documentation shows it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

import pytest

from core import errors
from core.errors import ApiError, Failure, all_codes, error_table

ROOT = Path(__file__).parents[2]
PRODUCT = [ROOT / name for name in ("platform/core", "platform/config", "tenants", "conversations", "responses")]


def tree(kind: type[ApiError] = ApiError, prefix: str = "") -> Iterator[str]:
    """Draw the classes with their statuses and codes."""
    children = kind.__subclasses__()
    for child in children:
        last = child is children[-1]
        status = f" {child.status}" if child.status != kind.status or kind is ApiError else ""
        head = f"{prefix}{'└── ' if last else '├── '}{child.__name__}{status}"
        below = prefix + ("    " if last else "│   ")
        own = child.codes if "codes" in vars(child) else {}
        codes = [code for code in (child.default_code, *own) if code] or ["(code null)"]
        first, *more = wrap(", ".join(codes), 76)
        yield f"{head:<37} {first}".rstrip()
        yield from (f"{below:<37} {line}" for line in more)
        yield from tree(child, below)


def test_the_tree_in_the_docstring_is_that_of_the_classes() -> None:
    drawn = "\n".join(f"    {line}" for line in ["ApiError", *tree()])
    assert drawn in (errors.__doc__ or ""), f"replace the tree in core/errors.py by:\n{drawn}"


def test_every_class_of_errors_is_in_the_module() -> None:
    def below(kind: type[ApiError]) -> Iterator[type[ApiError]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    assert {kind.__module__ for kind in below(ApiError)} == {"core.errors"}


def literals() -> Iterator[tuple[str, str | None, ast.expr]]:
    """Every `code=` of a call that builds an error: place, name of the class, and value."""
    names = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ApiError)}
    for path in (path for folder in PRODUCT for path in folder.rglob("*.py") if path.name != "errors.py"):
        text = path.read_text()
        # Parsing every module takes seconds.
        for node in ast.walk(ast.parse(text)) if "code=" in text else ():
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", None)
                for keyword in node.keywords:
                    if keyword.arg == "code" and name in {*names, "Failure"}:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", name, keyword.value


@pytest.mark.slow
def test_no_code_is_raised_that_is_not_in_the_table() -> None:
    found = list(literals())
    assert len(found) > 60
    for place, name, value in found:
        branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        for branch in branches:
            text = branch.value if isinstance(branch, ast.Constant) else None
            if name == "Failure":
                # Some take the code of an error class or of an upstream, which are in the table by construction.
                assert text is None or text in all_codes(), place
            else:
                assert text in {getattr(errors, name or "").default_code, *getattr(errors, name or "").codes}, place


def test_no_error_gets_a_code_after_it_was_built() -> None:
    for path in (path for folder in PRODUCT for path in folder.rglob("*.py")):
        assert not re.search(r"\berror\.code = ", path.read_text()), path


@pytest.mark.parametrize("code", errors.UPSTREAM_REJECTIONS)
def test_failures_of_runs_have_codes_of_the_table(code: str) -> None:
    error = Failure(code=code, message="No.", status=400).as_api_error()
    assert error.code in type(error).codes


def test_the_table_has_one_line_for_each_status_and_code() -> None:
    rows = [(status, code) for status, _, code, _ in error_table()]
    assert len(rows) == len(set(rows))
    assert rows == sorted(rows, key=lambda row: row[0])
    assert {code for _, code in rows if code} == all_codes()

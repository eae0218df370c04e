"""Django's file objects get their name from our code, never from the file that they wrap.

Otherwise the wrapper takes the name of the wrapped file. An unnamed temporary file has the number of its descriptor as
its name; a spooled one gets it only when it grows beyond its limit, so tests with small files would pass.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.test_structure import modules

# Has a path of its own, and a name as its first argument.
NAMED = {"TemporaryUploadedFile"}


def unnamed_files(source: str) -> Iterator[int]:
    """Yield the lines that wrap a file in one of Django's classes without naming it."""
    if "django.core.files" not in source:
        return
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    classes = {
        alias.asname or alias.name
        for node in imports
        if node.module in {"django.core.files", "django.core.files.base", "django.core.files.uploadedfile"}
        for alias in node.names
        if alias.name not in NAMED
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        is_wrapper = isinstance(call.func, ast.Name) and call.func.id in classes
        if is_wrapper and "name" not in {keyword.arg for keyword in call.keywords}:
            yield call.lineno


@pytest.mark.slow
def test_every_wrapped_file_is_named() -> None:
    found = {name: list(unnamed_files(path.read_text())) for name, path in modules().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from django.core.files.uploadedfile import UploadedFile\nUploadedFile(content, size=3)",
        "from django.core.files import File as Content\nContent(content)",
        "from django.core.files.base import ContentFile\nContentFile(b'')",
    ],
    ids=["uploaded", "renamed", "in memory"],
)
def test_a_wrapper_without_a_name_is_found(source: str) -> None:
    assert list(unnamed_files(source)) == [2]

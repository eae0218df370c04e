"""The threat model names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "threat-model.md"
ROW = re.compile(r"^\| (?!threat |advisory |actor |---|-)(.+?) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def functions(file: Path) -> set[str]:
    """Return the names of all functions of a file."""
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.slow
def test_every_threat_names_a_test_that_exists() -> None:
    text = PAGE.read_text()
    rows = [row.split(" | ") for row in ROW.findall(text[text.index("## Vulnerabilities") :])]
    assert len(rows) > 50
    for threat, *_, last in rows:
        named = TEST.findall(last)
        assert named, f"“{threat}” names no test"
        assert ", ".join(f"`{file}::{name}`" for file, name in named) == last
        for file, name in named:
            assert name in functions(ROOT / file), f"“{threat}” names a test that does not exist: {name}"

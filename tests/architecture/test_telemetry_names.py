"""Names of OpenTelemetry's conventions are in one module, so that a changed convention changes one file."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from core.telemetry import telemetry_names

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("platform", "tenants", "conversations", "responses")
NAMES = Path("platform/core/telemetry/telemetry_names.py")
DOTTED = re.compile(r"[a-z_]+(\.[a-z_]+)+")
# Namespaces that nothing else here uses, unlike `http.`, which ASGI has too.
NAMESPACES = ("gen_ai.", "service.", "ors.")


@cache
def texts() -> dict[Path, str]:
    """Return the modules of the product, without the one of the names."""
    found = {path.relative_to(ROOT): path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")}
    return {name: path.read_text() for name, path in found.items() if name != NAMES}


def modules_with(*parts: str) -> dict[Path, ast.Module]:
    """Return the syntax trees of the modules that contain one of these texts; parsing all of them takes seconds."""
    return {name: ast.parse(text) for name, text in texts().items() if any(part in text for part in parts)}


def strings(tree: ast.Module) -> set[str]:
    """Return all string constants of a module."""
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {node.value for node in constants if isinstance(node.value, str)}


def records(tree: ast.Module) -> bool:
    """Return true if a module gives names to spans, attributes or instruments."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any("telemetry_names" in [name.name for name in node.names] for node in imports)


@pytest.mark.slow
def test_no_other_module_contains_a_name_of_opentelemetry() -> None:
    names = {value for value in vars(telemetry_names).values() if isinstance(value, str) and DOTTED.fullmatch(value)}
    assert len(names) > 20
    for module, tree in modules_with(*names, *NAMESPACES).items():
        found = {one for one in strings(tree) if one in names or (DOTTED.fullmatch(one) and one.startswith(NAMESPACES))}
        assert found == set(), module


def test_modules_that_record_telemetry_define_no_names() -> None:
    recording = {module: tree for module, tree in modules_with("telemetry_names").items() if records(tree)}
    assert len(recording) > 2
    for module, tree in recording.items():
        assert {one for one in strings(tree) if DOTTED.fullmatch(one)} == set(), module


def test_no_module_uses_the_names_of_the_sdk() -> None:
    for module, tree in modules_with("semconv").items():
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.startswith("opentelemetry.semconv") for name in imported), module

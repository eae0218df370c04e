"""The import graph stays small and acyclic, imports point down, and every module states its purpose.

A node is a package or module directly below `responses/`, another app, or a package in `platform/`. An edge is drawn
from A to B if a module of A imports one of B, also inside a function. Run with `-s` to see the figures.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APPS = ("responses", "conversations", "tenants")
PLATFORM = tuple(sorted(path.name for path in (ROOT / "platform").iterdir() if any(path.glob("*.py"))))
# It names the apps in its routes and settings, so only the processes that it starts may import it.
COMPOSITION = "server"
# They run as processes of their own.
PROGRAMS = {"demo_upstream", "guide", "launcher", "sandbox"}

Edges = dict[tuple[str, str], set[str]]


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    folders = [ROOT / app for app in APPS] + [ROOT / "platform" / name for name in PLATFORM]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    return {dotted_name(path): path for path in paths}


def dotted_name(path: Path) -> str:
    """The name under which a file is imported; a package has the name of its folder."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "platform":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """The modules of the product that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules() else node.module for name in full}
    return frozenset(names & modules().keys())


def import_contracts() -> ConfigParser:
    """The configuration of import-linter."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    return contracts


def child_of_responses(module: str) -> str | None:
    """The package or module below `responses/` that a module belongs to; None for other modules."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "responses" and len(parts) > 1 else None


def top_level(module: str) -> str | None:
    """The node of the whole product's graph that a module belongs to; None for `responses/__init__.py`."""
    app = module.partition(".")[0]
    return child_of_responses(module) if app == "responses" else app


def edges(node_of: Callable[[str], str | None]) -> Edges:
    """The imports between different nodes, each with the modules that cause it."""
    found: Edges = defaultdict(set)
    for module, path in modules().items():
        for imported in imported_modules(path):
            importer, target = node_of(module), node_of(imported)
            if importer and target and importer != target:
                found[importer, target].add(module)
    return found


def nodes(node_of: Callable[[str], str | None]) -> set[str]:
    """The nodes of a graph, also those without an edge."""
    return {node for node in map(node_of, modules()) if node}


def sorted_nodes(graph: Edges) -> list[str]:
    """The nodes with the imported before the importing ones; raises `CycleError` where there is a cycle."""
    predecessors: dict[str, set[str]] = defaultdict(set)
    for importer, target in graph:
        predecessors[importer].add(target)
    return list(TopologicalSorter(predecessors).static_order())


def documented_modules() -> Iterator[tuple[str, str]]:
    """Every module that contains code, migrations excepted, with its text."""
    for name, path in modules().items():
        if "migrations" not in path.parts and path.read_text().strip():
            yield name, path.read_text()


@pytest.mark.slow
def test_the_whole_graph_stays_small_and_has_no_cycle() -> None:
    graph = edges(top_level)
    print(f"whole product: {len(nodes(top_level))} nodes, {len(graph)} edges")
    assert sorted_nodes(graph)
    assert len(nodes(top_level)) <= 38
    assert len(graph) <= 236


def test_the_graph_of_responses_stays_small_and_has_no_cycle() -> None:
    graph = edges(child_of_responses)
    print(f"responses: {len(nodes(child_of_responses))} nodes, {len(graph)} edges")
    assert sorted_nodes(graph)
    assert len(nodes(child_of_responses)) <= 17
    assert len(graph) <= 50


def test_the_server_imports_all_apps() -> None:
    assert {target for importer, target in edges(top_level) if importer == COMPOSITION} >= {"responses.api", "tenants"}


def test_the_layers_name_every_package() -> None:
    """Import-linter finds imports that point upward, but only of packages that its contract lists."""
    contracts = import_contracts()
    listed = set(contracts["importlinter"]["root_packages"].split())
    layers = set(contracts["importlinter:contract:apps"]["layers"].replace("|", " ").split())
    assert listed == {*APPS, *PLATFORM}
    assert layers == listed - PROGRAMS


def test_no_contract_has_more_than_nine_layers() -> None:
    layers = {
        name: section["layers"].split("\n") for name, section in import_contracts().items() if "layers" in section
    }
    assert {name: len(lines) - 1 for name, lines in layers.items() if len(lines) - 1 > 9} == {}


def test_no_package_has_a_quarter_of_the_lines() -> None:
    lines: Counter[str] = Counter()
    for module, path in modules().items():
        lines[module.partition(".")[0]] += path.read_text().count("\n")
    print(", ".join(f"{name} {100 * number / lines.total():.1f} %" for name, number in lines.most_common()))
    assert {name for name, number in lines.items() if number > lines.total() / 4} == set()


def test_no_folder_has_more_than_twenty_modules() -> None:
    folders = Counter(path.parent.relative_to(ROOT) for path in modules().values() if path.name != "__init__.py")
    assert {folder: number for folder, number in folders.items() if number > 20} == {}


def test_every_module_states_its_purpose() -> None:
    # Parsing every module takes seconds.
    unusual = {name: text for name, text in documented_modules() if not text.startswith('"""')}
    assert {name for name, text in unusual.items() if ast.get_docstring(ast.parse(text)) is None} == set()

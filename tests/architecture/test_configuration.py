"""Environment variables are read in one place and documented."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("platform", "tenants", "conversations", "responses")
READERS = {"text", "required", "choice", "flag", "integer", "integers", "names", "origins", "port"}
# The last one is a script that sets required settings which it does not use.
MAY_READ = ("platform/server/env.py", "platform/launcher/", "platform/guide/commands.py")
ROW = re.compile(r"^\| `([A-Z_]+)` \|.*\| ([SUT ]+) \|$", re.MULTILINE)


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text(), filename=str(path))


def settings_variables() -> set[str]:
    """Return the names of the variables that the settings read."""
    calls = [node for node in ast.walk(parsed(ROOT / "platform/server/settings.py")) if isinstance(node, ast.Call)]
    names = set()
    for call in calls:
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name("env"), attr=reader), args=[ast.Constant(str(name)), *_]):
                assert reader in READERS, f"env.{reader} is not known to this test"
                names.add(name)
    return names


def documented(reader: str) -> set[str]:
    """Return the variables documented as read by the settings (S), `up` (U) or `test` (T)."""
    table = ROW.findall((ROOT / "docs/reference/configuration.md").read_text())
    return {name for name, by in table if reader in by.split()}


def strings(folder: str) -> set[str]:
    """Return all string constants in the code of a folder."""
    trees = [parsed(path) for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def environment_uses(path: Path) -> Iterator[ast.AST]:
    """Yield the places where a module accesses the environment of its process."""
    # Parsing every module takes seconds.
    for node in ast.walk(parsed(path)) if re.search("environ|getenv|putenv", path.read_text()) else ():
        match node:
            case ast.Attribute(value=ast.Name("os"), attr="environ" | "environb" | "getenv" | "putenv"):
                yield node
            case ast.ImportFrom(module="os", names=names) if {"environ", "getenv"} & {name.name for name in names}:
                yield node


def test_all_variables_of_the_settings_are_documented_and_no_others() -> None:
    assert documented("S") == settings_variables()


@pytest.mark.slow
def test_documented_launcher_variables_exist() -> None:
    assert documented("U") | documented("T") <= strings("platform/launcher") | settings_variables()
    assert documented("T") == {name for name in strings("platform/launcher") if name.startswith("TEST_")}


def test_only_settings_and_launcher_read_the_environment() -> None:
    modules = {path.relative_to(ROOT).as_posix(): path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")}
    elsewhere = {name: path for name, path in modules.items() if not name.startswith(MAY_READ)}
    # The interpreter of a container runs in an environment of its own, and sets the effect id of each call there.
    assert {name for name, path in elsewhere.items() if any(environment_uses(path))} == {
        "platform/server/asgi.py",
        "platform/sandbox/inside/interpreter.py",
    }


def test_the_asgi_module_only_sets_the_settings_module() -> None:
    source = (ROOT / "platform/server/asgi.py").read_text()
    assert source.count("environ") == 1
    assert 'os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")' in source

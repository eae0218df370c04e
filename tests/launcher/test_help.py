"""Help and versions without packages, and with them."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from launcher import commands
from tests.launcher.checkout import ROOT, Checkout


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_fits_on_one_screen(checkout: Checkout, arguments: list[str]) -> None:
    done = checkout.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    for name in ("up", "test", "install", "web", "worker", "beat", "create_key", "add_upstream", "seed_demo"):
        assert any(line.startswith(f"  {name} ") for line in lines)
    assert not checkout.venv.exists()


def test_the_overview_lists_every_command_of_ours() -> None:
    files = [path for path in ROOT.glob("*/management/commands/*.py") if path.stem != "__init__"]
    files += [path for path in ROOT.glob("platform/*/management/commands/*.py") if path.stem != "__init__"]
    assert len(files) > 5
    assert {path.stem for path in files} <= commands.SUMMARIES.keys()


def test_the_overview_uses_the_help_texts_of_the_commands() -> None:
    for path in [*ROOT.glob("*/management/commands/*.py"), *ROOT.glob("platform/*/management/commands/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "help":
                text = ast.literal_eval(node.value)
                # The first words; the help of a command may say more.
                assert commands.SUMMARIES[path.stem].split()[:3] == text.rstrip(".").split()[:3]


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_option_prints_the_version_of_the_platform(checkout: Checkout, arguments: list[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert checkout.run(*arguments).stdout == f"responses-platform {version}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["up", "--help"], "--port PORT"),
        (["help", "up"], "--no-input"),
        (["test", "--help"], "python3 manage.py test -m slow"),
        (["help", "test"], "PYTEST OPTIONS"),
        (["install", "--help"], "--compile"),
        (["sandbox", "--help"], "in isolation"),
        (["help", "create_key"], "create_key: Create an API key for a team."),
        (["web", "--help"], "run `python3 manage.py install`"),
    ],
)
def test_help_installs_nothing(checkout: Checkout, arguments: list[str], text: str) -> None:
    done = checkout.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert text in done.stdout
    assert not checkout.venv.exists()


def test_help_about_an_unknown_command_suggests_a_similar_one(checkout: Checkout) -> None:
    done = checkout.run("help", "creat_key")
    assert done.returncode == 1
    assert done.stderr.startswith("error: creat_key is not a command of this platform. Did you mean create_key?")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["help", "create_key"], ["create_key", "--help"]])
def test_the_complete_help_needs_packages_but_no_settings(tmp_path: Path, arguments: list[str]) -> None:
    here = Checkout(root=ROOT, variables={"PATH": "/usr/bin:/bin", "STATE_DIR": str(tmp_path)})
    done = here.run(*arguments, python=sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--team TEAM" in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)

"""Documented commands that test_execution does not run: in sentences, in tables and on other pages.

The tests and measurements in CONTRIBUTING.md and the README of the benchmarks would take minutes. Each command is
compared with its parser instead: it exists and has the documented options and paths.
"""

import importlib.util
import re
import shlex
import sys
from argparse import ArgumentParser
from functools import cache
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from benchmarks.__main__ import COMMANDS as BENCHMARKS
from benchmarks.matrix import main as default_benchmark
from guide.commands import parsers
from tests.docs.blocks import DOCUMENTED, ROOT, blocks, code_spans, manage_commands

# Their options are those of pytest and Celery. Tests of the launcher run `test`, that of operations.md runs `celery`.
FOREIGN = {"test", "celery"}


@cache
def ours() -> dict[str, ArgumentParser]:
    return dict(parsers())


def texts(page: Path) -> list[str]:
    return [*(block.text for block in blocks(page)), *code_spans(page)]


def given(arguments: list[str]) -> set[str]:
    """The options among the arguments. Brackets mark an optional one."""
    words = (word.strip("[]") for word in arguments)
    return {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_the_platform_have_the_options_that_are_documented(page: Path) -> None:
    used = [arguments for text in texts(page) for arguments in manage_commands(text)]
    # Also without `manage.py`, as in "`create_key --tools mcp`".
    used += [span.split() for span in code_spans(page) if re.match(r"[a-z_]+ --", span) and span.split()[0] in ours()]
    for name, *arguments in filter(None, used):
        if name in {"COMMAND", "…", "help"} or name.startswith("-"):
            continue
        known = ours().get(name)
        if known is None and name not in FOREIGN:
            assert name in get_commands(), f"manage.py {name}"
            known = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
        if known is not None and name not in FOREIGN:
            assert given(arguments) <= known._option_string_actions.keys() | {"--help"}, (name, arguments)
        paths = [word for word in arguments if name == "test" and word.startswith("tests/")]
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_benchmarks_have_the_options_that_are_documented(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in texts(page):
        for line in re.findall(r"-m benchmarks\b ?([^\n#]*)", text):
            name, *arguments = shlex.split(line) or [""]
            command = BENCHMARKS.get(name, default_benchmark)
            assert name in BENCHMARKS or name.startswith("-") or not name, f"benchmarks {name}"
            with pytest.raises(SystemExit):
                command(["--help"], directory=ROOT)
            listed = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            assert given([name, *arguments]) <= listed, line


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_modules_and_make_targets_exist(page: Path) -> None:
    requirements = (ROOT / "requirements" / "development.txt").read_text()
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for text in texts(page):
        for program in re.findall(r"\.venv/bin/([\w.-]+)", text):
            # Of a package that `install --dev` installs, if not of this environment or of every virtual environment.
            declared = re.search(rf"^{program}==", requirements, re.MULTILINE)
            assert declared or program == "activate" or (Path(sys.prefix) / "bin" / program).exists(), program
        for module in re.findall(r"python3? -m ([\w.]+)", text):
            assert importlib.util.find_spec(module), module
        for target in re.findall(r"^make (\w+)$", text, re.MULTILINE):
            assert target in targets, f"make {target}"


def test_the_documented_commands_match_the_recipe_of_make_lock() -> None:
    [block] = [one for one in blocks(ROOT / "CONTRIBUTING.md") if "uv export" in one.text]
    recipe = re.search(r"^lock:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    expected = recipe[1].replace("\t", "").replace("$(bin)", ".venv/bin").replace(" --quiet", "")
    assert block.text == expected

"""Published results: committed files, and the tables in docs/ that are made from them.

A command with `--publish` writes its result to `published/NAME.json`. Sections of the pages, between the comments
`<!-- benchmark NAME VIEW -->` and `<!-- end -->`, are rewritten from these files; a test compares both.
"""

import json
import os
import platform as machine
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import Floor
from core import interpreter

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "published"
PAGES = ("docs/concepts/comparison.md", "docs/concepts/performance.md", "docs/howto/sizing.md")

Content = Mapping[str, Any]
View = Callable[[Content], str]
"""Renders a result as Markdown."""

_SECTION = re.compile(r"(<!-- benchmark (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def conditions() -> dict[str, Any]:
    """Return the date and the machine of a measurement."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "python": machine.python_version(),
        "interpreter": interpreter.current().describe(),
    }


def parser(name: str, *, description: str | None) -> ArgumentParser:
    """Return the parser of a command with `--check` and `--publish`."""
    found = ArgumentParser(prog=f"python -m benchmarks {name}", description=description)
    found.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    found.add_argument("--publish", action="store_true", help="write the result into the documentation")
    return found


def conclude(name: str, options: Namespace, *, content: Content, floors: Sequence[Floor]) -> int:
    """Publish a result with its limits if the options say so, and return the exit status of the command."""
    if options.publish:
        publish(name, {**content, "floors": [asdict(floor) for floor in floors]})
    return 1 if options.check and not all(floor.holds for floor in floors) else 0


def publish(name: str, content: Content) -> None:
    """Store a result as the published one."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def load(name: str) -> Content | None:
    """Return the published result of a command, or None if there is none yet."""
    file = FOLDER / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def rendered(page: str, views: Mapping[str, Mapping[str, View]], *, loaded: Callable[[str], Content | None]) -> str:
    """Return a page with its sections made from the published results. Raises KeyError for an unknown view."""

    def section(match: re.Match[str]) -> str:
        opening, name, view, closing = match.groups()
        content = loaded(name)
        if content is None:
            text = f"To be measured: `.venv/bin/python -m benchmarks {name} --publish` fills in this table."
        else:
            text = views[name][view](content)
        return f"{opening}\n{text}\n\n{closing}"

    return _SECTION.sub(section, page)


def update_pages(views: Mapping[str, Mapping[str, View]]) -> None:
    """Rewrite the sections of all pages."""
    for name in PAGES:
        page = ROOT / name
        page.write_text(rendered(page.read_text(), views, loaded=load))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(figure: float | None) -> str:
    """Format a figure with three digits, or a dash if it was not measured."""
    if figure is None:
        return "–"
    if isinstance(figure, int) or abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.2f}"

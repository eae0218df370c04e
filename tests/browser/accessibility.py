"""Accessibility of pages, checked by axe-core."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visiting import Visit
from tests.support.web import ROOT

HERE = Path(__file__).parent


def axe_script() -> str:
    """Return the script of axe-core, installed by the lock file and reinstalled only when that changes."""
    if not shutil.which("npm"):
        pytest.skip("axe-core needs npm, which is not here; `apt-get install -y npm` installs it.")
    home = ROOT / ".test-run" / "axe"
    wanted = (HERE / "package-lock.json").read_bytes()
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists() or (home / "package-lock.json").read_bytes() != wanted:
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, home)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=home, env={**os.environ}, check=True, capture_output=True, timeout=100)
    return script.read_text()


def violations(visit: Visit, axe: str, name: str) -> list[str]:
    """Return the violations in the current theme, one line for each rule, with the page's name and the elements."""
    return [f"{name}: {line}" for line in _run(visit, axe, "{}")]


def findings(visit: Visit, axe: str) -> list[str]:
    """Return the violations in light and dark mode. Rules that do not depend on colours are checked once."""
    # During a transition, axe would measure the contrast of a colour between two states.
    visit.page.add_style_tag(content="*, ::before, ::after { animation: none !important; transition: none !important }")
    visit.page.evaluate(_DARK, False)
    light = _run(visit, axe, "{}")
    visit.page.evaluate(_DARK, True)
    dark = _run(visit, axe, "{runOnly: ['color-contrast', 'link-in-text-block']}")
    visit.page.evaluate(_DARK, False)
    return [*light, *(f"dark: {line}" for line in dark)]


_DARK = "isDark => document.documentElement.classList.toggle('dark', isDark)"


def _run(visit: Visit, axe: str, options: str) -> list[str]:
    if not visit.page.evaluate("'axe' in window"):
        visit.page.evaluate(axe)
    result = visit.page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], ...{options}}})")
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}: "
        + "; ".join(node["html"][:140] + reason(node) for node in rule["nodes"][:3])
        for rule in result["violations"]
    ]


def reason(node: dict[str, Any]) -> str:
    """Return the colours of a contrast violation."""
    data: dict[str, Any] = next((check["data"] for check in node["any"] if isinstance(check.get("data"), dict)), {})
    return f" [{data['fgColor']} on {data['bgColor']}: {data['contrastRatio']}]" if data.get("fgColor") else ""

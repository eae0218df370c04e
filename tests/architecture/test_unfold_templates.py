"""Templates that replace those of Unfold differ from them only as the file `unfold_templates.diff` says.

If a test fails after an update of Unfold: copy its template to `templates/`, make the changes of the file again, and
write the file anew: `.venv/bin/python -m tests.architecture.test_unfold_templates > FILE`.
"""

import difflib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
import unfold

OURS = Path(__file__).resolve().parents[2] / "templates"
UNFOLD = Path(unfold.__file__).parent
LISTED = Path(__file__).with_name("unfold_templates.diff")
# Our other templates of the same names do not resemble Unfold's.
DERIVED = [
    "admin/base.html",
    "admin/change_list_results.html",
    "unfold/helpers/command.html",
    "unfold/helpers/edit_inline/tabular_heading.html",
    "unfold/helpers/fieldsets_tabs.html",
    "unfold/helpers/header.html",
    "unfold/helpers/navigation.html",
    "unfold/helpers/navigation_header.html",
    "unfold/helpers/navigation_user.html",
    "unfold/helpers/search.html",
    "unfold/helpers/tab_items.html",
    "unfold/helpers/welcomemsg.html",
    "unfold/layouts/skeleton.html",
    "unfold/layouts/unauthenticated.html",
]


def differences(name: str) -> str:
    """Return the differences between Unfold's template and ours."""
    theirs, ours = (path.read_text().splitlines(keepends=True) for path in (UNFOLD / "templates" / name, OURS / name))
    return "".join(difflib.unified_diff(theirs, ours, f"unfold/{name}", f"templates/{name}", n=1))


@pytest.mark.parametrize("name", DERIVED)
def test_our_templates_differ_from_unfolds_only_in_the_listed_changes(name: str) -> None:
    assert differences(name) in LISTED.read_text(), f"{name} of Unfold {version()} or ours has changed"


def test_unfold_still_ships_the_alpine_version_that_ours_replaces() -> None:
    """With another version, try whether Unfold's plugins and templates work with `static/alpine`, or update that."""
    script = (UNFOLD / "static" / "unfold" / "js" / "alpine" / "alpine.js").read_text()
    assert re.findall(r'version:"([\d.]+)"', script) == ["3.14.9"], f"Unfold {version()} has another version of Alpine"


def test_one_template_loads_alpine_for_every_unfold_page() -> None:
    loading = [path for path in UNFOLD.rglob("*.html") if "alpine/alpine.js" in path.read_text()]
    assert [path.relative_to(UNFOLD / "templates").as_posix() for path in loading] == ["unfold/layouts/skeleton.html"]


def version() -> str:
    """Return the version of Unfold."""
    return importlib.metadata.version("django-unfold")


if __name__ == "__main__":
    sys.stdout.write("".join(map(differences, DERIVED)))

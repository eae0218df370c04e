"""Templates that replace those of Unfold differ from them in nothing but what Alpine's CSP build needs.

If a test fails after an update of Unfold: copy its template to `templates/`, make these changes again, and correct them
here if its text has changed.
"""

import importlib.metadata
import re
from pathlib import Path

import pytest
import unfold

OURS = Path(__file__).resolve().parents[2] / "templates"
UNFOLD = Path(unfold.__file__).parent
# For each template, texts of Unfold and their replacements.
CHANGES = {
    "unfold/layouts/skeleton.html": {
        "unfold/js/alpine/alpine.js": "alpine/alpine.csp.js",
        """x-data="{
                  {% if opts %}activeTab: '{% tabs_primary_active inline_admin_formsets %}',{% endif %}
                  sidebarMobileOpen: false,
                  sidebarDesktopOpen: (localStorage.getItem('sidebarDesktopOpen') !== null) ? (localStorage.getItem('sidebarDesktopOpen') == '1') : true
                  }"
          x-init="
                  activeTab = {% if opts %}getCurrentTab() || '{% tabs_primary_active inline_admin_formsets %}'{% else %}''{% endif %};
                  $watch('sidebarDesktopOpen', value => localStorage.setItem('sidebarDesktopOpen', value ? '1' : '0'));
                 "
""":  # noqa: E501
        """x-data="page({% if opts %}'{% tabs_primary_active inline_admin_formsets %}'{% endif %})"
""",
    },
    "unfold/helpers/welcomemsg.html": {
        "sidebarDesktopOpen = !sidebarDesktopOpen; localStorage.setItem('sidebarDesktopOpen', sidebarDesktopOpen ? '1' : '0');":  # noqa: E501
        "sidebarDesktopOpen = !sidebarDesktopOpen",
    },
    "unfold/helpers/command.html": {
        "if (!$event.metaKey && !$event.ctrlKey) selectItem(": "!$event.metaKey && !$event.ctrlKey && selectItem(",
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_our_templates_differ_from_unfolds_only_in_the_listed_changes(name: str) -> None:
    expected = (UNFOLD / "templates" / name).read_text()
    for theirs, ours in CHANGES[name].items():
        assert expected.count(theirs) == 1, f"Unfold {version()} has changed {name}: {theirs!r} is missing"
        expected = expected.replace(theirs, ours)
    assert (OURS / name).read_text() == expected, f"Unfold {version()} has changed {name}; copy it and make the changes"


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

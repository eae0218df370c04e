"""The documentation refers only to existing files, and the glossary stays short."""

import re
from pathlib import Path

import pytest
from django.apps import apps

from tests.architecture.test_structure import APPS, PLATFORM

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
# A path in backticks below a top-level folder, without placeholders.
PATH = re.compile(
    r"`((?:platform|responses|conversations|tenants|tests|docs|static|templates|benchmarks|deploy)/[\w./-]*)`"
)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
MAX_TERMS = 40


def without_history() -> list[Path]:
    """Yield all documents except the changelog, which may refer to files that no longer exist."""
    return [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]


@pytest.mark.parametrize("document", without_history(), ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_documents_exist(document: Path) -> None:
    missing = {path for path in PATH.findall(document.read_text()) if not (ROOT / path).exists()}
    assert missing == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_to_files(document: Path) -> None:
    # Programs may contain what looks like a link, such as `FUNCTIONS[name](**arguments)`.
    prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = {target for target in LINK.findall(prose) if not (document.parent / target).exists()}
    assert targets == set()


def test_the_glossary_has_at_most_forty_terms_in_alphabetical_order() -> None:
    glossary = (ROOT / "docs/concepts/glossary.md").read_text()
    rows = re.findall(r"^\| (?!term \|)([^|-][^|]*) \| .+ \|$", glossary, re.MULTILINE)
    assert 20 <= len(rows) <= MAX_TERMS
    assert rows == sorted(rows, key=str.lower)


def test_every_table_is_described() -> None:
    ours = [config for config in apps.get_app_configs() if config.name.split(".")[0] in {*APPS, *PLATFORM}]
    models = {model.__name__ for config in ours for model in config.get_models()}
    assert set(re.findall(r"`([A-Z]\w+)`", (ROOT / "docs/concepts/tables.md").read_text())) == models


def test_every_package_of_responses_is_described() -> None:
    page = (ROOT / "docs/concepts/packages.md").read_text()
    packages = {path.parent.name for path in (ROOT / "responses").glob("*/__init__.py")} - {"migrations"}
    assert {name for name in packages if f"`{name}/`" not in page} == set()

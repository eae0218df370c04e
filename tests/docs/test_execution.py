"""Every command and program of README.md and docs/ is run as printed, and prints what the page says.

Each page is followed from top to bottom in a session of its own, against one platform that runs from a copy of the
checkout. `tests/docs/instance.py` has the table of what cannot run in a test, and what is run instead.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.instance import Instance, running_instance
from tests.docs.session import Session, shows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FOLLOWED = [page for page in PAGES if any(one.language in {"bash", "python", "sql"} for one in blocks(page))]


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    """The platform that readers have started. Its directory is one that the account of the database can enter."""
    directory = ROOT / ".test-run" / f"docs-{os.getpid()}"
    directory.mkdir(parents=True)
    try:
        with running_instance(directory) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_page_works_as_printed(instance: Instance, page: Path, tmp_path: Path) -> None:
    key = (instance.checkout / ".run" / "demo-key").read_text().strip()
    base_url = instance.substitute("http://127.0.0.1:8000/v1")
    # Set in the terminal of the reader, as the README says.
    environment = {**instance.environment, "OPENAI_API_KEY": key, "OPENAI_BASE_URL": base_url}
    session = Session(directory=instance.checkout, scratch=tmp_path / "session", environment=environment)
    printed = ""
    try:
        for block in blocks(page):
            text = instance.substitute(block.text)
            try:
                if block.file:
                    session.save(block.file, text)
                elif block.excerpt_of or block.is_diagram:
                    continue  # compared with its module by test_blocks; a drawing
                elif block.language == "bash":
                    printed = session.bash(text)
                elif block.language == "python":
                    printed = session.python(text, name=str(block))
                elif block.language == "sql":
                    instance.sql(text)
                elif block.language == "text":
                    assert shows(printed, text), f"documented:\n{text}\nprinted:\n{printed}"
            except AssertionError as failure:
                raise AssertionError(f"{block}: {failure}") from None
    finally:
        session.close()

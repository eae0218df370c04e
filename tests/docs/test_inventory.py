"""Every code block of the documentation is executed, checked by a test of its own, or on a page with a reason."""

import re
from pathlib import Path

import pytest

from tests.docs import inventory
from tests.docs.blocks import DOCUMENTED, ROOT
from tests.docs.inventory import DOCUMENTS, NOT_EXECUTED, PARTS_EXECUTED, blocks_with_tests

PAGES = sorted(str(page.relative_to(ROOT)) for page in {*DOCUMENTED, *(ROOT / "deploy").rglob("*.md")})
NAMED = {
    inventory.FOLLOWED_BY,
    inventory.REFERENCE,
    *(reason.test for reason in NOT_EXECUTED.values()),
    *(test for tests in PARTS_EXECUTED.values() for test in tests.values()),
    *(test for tests in DOCUMENTS.values() for test in tests),
}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_test(page: str) -> None:
    untested = [f"{block} ({block.language})" for block, test in blocks_with_tests(page) if test is None]
    assert not untested, f"list their tests in tests/docs/inventory.py: {untested}"


@pytest.mark.parametrize("page", DOCUMENTS)
def test_every_listed_test_belongs_to_a_block(page: str) -> None:
    listed = [test for _, test in blocks_with_tests(page) if test in DOCUMENTS[page]]
    assert listed == DOCUMENTS[page]


@pytest.mark.parametrize("page", NOT_EXECUTED)
def test_pages_that_are_not_executed_have_blocks(page: str) -> None:
    assert NOT_EXECUTED[page].test in {test for _, test in blocks_with_tests(page)}


@pytest.mark.parametrize("test", sorted(NAMED))
def test_the_named_tests_exist(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("language", ["json", "toml", "promql", "http", "bash", ""])
def test_a_block_without_a_test_is_found(tmp_path: Path, language: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```{language}\n1\n```\n")
    assert [test for _, test in blocks_with_tests(str(page))] == [None]

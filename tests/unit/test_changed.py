"""`manage.py test --changed`: which test files a change can affect."""

from pathlib import Path

import pytest

from tests.changed import lines_of
from tests.recording import ROOT
from tests.recording.record import Record, files_executing, functions_of, importing

MODULE = "platform/core/redaction.py"
SOURCE = """import os

LIMIT = 3


class House:
    rooms = 2

    def open(
        self,
    ):
        def inner():
            return 1

        return inner()


def close():
    return LIMIT
"""


def test_lines_belong_to_the_innermost_function() -> None:
    names = functions_of(SOURCE)
    assert {line: names.get(line) for line in (3, 7, 12, 13, 15, 19)} == {
        3: None,
        7: None,
        12: "House.open",
        13: "House.open.inner",
        15: "House.open",
        19: "close",
    }


DIFF = """diff --git a/responses/a.py b/responses/a.py
index 1..2 100644
--- a/responses/a.py
+++ b/responses/a.py
@@ -3 +3 @@ def a():
-    return 1
+    return 2
@@ -10,2 +9,0 @@ def b():
-    x = 1
-    y = 2
diff --git a/docs/b.md b/docs/b.md
--- a/docs/b.md
+++ b/docs/b.md
@@ -1,0 +2,3 @@
+a
+b
+c
"""


def test_changed_lines_are_those_of_the_new_file_and_those_beside_removed_ones() -> None:
    assert lines_of(DIFF) == {"responses/a.py": [3, 9, 10], "docs/b.md": [2, 3, 4]}


@pytest.fixture
def record() -> Record:
    """A record in which each function of a module is executed by one test file."""
    names = sorted(set(functions_of((ROOT / MODULE).read_text()).values()))
    assert len(names) > 1
    return {MODULE: {"": ["all"], **{name: [f"test_{name}"] for name in names}}}


def test_a_changed_function_affects_the_tests_that_execute_it(record: Record) -> None:
    line, name = next(iter(functions_of((ROOT / MODULE).read_text()).items()))
    assert files_executing(record, MODULE, [line]) == {f"test_{name}"}


@pytest.mark.parametrize("lines", [[1], []], ids=["outside of functions", "a new file"])
def test_other_changes_affect_all_tests_that_execute_the_module(record: Record, lines: list[int]) -> None:
    assert files_executing(record, MODULE, lines) == {files[0] for name, files in record[MODULE].items() if name}


def test_a_function_that_is_not_in_the_record_affects_all_files_executing_the_module(record: Record) -> None:
    line, name = next(iter(functions_of((ROOT / MODULE).read_text()).items()))
    del record[MODULE][name]
    assert files_executing(record, MODULE, [line]) == {files[0] for name, files in record[MODULE].items() if name}


def test_a_module_that_no_test_executes_affects_none(record: Record) -> None:
    assert files_executing(record, "platform/core/other.py", [1]) == set()


def test_a_changed_helper_affects_the_tests_that_import_it_through_others() -> None:
    found = {str(path.relative_to(ROOT)) for path in importing({ROOT / "tests/support/tcp_proxy.py"})}
    assert "tests/storage/test_commit_marks.py" in found
    assert "tests/unit/test_ids.py" not in found
    assert set(importing({Path(__file__)})) == {Path(__file__)}

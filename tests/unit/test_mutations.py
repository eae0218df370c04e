"""The faults that `python -m benchmarks mutations` puts into the product."""

import pytest

from benchmarks.mutations import chosen, faults_of
from tests.recording import ROOT

SOURCES = {
    "negated": ("if a and b:\n        return 1", "if (not (a and b)):\n        return 1"),
    "dropped": ("row.save()", "pass"),
    "unscoped": ("return rows.filter(team=a, name='é').count()", "return rows.filter(name='é').count()"),
    "off by 1": ("return len(a) < b", "return (len(a) <= b)"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_each_mutation_changes_one_place(kind: str) -> None:
    before, after = (f"def f(a, b, row, rows):\n    'ä'\n    {text}\n" for text in SOURCES[kind])
    (fault,) = faults_of("m.py", before)
    assert (fault.kind, fault.line, fault.applied(before)) == (kind, 3, after)


def test_a_mutation_extends_the_scope_of_a_team_to_all_teams() -> None:
    (fault,) = faults_of("m.py", "def f(pk):\n    with scope.team(pk):\n        return 1\n")
    assert fault.text == "scope.every_team()"


def test_lines_outside_of_functions_are_not_mutated() -> None:
    assert list(faults_of("m.py", "if a:\n    b = c < d\n")) == []


def test_mutations_of_different_kinds_are_sampled_from_executed_lines() -> None:
    module = "conversations/services.py"
    faults = list(faults_of(module, (ROOT / module).read_text()))
    lines = {fault.line: {"tests/a.py"} for fault in faults if fault.line % 2}
    picked = chosen({module: lines}, count=4, seed=3)
    assert len({fault.kind for fault in picked}) > 1
    assert all(fault.line % 2 for fault in picked)
    assert picked == chosen({module: lines}, count=4, seed=3)

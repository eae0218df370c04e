"""Samples of cases contain each row of each table of parameters."""

from itertools import product

from tests.support.sampling import covering


def test_all_rows_of_two_tables_occur_in_as_few_cases_as_possible() -> None:
    cases = [{"path": path, "status": status} for path, status in product(range(7), range(4))]
    kept = [cases[place] for place in covering(cases, key="a")]
    assert {case["path"] for case in kept} == set(range(7))
    assert {case["status"] for case in kept} == set(range(4))
    assert len(kept) == 7


def test_every_row_of_a_single_table_occurs() -> None:
    cases = [{"path,status": row} for row in product("ab", "cd")]
    assert covering(cases, key="a") == {0, 1, 2, 3}

"""Each number of the specification's list of edge cases has a test over real HTTP; its name begins with the number."""

import re

from tests.support.web import ROOT

_NUMBERED = re.compile(r"^(?:async )?def test_(?:edge_case_)?(\d\d)_", re.MULTILINE)
_OVER_HTTP = ("api", "contract", "faults")
_ALL = range(1, 43)


def test_each_edge_case_has_a_test_over_http_by_its_number() -> None:
    files = [path for folder in _OVER_HTTP for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    tested = {int(number) for path in files for number in _NUMBERED.findall(path.read_text())}
    assert [number for number in _ALL if number not in tested] == []

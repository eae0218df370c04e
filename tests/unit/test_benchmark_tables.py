"""Tables of docs/ that are made from the published results of benchmarks."""

from pathlib import Path

import pytest

from benchmarks import published
from benchmarks.compare.measurements import CONCURRENCY, KINDS
from benchmarks.mixed import Interval, Outcome
from benchmarks.tables import VIEWS

PAGE = "# Title\n\n<!-- benchmark compare summary -->\nold\n<!-- end -->\n\nText\n"


@pytest.mark.parametrize("name", published.PAGES)
def test_pages_have_the_tables_of_the_published_results(name: str) -> None:
    page = (Path(published.ROOT) / name).read_text()
    assert "<!-- benchmark " in page
    current = published.rendered(page, VIEWS, loaded=published.load)
    assert page == current, "run `.venv/bin/python -m benchmarks tables`"


def test_a_section_without_a_result_names_its_command() -> None:
    page = published.rendered(PAGE, VIEWS, loaded=lambda name: None)
    assert "old" not in page
    assert "`.venv/bin/python -m benchmarks compare --publish`" in page


def cell(kind: str, connections: int, server: str, *, rate: float) -> dict[str, object]:
    times = {"p50": 1.5, "p95": 2.0, "p99": 3.0}
    cost = {"cpu_ms_per_request": 0.5, "resident_mb": 40.0, "failed": 0}
    spreads = {"total_ms": times, "first_event_ms": times}
    return {"kind": kind, "connections": connections, "server": server, "per_second": rate, **spreads, **cost}


def comparison(*, platform: float) -> dict[str, object]:
    cells = [
        cell(kind, connections, server, rate=rate)
        for kind in KINDS
        for connections in CONCURRENCY
        for server, rate in (("proxy", 1000.0), ("platform", platform), ("LiteLLM, forwarding", 10.0))
    ]
    conditions = {"cores": 2, "python": "3.11", "date": "2026-11-22"}
    versions = {"LiteLLM": "1.2.3"}
    return {
        "results": cells,
        "conditions": conditions,
        "versions": versions,
        "rounds": 3,
        "missing": [],
        "not_stored": 0,
    }


def test_a_comparison_is_rendered_with_the_version_of_each_server() -> None:
    page = published.rendered(PAGE, VIEWS, loaded=lambda name: comparison(platform=200.0))
    assert "| LiteLLM 1.2.3, forwarding | 10.0 | 0.50 | 1.50 | 10.0 | 0.50 | 40.0 |" in page


def outcome(*, p99: list[float], after: float) -> Outcome:
    intervals = [Interval(requests=100, p50=1.0, p99=each, refused=0) for each in p99]
    return Outcome(
        capacity=10, load=0.7, actions=1, intervals=intervals, memory={"web 1": (100.0, after)}, errors={"500": 0}
    )


def test_growing_latency_and_memory_are_found() -> None:
    level, growing = [100.0, 104.0, 98.0] * 5, [100.0 + 10 * minute for minute in range(15)]
    assert all(floor.holds for floor in outcome(p99=level, after=104.0).floors())
    grown = [floor.name for floor in outcome(p99=growing, after=106.0).floors() if not floor.holds]
    assert grown == ["p99 at the end, ms", "memory of web 1, MiB"]

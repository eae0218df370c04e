"""Generated pages, lists and examples match the code. test_coverage compares API and errors."""

import json
import re
from datetime import timedelta

import httpx2
import pytest
from django.conf import settings
from prometheus_client import Counter, Gauge, Histogram
from pytest_django.fixtures import Settings

from core.clock import now
from core.telemetry import metrics
from core.work import task_runs
from guide import commands
from responses.admin.live.queries import RunRow
from responses.admin.live.rows import stuck
from responses.models import Response
from server.reference.coverage import PAGES, update_tables
from server.reference.pages import FOLDER, pages
from tests.docs.blocks import ROOT, blocks
from tests.support.api import Api
from tests.support.stored_certificates import delete_certificates, store_certificate
from tests.support.waiting import PATIENCE
from tests.support.web import WebProcess
from tools.mcp.schema import McpToolParam


def test_the_commands_page_is_generated_from_the_parsers() -> None:
    hint = "run: PYTHONPATH=platform:. .venv/bin/python -m guide.commands"
    assert commands.PAGE.read_text() == commands.render(), hint


@pytest.mark.parametrize("page", PAGES)
def test_the_manual_matches_the_table(page: str) -> None:
    manual = (ROOT / page).read_text()
    assert update_tables(manual) == manual, "run: python3 manage.py api_coverage"


def test_the_pages_of_the_reference_are_generated() -> None:
    stored = {f"{FOLDER}/{path.name}": path.read_text() for path in (ROOT / FOLDER).glob("*.md")}
    assert stored == pages(), "run: python3 manage.py api_coverage"


def test_the_metrics_page_lists_all_metrics_of_a_web_process(web: WebProcess) -> None:
    # These metrics have labels only if a certificate was read, and a scheduler has noted its tasks.
    store_certificate()
    task_runs.note_schedule(str(entry["task"]) for entry in settings.CELERY_BEAT_SCHEDULE.values())
    text = httpx2.get(f"{web.url}/metrics", timeout=PATIENCE).text
    delete_certificates()
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    served = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        family = name if name in types else re.sub(r"_(bucket|sum|count|created)$", "", name)
        served[family] = sorted(set(re.findall(r"(\w+)=\"", labels)) - {"le"})
    declared = [one for one in vars(metrics).values() if isinstance(one, Counter | Gauge | Histogram)]
    for one in declared:
        served[_exposed_name(one)] = sorted(one._labelnames)
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\| \S", page, re.MULTILINE)
    assert {name: kind for name, kind, _ in rows} == types
    assert {name: sorted(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows} == served
    assert all(one.startswith(("ors_", "process_", "python_")) for one in types)


def _exposed_name(metric: Counter | Gauge | Histogram) -> str:
    return f"{metric._name}_total" if isinstance(metric, Counter) else metric._name


def test_the_example_error_is_the_error_of_a_misspelt_parameter(api: Api) -> None:
    [documented] = [json.loads(one.text) for one in blocks(ROOT / "docs/reference/errors.md") if one.language == "json"]
    answer = api.post("/responses", {"model": "demo", "input": "Hi", documented["error"]["param"]: 1})
    assert (answer.status_code, answer.json()) == (400, documented)


def test_the_tool_with_a_connector_is_valid() -> None:
    documents = [one.text for one in blocks(ROOT / "docs/howto/mcp.md") if one.language == "json"]
    [tool] = [text for text in documents if json.loads(text).get("type") == "mcp"]
    assert McpToolParam.model_validate_json(tool).connector_id == "wiki"


def test_the_reasons_of_stuck_runs_are_documented(settings: Settings) -> None:
    settings.LEASE_SECONDS = 120  # a lease of a minute at most expires first
    at = now()
    runs = [
        Response(created_at=at, lease_until=at - timedelta(seconds=1)),
        Response(created_at=at, lease_until=at + timedelta(seconds=settings.LEASE_SECONDS - 61)),
        Response(created_at=at, attempt=settings.BACKGROUND_ATTEMPTS),
        Response(created_at=at - timedelta(seconds=61)),
    ]
    page = (ROOT / "docs/howto/operations.md").read_text()
    [table] = re.findall(r"^\| shown reason \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    documented = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    assert [stuck(RunRow(response=run), at=at) for run in runs] == documented

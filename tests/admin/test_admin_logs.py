"""Lists and exports with more rows than a page may read."""

from datetime import datetime, timedelta
from urllib.parse import unquote, urlencode

import orjson
import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client

from console.scans import SCAN_LIMIT
from core.clock import now
from responses.models import ToolCall
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import add_call, add_response, streamed, text
from tests.support.api import Caller

pytestmark = pytest.mark.slow
CALLS = "/admin/responses/toolcall/"
RARE = {"name": "rare_tool", "kind": "mcp", "status": "failed"}


@pytest.fixture
def long_log(caller: Caller) -> None:
    """A rare call, and after it more calls than a page may search."""
    response = add_response(caller)
    add_call(response, call_id="rare", **RARE)
    add_call(response, call_id="usual", name="usual_tool", kind="function")
    began = now() - timedelta(hours=2)
    with scope.team(caller.team.pk):
        ToolCall.objects.filter(call_id="rare").update(started_at=began, ended_at=began)
        copy(ToolCall.objects.get(call_id="usual"), began, unique="call_id", time="started_at")


def copy(row: Model, began: datetime, *, unique: str, time: str) -> None:
    """Insert as many copies of a row as a page may read, with other ids, half an hour and more after a time."""
    copied = [field.column for field in row._meta.concrete_fields if field.name not in {"id", unique, time}]
    columns = ", ".join(f'"{name}"' for name in copied)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {row._meta.db_table} ({unique}, {time}, {columns}) "
            f"SELECT {unique} || n, %s + n * interval '10 ms', {columns} "
            f"FROM {row._meta.db_table}, generate_series(1, %s) AS n WHERE id = %s",
            [began + timedelta(minutes=30), SCAN_LIMIT, row.pk],
        )


def rows(page: str) -> str:
    """Return the HTML of the rows of a list."""
    return page[page.find('id="result_list"') :] if 'id="result_list"' in page else ""


def older(page: str) -> str:
    """Return the query of the link to older rows."""
    link = page.partition("Only the newest 30,000 rows of this period were searched")[2].partition('href="')[2]
    return unquote(link.partition('"')[0].replace("&amp;", "&"))


def test_a_filter_without_an_index_searches_the_newest_rows_only(lead: Client, long_log: None) -> None:
    page = text(lead.get(CALLS, {"status": "failed"}))
    assert "rare_tool" not in rows(page)
    assert older(page)


def test_the_link_to_older_rows_keeps_the_filter(lead: Client, long_log: None) -> None:
    page = text(lead.get(CALLS + older(text(lead.get(CALLS, {"status": "failed"})))))
    assert "rare_tool" in rows(page)
    assert "usual_tool" not in rows(page)
    assert not older(page)


@pytest.mark.parametrize("name", ["name", "kind"])
def test_filters_with_an_index_search_the_whole_period(lead: Client, long_log: None, name: str) -> None:
    page = text(lead.get(CALLS, {name: RARE[name]}))
    assert "rare_tool" in rows(page)
    assert not older(page)


def test_the_rows_of_an_index_are_searched_with_another_filter(lead: Client, long_log: None) -> None:
    page = text(lead.get(CALLS, {"name": "rare_tool", "status": "failed"}))
    assert "rare_tool" in rows(page)


def test_pages_far_down_the_list_end_at_the_limit(lead: Client, long_log: None) -> None:
    first, far = text(lead.get(CALLS)), text(lead.get(CALLS, {"p": str(SCAN_LIMIT)}))
    assert "usual_tool" in rows(first)
    assert not older(first)
    assert "usual_tool" not in rows(far)
    assert older(far)


def test_an_export_of_many_rows_is_recorded_before_its_first_row(lead: Client, caller: Caller) -> None:
    """The newest rows do not match, so the number of matching rows is not known when the export begins."""
    began = now() - timedelta(hours=2)
    old = add_response(caller, created_at=began, background=True)
    with scope.team(caller.team.pk):
        copy(add_response(caller, background=False), began, unique="id", time="created_at")
    query = {"mode": "background"}
    exported = streamed(lead.get("/admin/responses/response/export/", query))
    with scope.team(caller.team.pk):
        event = AuditEvent.objects.get(action="responses.exported")
    assert [orjson.loads(line)["id"] for line in exported.splitlines()] == [old.pk]
    assert event.after == {"rows": "not counted", "filters": urlencode(query)}


def test_an_export_of_many_rows_counts_the_newest_ones(lead: Client, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        copy(add_response(caller), now() - timedelta(hours=2), unique="id", time="created_at")
    lead.get("/admin/responses/response/export/")
    with scope.team(caller.team.pk):
        event = AuditEvent.objects.get(action="responses.exported")
    assert event.after["rows"] == "30000 or more"

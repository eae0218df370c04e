"""Lists of logs with more rows than a page may search."""

from datetime import timedelta
from urllib.parse import unquote

import pytest
from django.db import connection
from django.test import Client

from console.scans import SCAN_LIMIT
from core.clock import now
from responses.models import ToolCall
from tenants import scope
from tests.admin.rows import add_call, add_response, text
from tests.support.api import Caller

CALLS = "/admin/responses/toolcall/"
RARE = {"name": "rare_tool", "kind": "mcp", "status": "failed"}


@pytest.fixture
def long_log(caller: Caller) -> None:
    """A rare call, and after it more calls than a page may search."""
    response = add_response(caller)
    add_call(response, call_id="rare", **RARE)
    add_call(response, call_id="usual", name="usual_tool", kind="function")
    began = now() - timedelta(hours=2)
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        ToolCall.objects.filter(call_id="rare").update(started_at=began, ended_at=began)
        usual = ToolCall.objects.get(call_id="usual")
        copied = [
            field.column
            for field in ToolCall._meta.concrete_fields
            if field.name not in {"id", "call_id", "started_at"}
        ]
        columns = ", ".join(f'"{name}"' for name in copied)
        cursor.execute(
            f"INSERT INTO responses_toolcall (call_id, started_at, {columns}) "
            f"SELECT 'usual' || n, %s + n * interval '10 ms', {columns} "
            "FROM responses_toolcall, generate_series(1, %s) AS n WHERE id = %s",
            [began + timedelta(minutes=30), SCAN_LIMIT, usual.pk],
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

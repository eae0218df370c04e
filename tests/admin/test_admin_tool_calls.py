"""Tool calls in the admin: list, charts and the page of a call."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from core.clock import now
from engine.calls.effects import effect_id
from responses.models import Response, ToolCall
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_response, text
from tests.support.api import Caller

pytestmark = pytest.mark.usefixtures("rollups")
CALLS = "/admin/responses/toolcall/"
SECRET = "the launch code is 1234"


def call_of(response: Response, **columns: Any) -> ToolCall:
    """Create a tool call of a response and return its row."""
    add_call(response, **columns)
    with scope.team(response.team_id):
        return ToolCall.objects.filter(response=response).latest("id")


def page_url(call: ToolCall) -> str:
    """Return the URL of the page of a call."""
    return reverse("admin:responses_toolcall_change", args=[call.pk])


def listed(client: Client, **query: str) -> str:
    """Return the HTML of the rows of the list."""
    page = text(client.get(CALLS, query))
    return page[page.find('id="result_list"') :]


@pytest.fixture
def response(caller: Caller) -> Response:
    """The response that makes the calls."""
    return add_response(caller)


def test_calls_of_all_kinds_are_listed(lead: Client, response: Response) -> None:
    call_of(response, name="get_weather", kind="function", arguments='{"city": "Paris"}', output="sunny")
    call_of(response, name="docs__find", kind="mcp", call_id="call_2", status="failed", attempt=3)
    page = listed(lead)
    for words in ("get_weather", "Function", "docs__find", "MCP", "250 ms", "17 B", "5 B", "Failed", "attempt 3"):
        assert words in page
    assert response.pk in page


@pytest.mark.parametrize(
    "narrow",
    [{"name": "a"}, {"kind": "mcp"}, {"status": "failed"}, {"min_ms": "5000"}],
    ids=["name", "kind", "status", "latency"],
)
def test_calls_can_be_filtered(lead: Client, response: Response, narrow: dict[str, str]) -> None:
    at = now()
    slow = {"started_at": at - timedelta(seconds=9), "ended_at": at}
    wanted = call_of(response, name="a", kind="mcp", status="failed", **slow)
    other = call_of(response, name="b", kind="function", call_id="call_2")
    page = listed(lead, **narrow)
    assert page_url(wanted) in page
    assert page_url(other) not in page


def test_a_call_is_found_by_its_id_or_its_response(lead: Client, caller: Caller, response: Response) -> None:
    old = {"started_at": now() - timedelta(days=90), "ended_at": now() - timedelta(days=90)}
    wanted = call_of(response, call_id="call_wanted", **old)
    other = call_of(add_response(caller), call_id="call_other")
    for query in ("call_wanted", response.pk):
        page = listed(lead, q=query)
        assert page_url(wanted) in page
        assert page_url(other) not in page


def test_errors_are_hidden_without_content_access(lead: Client, auditor: Client, response: Response) -> None:
    call_of(response, status="failed", error=SECRET)
    assert SECRET in listed(lead)
    assert SECRET not in listed(auditor)


def test_the_charts_count_by_tool(lead: Client, response: Response) -> None:
    for number in range(3):
        call_of(response, name="search", call_id=f"c{number}", status="failed" if number else "completed")
    page = text(lead.get(f"{CALLS}charts/"))
    assert "1 Not failed, 2 Failed" in page
    assert "66.7 %" in page
    (url,) = re.findall(r'<a class="c-link" href="([^"]*)">search</a>', page)
    assert "search" in listed(
        lead, **dict(part.split("=") for part in url.replace("&amp;", "&").partition("?")[2].split("&"))
    )


@pytest.mark.parametrize(
    ("sort", "first"), [("calls", "often"), ("p95", "slow"), ("p50", "slow"), ("max", "slow"), ("failed", "broken")]
)
def test_the_table_of_tools_sorts_by_each_column(lead: Client, response: Response, sort: str, first: str) -> None:
    at = now()
    tools = {"often": (3, 100, "completed"), "slow": (1, 9000, "completed"), "broken": (2, 50, "failed")}
    for name, (count, milliseconds, status) in tools.items():
        for number in range(count):
            began = at - timedelta(milliseconds=milliseconds)
            call_id = f"{name}{number}"
            call_of(response, name=name, call_id=call_id, status=status, started_at=began, ended_at=at)
    page = text(lead.get(f"{CALLS}charts/?sort={sort}"))
    table = page[page.index('aria-label="Tools"') :]
    assert re.findall(r'<a class="c-link" href="[^"]*">(\w+)</a>', table)[0] == first
    assert re.findall(r'aria-sort="descending"><a [^>]*aria-label="Sort by (\w+)"', table) == [
        {"failed": "Errors", "calls": "Calls", "max": "Max"}.get(sort, sort)
    ]


def test_the_charts_follow_the_filters(lead: Client, response: Response) -> None:
    call_of(response, name="search")
    call_of(response, name="fetch", call_id="call_2")
    page = text(lead.get(f"{CALLS}charts/?name=fetch&period=7d"))
    assert "fetch" in page
    assert "search" not in page
    (url,) = re.findall(r'hx-get="([^"]*charts/[^"]*)"', text(lead.get(f"{CALLS}?name=fetch&period=7d")))
    assert "name=fetch" in url


def test_a_call_shows_arguments_and_output_escaped(lead: Client, response: Response) -> None:
    call = call_of(response, arguments='{"q": "<script>"}', output=SECRET)
    page = text(lead.get(page_url(call)))
    assert "{&quot;q&quot;: &quot;&lt;script&gt;&quot;}" in page
    assert SECRET in page
    assert response.pk in page


def test_a_long_output_is_loaded_on_demand(lead: Client, response: Response) -> None:
    call = call_of(response, output="x" * 70_000 + SECRET)
    page = text(lead.get(page_url(call)))
    assert SECRET not in page
    assert len(page) < 300_000
    (url,) = re.findall(r'href="([^"]*)" data-more', page)
    assert SECRET in text(lead.get(url))


@pytest.mark.parametrize("who", ["auditor", "operator", "platform_auditor"])
def test_content_is_hidden_until_it_is_revealed(
    request: pytest.FixtureRequest, caller: Caller, response: Response, who: str
) -> None:
    client: Client = request.getfixturevalue(who)
    call = call_of(response, arguments=SECRET, output=SECRET, error=SECRET)
    assert SECRET not in text(client.get(page_url(call)))
    client.post("/admin/content/reveal/", {"team": caller.team.pk, "reason": "an incident", "next": "/admin/"})
    assert SECRET in text(client.get(page_url(call)))
    with scope.every_team():
        seen = AuditEvent.objects.filter(action="content.viewed", target=str(call.pk), team=caller.team).exists()
    assert seen is (who != "auditor")


def test_a_call_of_another_team_looks_like_an_unknown_id(stranger: Client, response: Response) -> None:
    call = call_of(response, name="private_tool", output=SECRET)
    unknown = stranger.get(reverse("admin:responses_toolcall_change", args=[10**15]))
    foreign = stranger.get(page_url(call))
    assert foreign.status_code == unknown.status_code
    assert SECRET not in text(foreign)
    assert "private_tool" not in text(foreign)
    for url in (CALLS, f"{CALLS}?q={response.pk}", f"{CALLS}?q={call.call_id}", f"{CALLS}charts/"):
        assert "private_tool" not in text(stranger.get(url))


def test_malformed_query_strings_cause_no_error(lead: Client, response: Response) -> None:
    call_of(response)
    for odd in ("0x1", "9" * 30, "abc", "1%00"):
        assert lead.get(f"{CALLS}{odd}/change/").status_code in {302, 404}
    for query in ("?min_ms=abc", "?q=%00", "?name=%00", "?period=x"):
        assert lead.get(f"{CALLS}{query}").status_code in {200, 302}
        assert lead.get(f"{CALLS}charts/{query}").status_code == 200


def test_calls_are_read_only(admin: Client, response: Response) -> None:
    call = call_of(response)
    assert admin.post(page_url(call), {"name": "x"}).status_code == 405
    assert admin.get(f"{CALLS}add/").status_code == 403


def test_query_count_is_independent_of_the_rows(lead: Client, response: Response, count_queries: CountQueries) -> None:
    call_of(response)
    few = count_queries(lead, CALLS)
    for number in range(9):
        call_of(response, call_id=f"c{number}")
    assert count_queries(lead, CALLS) == few
    assert count_queries(lead, f"{CALLS}charts/") < 20


def test_calls_with_an_unknown_outcome_are_listed_with_their_effect_ids(lead: Client, response: Response) -> None:
    call = call_of(response, name="docs__pay", kind="mcp", status="outcome_unknown")
    call_of(response, name="docs__find", kind="mcp", call_id="call_2")
    page = listed(lead, status="outcome_unknown")
    assert ("docs__pay" in page, "docs__find" in page) == (True, False)
    assert effect_id(response.pk, call.turn, call.call_id) in text(lead.get(page_url(call)))

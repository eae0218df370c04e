"""Timeline of a response: rows, their details, and content access."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from conversations.models import Section
from core.clock import now
from responses.models import Decision, Response, Status, ToolCall
from tenants import scope
from tenants.models import Guardrail
from tests.admin.conftest import CountQueries
from tests.admin.rows import add_call, add_items, add_response, add_turns, fragment_url, page_url, text
from tests.support.api import Api, Caller
from tests.support.chunks import text as text_chunks
from tests.support.decisions import add_decision
from tests.support.guardrail_hook import FINE, running_hook
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.targets import several_targets, upstream_id
from tests.support.upstream import Pause, Script, ScriptedUpstream, refusal, stream


def timeline(client: Client, response: Response, query: str = "") -> str:
    return text(client.get(page_url(response, tab="timeline") + query))


def milliseconds(page: str, title: str) -> float:
    """Return a total above the bars."""
    found = re.search(rf"{title}</dt><dd>([\d.,]+) (ms|s)<", page)
    assert found, f"no total for {title}"
    return float(found[1].replace(",", "")) * (1000 if found[2] == "s" else 1)


def call_of(response: Response) -> ToolCall:
    with scope.team(response.team_id):
        return ToolCall.objects.filter(response=response).latest("id")


def test_turns_and_tool_calls_have_bars(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_turns(response, 2)
    add_call(response, name="box__add", kind="mcp", attempt=2)
    page = timeline(lead, response)
    for words in ("Turn 1", "Turn 2", "box__add", "MCP, attempt 2", "1.00 s", "first token after 120 ms", "250 ms"):
        assert words in page, words


def test_timing_is_visible_without_content_access(operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_turns(response, 1)
    add_call(response, name="box__add", kind="mcp", arguments='{"a": "SECRET"}', output="SECRET")
    assert "box__add" in timeline(operator, response)
    opened = text(operator.get(fragment_url(response, f"spans/call-{call_of(response).pk}/")))
    assert "Content hidden" in opened
    assert "box__add" in opened
    assert "SECRET" not in opened


def test_the_detail_of_a_call_shows_arguments_and_result(lead: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_call(
        response, name="box__add", kind="mcp", arguments='{"a":2}', output="the sum", error="http_error", attempt=3
    )
    opened = text(lead.get(fragment_url(response, f"spans/call-{call_of(response).pk}/")))
    for words in ("box__add", "mcp", "Completed", "http_error", "<dd>3</dd>", "call_1", "&quot;a&quot;: 2", "the sum"):
        assert words in opened, words


def test_a_long_output_is_truncated_and_can_be_downloaded(lead: Client, operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_call(response, kind="mcp", output="x" * 70_000 + "BEYOND")
    url = fragment_url(response, f"spans/call-{call_of(response).pk}/")
    assert "BEYOND" not in text(lead.get(url))
    whole = lead.get(url, {"whole": "output"})
    assert whole.content.endswith(b"BEYOND")
    assert whole["Content-Disposition"].startswith("attachment")
    assert b"BEYOND" not in operator.get(url, {"whole": "output"}).content


def test_the_detail_of_a_turn_shows_its_discarded_attempt(lead: Client, operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_turns(response, 1)
    with scope.team(response.team_id):
        response.turn_set.update(upstream_request_id="up-1", discarded={"defect": "It says WRONG.", "items": []})
    seen = text(lead.get(fragment_url(response, "spans/turn-0/")))
    assert [words in seen for words in ("up-1", "1,234 tokens", "It says WRONG.")] == [True, True, True]
    assert "WRONG" not in text(operator.get(fragment_url(response, "spans/turn-0/")))


def test_the_page_shows_who_answered_and_why_the_first_target_did_not(
    lead: Client, api: Api, upstream: ScriptedUpstream
) -> None:
    with several_targets(upstream) as targets:
        first, second = targets.two()
        first.then(refusal(401, "Wrong key."))
        second.say("Hello")
        made = api.create(model=targets.name, input="Hi")
        with scope.team(api.caller.team.pk):
            response = Response.objects.get(pk=made["id"])
        page = timeline(lead, response)
        assert (f"up-{first.model}: HTTP 401" in page, f"next: up-{second.model}" in page) == (True, True)
        assert f"up-{second.model}" in text(lead.get(page_url(response, tab="attempts")))
        line = f"Answered by up-{second.model} ({second.model}); tried before: up-{first.model}: HTTP 401"
        assert line in text(lead.get(page_url(response)))
        assert line in text(lead.get(fragment_url(response, "summary/")))
        opened = text(lead.get(fragment_url(response, "spans/turn-0/")))
        assert f"{second.model} at {upstream_id(second)}" in opened


def test_the_page_of_a_failed_response_names_all_targets(lead: Client, api: Api, upstream: ScriptedUpstream) -> None:
    with several_targets(upstream) as targets:
        targets.unreachable()
        second = targets.add().then(refusal(401, "Wrong key."))
        api.post("/responses", {"model": targets.name, "input": "Hi"})
        with scope.team(api.caller.team.pk):
            response = Response.objects.get(model=targets.name)
        first = targets.scripts[0]
        line = f"No target answered; tried: up-{first.model}: not reached; up-{second.model}: HTTP 401"
        assert line in text(lead.get(page_url(response)))


def test_the_page_of_a_response_that_one_target_answered_names_no_others(
    lead: Client, api: Api, upstream: ScriptedUpstream
) -> None:
    with several_targets(upstream) as targets:
        targets.add().say("Hello")
        targets.add()
        api.create(model=targets.name, input="Hi")
        with scope.team(api.caller.team.pk):
            response = Response.objects.get(model=targets.name)
        assert "tried before" not in text(lead.get(page_url(response)))


def test_details_of_another_response_or_team_are_not_found(lead: Client, stranger: Client, caller: Caller) -> None:
    one, other = add_response(caller), add_response(caller)
    add_call(one, kind="mcp")
    key = f"spans/call-{call_of(one).pk}/"
    assert lead.get(fragment_url(one, key)).status_code == 200
    assert stranger.get(fragment_url(one, key)).status_code == 404
    for path in (key, "spans/call-x/", "spans/turn-0/", "spans/turn-x/", "spans/approval-x/", "spans/now-1/"):
        assert lead.get(fragment_url(other, path)).status_code == 404, path


def test_the_queue_and_each_attempt_of_a_background_run_have_bars(lead: Client, caller: Caller) -> None:
    at = now() - timedelta(seconds=60)
    claims = [{"at": (at + timedelta(seconds=s)).isoformat(), "by": f"worker-{s}"} for s in (5, 20)]
    response = add_response(caller, created_at=at, background=True, claims=claims, attempt=2)
    page = timeline(lead, response)
    for words in ("Queue", "5.00 s", "Attempt 1", "worker-5", "15.00 s", "Lost work", "Attempt 2", "worker-20"):
        assert words in page, words


def test_a_queued_response_has_a_bar_until_now(lead: Client, caller: Caller) -> None:
    at = now() - timedelta(minutes=5)
    page = timeline(lead, add_response(caller, created_at=at, background=True, status=Status.QUEUED, turns=0))
    assert [words in page for words in ("Queue", "still running", "5 min 0 s", "So far")] == [True] * 4


def test_the_current_turn_is_shown_before_it_is_stored(lead: Client, caller: Caller) -> None:
    response = add_response(caller, created_at=now() - timedelta(minutes=1), status=Status.IN_PROGRESS, turns=0)
    page = timeline(lead, response)
    assert "Turn 1" in page
    assert "is-open" in page


def test_a_client_tool_call_waits_until_the_next_response(lead: Client, caller: Caller) -> None:
    at = now()
    response = add_response(caller, created_at=at)
    add_call(response, name="look", status="waiting", started_at=at, ended_at=None)
    assert "waiting for the client, Waiting" in timeline(lead, response)
    after = add_response(caller, previous_response_id=response.pk, created_at=at + timedelta(milliseconds=700))
    add_items(after, Section.INPUT, {"type": "function_call_output", "call_id": "call_1", "output": "shipped"})
    page = timeline(lead, response)
    assert "waiting for the client, Answered" in page
    assert f"{after.pk}/change/" in page
    assert "700 ms" in page


def test_an_approval_shows_the_wait_and_its_outcome(lead: Client, caller: Caller) -> None:
    at = now()
    response = add_response(caller, created_at=at)
    add_call(response, name="box__add", kind="mcp", status="granted", ended_at=None)
    columns = {"request": "d", "definition": "d", "asked_at": at, "answered_at": at + timedelta(seconds=2)}
    with scope.team(response.team_id):
        ask = Decision.objects.create(
            id=f"mcpr_{response.pk}", team_id=response.team_id, response=response, call_id="call_1", state="granted",
            answered_in="resp_next", **columns,
        )  # fmt: skip
    page = timeline(lead, response)
    assert [words in page for words in ("waiting for a decision, Granted", "resp_next/change/")] == [True, True]
    assert "Granted" in text(lead.get(fragment_url(response, f"spans/approval-{ask.pk}/")))


def test_a_run_that_waits_for_a_decision_calls_no_model_and_loses_no_work(lead: Client, caller: Caller) -> None:
    decision = add_decision(caller)
    at = decision.asked_at
    claims = [{"at": moment.isoformat(), "by": "worker"} for moment in (at - timedelta(seconds=1), at)]
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=decision.response_id).update(claims=claims[:1])
        response = Response.objects.get(pk=decision.response_id)
    page = timeline(lead, response)
    assert [words in page for words in ("waiting for a decision", "Turn 2")] == [True, False]
    claims[1]["at"] = (at + timedelta(hours=5)).isoformat()
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=decision.response_id).update(claims=claims, waits_until=None)
        response = Response.objects.get(pk=decision.response_id)
    page = timeline(lead, response)
    assert [words in page for words in ("Lost work", "Turn 2")] == [False, True]


def test_a_long_run_is_paginated(lead: Client, caller: Caller) -> None:
    response = add_response(caller, turns=205)
    add_turns(response, 205)
    first, second = timeline(lead, response), timeline(lead, response, "&from=200")
    assert [words in first for words in ("Turn 200<", "Turn 201<", "Next rows, from 201 of 205")] == [True, False, True]
    assert [words in second for words in ("Turn 200<", "Turn 201<")] == [False, True]


def test_query_count_is_independent_of_the_length_of_the_run(
    lead: Client, caller: Caller, count_queries: CountQueries
) -> None:
    def full(size: int) -> Any:
        response = add_response(caller)
        add_turns(response, size)
        for number in range(size):
            add_call(response, call_id=f"call_{number}", status="waiting", ended_at=None)
        return page_url(response, tab="timeline")

    assert count_queries(lead, full(9)) == count_queries(lead, full(1)) <= 19


@pytest.mark.slow
def test_the_time_of_a_run_with_slow_parts_is_accounted_for(
    reaching: Api, lead: Client, script: Script, served: McpServer
) -> None:
    answer = stream(Pause(0.2), *text_chunks("Hello."))
    script.then(refusal(503, headers={"x-should-retry": "true"}), answer)
    with running_hook() as hook:
        hook.then(FINE, FINE)
        team = reaching.caller.team
        with scope.every_team():
            Guardrail.objects.create(team=team, input_checker="hook", output_checker="hook", hook_url=hook.url)
        response_id = reaching.create(model=script.model, input="Hi", tools=[tool(served)])["id"]
    with scope.team(team.pk):
        response = Response.objects.get(pk=response_id)
    page = timeline(lead, response)
    for words in (
        "connecting to an MCP server", "listing the tools of an MCP server", "Request 1", "HTTP 503", "Request 2",
        "HTTP 200 after", "moderation and guardrails",
    ):  # fmt: skip
        assert words in page, words
    for total in ("Checks", "MCP connect", "MCP list", "Storage"):
        assert milliseconds(page, total) > 0
    assert milliseconds(page, "Overhead") < 0.1 * milliseconds(page, "Run")


@pytest.mark.slow
def test_a_failed_listing_is_a_failed_row(reaching: Api, lead: Client, script: Script) -> None:
    script.always(stream(*text_chunks("Hello.")))
    with mcp_server(token="other") as refusing:
        response_id = reaching.events(model=script.model, input="Hi", tools=[tool(refusing)])[0]["response"]["id"]
    with scope.team(reaching.caller.team.pk):
        response = Response.objects.get(pk=response_id)
    page = timeline(lead, response)
    assert "connecting to an MCP server, Failed" in page
    assert "HTTP 401" in page

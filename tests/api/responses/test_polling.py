"""Polling `GET /v1/responses/{id}` while a response waits or runs: poll interval, progress headers and number of
queries."""

from typing import Any

import pytest
from django.db import connection
from django.test import AsyncRequestFactory
from django.test.utils import CaptureQueriesContext

from core.clock import now
from responses.api.views import ResponseView
from responses.models import Response, Status, ToolCall
from tenants import scope
from tests.support.api import Api, Caller
from tests.support.stored_runs import Begun, begin
from tests.support.upstream import Script

pytestmark = pytest.mark.usefixtures("database")
CONTROL = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "SELECT set_config", "SELECT coalesce(current_setting")


def background_response(caller: Caller, **columns: Any) -> str:
    """Store a background response with these values, which no worker executes. Return its id."""
    begun: Begun = begin(caller, background=True)
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=begun.who.response_id).update(**columns)
    return begun.who.response_id


def add_running_call(caller: Caller, response_id: str, name: str) -> None:
    """Add a hosted tool call that is in progress."""
    with scope.team(caller.team.pk):
        ToolCall.objects.create(
            team=caller.team,
            response_id=response_id,
            turn=0,
            call_id="call_1",
            kind="mcp",
            name=name,
            arguments="{}",
            status="in_progress",
            started_at=now(),
        )


def run_headers(api: Api, response_id: str) -> dict[str, str]:
    """Return the headers about the state of the run."""
    headers = api.get(f"/responses/{response_id}").headers
    return {name: value for name, value in headers.items() if name.startswith(("openai-poll", "x-queue", "x-progress"))}


def test_a_queued_response_shows_its_position(api: Api, caller: Caller) -> None:
    first, second = (background_response(caller, status=Status.QUEUED) for _ in range(2))
    assert run_headers(api, first) == {"openai-poll-after-ms": "500", "x-queue-position": "1"}
    assert run_headers(api, second)["x-queue-position"] == "2"


def test_a_running_response_shows_its_progress(api: Api, caller: Caller) -> None:
    response_id = background_response(caller, status=Status.IN_PROGRESS, turns=2, output_tokens=34)
    headers = {"openai-poll-after-ms": "500", "x-progress-turns": "2", "x-progress-output-tokens": "34"}
    assert run_headers(api, response_id) == headers
    add_running_call(caller, response_id, "box.größe")
    assert run_headers(api, response_id) == {**headers, "x-progress-tool": "box.gr%C3%B6%C3%9Fe"}


def test_the_poll_interval_grows_with_the_age_of_the_response(api: Api, caller: Caller) -> None:
    old = now().replace(year=2024)
    response_id = background_response(caller, status=Status.IN_PROGRESS, created_at=old)
    assert run_headers(api, response_id)["openai-poll-after-ms"] == "5000"


def test_a_finished_response_has_no_progress_headers(api: Api, script: Script) -> None:
    assert run_headers(api, api.create(model=script.say("Hello").model, input="Hi")["id"]) == {}


@pytest.mark.parametrize("status", [Status.QUEUED, Status.IN_PROGRESS])
def test_a_poll_takes_two_queries(caller: Caller, status: Status) -> None:
    for _ in range(5):
        response_id = background_response(caller, status=status)
        add_running_call(caller, response_id, "search")
    first, second = (statements(caller, response_id) for _ in range(2))
    assert len(second) == 2, second
    assert len(first) >= len(second)


def statements(caller: Caller, response_id: str) -> list[str]:
    """Return the SQL statements of a request whose key is already cached."""
    request = AsyncRequestFactory().get("/", headers={"Authorization": f"Bearer {caller.secret}"})
    with CaptureQueriesContext(connection) as captured:
        answer = ResponseView.as_view()(request, response_id=response_id)
    assert answer.status_code == 200, answer.data
    return [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(CONTROL)]

"""`GET /v1/responses/{id}` while a response waits or runs: when to ask again, how far it is, what asking costs."""

from typing import Any

import pytest
from django.db import connection
from django.test import AsyncRequestFactory
from django.test.utils import CaptureQueriesContext

from kernel.clock import now
from responses.api.views import ResponseView
from responses.models import Response, Status, ToolCall
from tenants import scope
from tests.support.api import Api, Caller
from tests.support.stored import Begun, begin
from tests.support.upstream import Script

pytestmark = pytest.mark.usefixtures("database")
CONTROL = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "SELECT set_config", "SELECT coalesce(current_setting")


def in_background(caller: Caller, **columns: Any) -> str:
    """A background response whose row says this, and which no worker takes."""
    begun: Begun = begin(caller, background=True)
    with scope.team(caller.team.pk):
        Response.objects.filter(pk=begun.who.response_id).update(**columns)
    return begun.who.response_id


def call(caller: Caller, response_id: str, name: str) -> None:
    """A hosted call of the response that is being made."""
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


def shown(api: Api, response_id: str) -> dict[str, str]:
    """The headers that are about the state of the run."""
    headers = api.get(f"/responses/{response_id}").headers
    return {name: value for name, value in headers.items() if name.startswith(("openai-poll", "x-queue", "x-progress"))}


def test_a_response_that_waits_shows_its_place(api: Api, caller: Caller) -> None:
    first, second = (in_background(caller, status=Status.QUEUED) for _ in range(2))
    assert shown(api, first) == {"openai-poll-after-ms": "500", "x-queue-position": "1"}
    assert shown(api, second)["x-queue-position"] == "2"


def test_a_response_that_runs_shows_how_far_it_has_come(api: Api, caller: Caller) -> None:
    response_id = in_background(caller, status=Status.IN_PROGRESS, turns=2, output_tokens=34)
    told = {"openai-poll-after-ms": "500", "x-progress-turns": "2", "x-progress-output-tokens": "34"}
    assert shown(api, response_id) == told
    call(caller, response_id, "box.größe")
    assert shown(api, response_id) == {**told, "x-progress-tool": "box.gr%C3%B6%C3%9Fe"}


def test_whoever_has_waited_for_long_may_wait_longer(api: Api, caller: Caller) -> None:
    old = now().replace(year=2024)
    response_id = in_background(caller, status=Status.IN_PROGRESS, created_at=old)
    assert shown(api, response_id)["openai-poll-after-ms"] == "5000"


def test_a_response_that_has_ended_shows_nothing_of_the_kind(api: Api, script: Script) -> None:
    assert shown(api, api.create(model=script.say("Hello").model, input="Hi")["id"]) == {}


@pytest.mark.parametrize("status", [Status.QUEUED, Status.IN_PROGRESS])
def test_a_poll_is_one_look_at_the_row_and_one_at_its_output(caller: Caller, status: Status) -> None:
    for _ in range(5):
        response_id = in_background(caller, status=status)
        call(caller, response_id, "search")
    first, second = (statements(caller, response_id) for _ in range(2))
    assert len(second) == 2, second
    assert len(first) >= len(second)


def statements(caller: Caller, response_id: str) -> list[str]:
    """What the view asks the database; a key that was looked up is known for a while."""
    request = AsyncRequestFactory().get("/", headers={"Authorization": f"Bearer {caller.secret}"})
    with CaptureQueriesContext(connection) as captured:
        answer = ResponseView.as_view()(request, response_id=response_id)
    assert answer.status_code == 200, answer.data
    return [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(CONTROL)]

"""Two web processes and two workers with one database and one broker: each of them can do any part of the work."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from responses.models import Response
from tenants import scope
from tests.support.api import Api, Caller, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.upstream import Pause, Script, stream
from tests.support.web import WebProcess
from tests.support.workers import MakeWorker

RUNS = 40
pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(web: WebProcess, daphne_web: WebProcess, http: httpx2.Client, caller: Caller) -> list[Api]:
    """The API of one team on two web processes."""
    return [Api(http, url=node.url, caller=caller) for node in (web, daphne_web)]


@pytest.fixture
def two_workers(make_worker: MakeWorker) -> None:
    """Two workers, neither of which has enough slots for all responses."""
    for _ in range(2):
        make_worker(concurrency=3)


@pytest.mark.nightly
@pytest.mark.usefixtures("two_workers")
def test_runs_can_be_created_followed_and_cancelled_on_any_node(nodes: list[Api], script: Script) -> None:
    script.always(stream(chunk(content="Hel"), Pause(0.5), *text("lo")))

    def play(number: int) -> dict[str, Any]:
        here, there = random.Random(number).sample(nodes, 2)
        body: dict[str, Any] = here.create(model=script.model, input="Hi", background=True)
        if number % 4 == 0:
            body = ok(there.post(f"/responses/{body['id']}/cancel", {}))
        with there.follow(body["id"]) as live:
            live.rest()  # compares with what is stored, and checks the numbers of the events
        body = ended(here, body["id"])
        assert body == there.retrieve(body["id"])
        return body

    with ThreadPoolExecutor(10) as threads:
        bodies = list(threads.map(play, range(RUNS)))
    assert {body["status"] for body in bodies[::4]} <= {"cancelled", "completed"}
    kept = [body for number, body in enumerate(bodies) if number % 4]
    assert {(body["status"], *text_of(body)) for body in kept} == {("completed", "Hello")}
    assert len(workers_of(nodes[0])) == 2


def workers_of(api: Api) -> set[str | None]:
    """Return the workers that ran the team's responses."""
    with scope.team(api.caller.team.pk):
        completed = Response.objects.filter(status="completed", team=api.caller.team)
        return set(completed.values_list("lease_owner", flat=True))

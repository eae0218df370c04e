"""`manage.py web --processes`: several processes on one port share the work, and killed ones are replaced."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import httpx2
import psutil
import pytest

from core.work import heartbeats
from responses.models import Response
from tenants import scope
from tests.support.api import Api, Caller
from tests.support.background import ended
from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Script, ScriptedUpstream, stream
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.websocket_client import open_socket
from tests.support.workers import WorkerProcess

PROCESSES = 3


@pytest.fixture(scope="module", params=["uvicorn", "daphne"])
def several(request: pytest.FixtureRequest, upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """Three web processes on one port."""
    with running_web(server=request.param, processes=str(PROCESSES)) as process:
        yield process


@pytest.fixture
def api(several: WebProcess, caller: Caller) -> Iterator[Api]:
    """The API on the processes, with a new connection for each request."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    with httpx2.Client(timeout=PATIENCE, limits=limits) as http:
        yield Api(http, url=several.url, caller=caller)


def children(process: WebProcess) -> set[int]:
    """Return the ids of the processes that serve."""
    return {child.pid for child in psutil.Process(process.pid).children()}


def has_new_child(process: WebProcess, *, before: set[int]) -> bool:
    return bool(children(process) - before)


def owners(caller: Caller) -> set[str]:
    """Return the processes that have executed the team's responses."""
    with scope.team(caller.team.pk):
        return {str(name) for name in Response.objects.values_list("lease_owner", flat=True)}


def beating(process: int) -> bool:
    """Return whether the process is listed with a heartbeat."""
    return any(f":{process}:" in beat.name for beat in heartbeats.live_processes() or ())


def test_all_processes_serve_requests_and_report_their_metrics(
    several: WebProcess, api: Api, caller: Caller, script: Script
) -> None:
    script.always(stream(*text("Hello")))

    def all_have_served() -> bool:
        for _ in range(10):
            api.create(model=script.model, input="Hi")
        return len(owners(caller)) == PROCESSES

    eventually(all_have_served)
    numbers = [f'process_resident_memory_bytes{{process="{number}"}}' for number in range(PROCESSES)]
    eventually(lambda: all(number in httpx2.get(f"{several.url}/metrics", timeout=PATIENCE).text for number in numbers))


def test_any_process_reports_the_current_metrics_of_all(several: WebProcess) -> None:
    def measured() -> dict[str, float]:
        text = httpx2.get(f"{several.url}/metrics", timeout=PATIENCE).text
        found = re.findall(r'^ors_event_loop_lag_seconds_count{process="(\d)"} (\S+)$', text, re.MULTILINE)
        return {number: float(count) for number, count in found}

    eventually(lambda: len(measured()) == PROCESSES)
    before = measured()
    eventually(lambda: all(count > before[number] for number, count in measured().items()))


def test_a_stream_can_be_followed_on_every_process(api: Api, script: Script) -> None:
    gate = Gate()
    script.always(stream(chunk(content="Hel"), gate, *text("lo")))
    with ExitStack() as stack:
        first = stack.enter_context(api.stream(model=script.model, input="Hi"))
        created = first.next()
        response_id = created["response"]["id"]
        followers = [stack.enter_context(api.follow(response_id)) for _ in range(2 * PROCESSES)]
        assert [live.next() for live in followers] == [created] * len(followers)
        gate.open()
        events = first.rest()
        assert [live.rest() for live in followers] == [events] * len(followers)
    assert api.retrieve(response_id)["status"] == "completed"


def test_a_websocket_continues_responses_of_all_processes(
    several: WebProcess, api: Api, caller: Caller, script: Script
) -> None:
    script.always(stream(*text("Hello")))
    last = api.create(model=script.model, input="0")

    def all_have_continued() -> bool:
        nonlocal last
        with open_socket(several.url, secret=caller.secret) as socket:
            for _ in range(2):
                last = socket.respond(model=script.model, input="Hi", previous_response_id=last["id"])
        return len(owners(caller)) == PROCESSES

    eventually(all_have_continued)
    # Each request, on any process, has read all earlier messages.
    assert [len(messages) for messages in script.messages] == [*range(1, 2 * len(script.messages), 2)]


def test_a_background_run_can_be_cancelled_on_every_process(api: Api, script: Script, worker: WorkerProcess) -> None:
    script.always(stream(chunk(content="Hel"), Gate()))
    for _ in range(2 * PROCESSES):
        made = api.create(model=script.model, input="Hi", background=True)
        assert api.post(f"/responses/{made['id']}/cancel", {}).status_code == 200
        assert ended(api, made["id"])["status"] == "cancelled"


def test_a_killed_process_is_replaced_while_the_others_serve(
    several: WebProcess, api: Api, caller: Caller, script: Script
) -> None:
    script.always(stream(*text("Hello")))
    before = children(several)
    killed = min(before)
    eventually(lambda: beating(killed))
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: killed not in children(several))
    # Its heartbeat would be listed for another 11 to 16 seconds.
    eventually(lambda: not beating(killed), seconds=8)
    api.create(model=script.model, input="Hi")
    eventually(lambda: len(children(several)) == PROCESSES)
    assert before - {killed} < children(several)
    assert "died (exit code -9); starting it again" in several.output()


@pytest.mark.nightly
def test_processes_that_keep_crashing_are_replaced_by_the_same_parent(
    upstream: ScriptedUpstream, caller: Caller, script: Script
) -> None:
    script.always(stream(*text("Hello")))
    with running_web(server="uvicorn", processes="2") as process:
        # More processes die than the parent accepted in an earlier version.
        before, survivor = children(process), max(children(process))
        for _ in range(6):
            os.kill((before - {survivor}).pop(), signal.SIGKILL)
            eventually(partial(has_new_child, process, before=before))
            before = children(process)
        assert survivor in children(process)
        assert re.findall(r"starting it again in (\S+) s", process.output())[-6:-1] == [
            "0.5",
            "1.0",
            "2.0",
            "4.0",
            "8.0",
        ]
        with httpx2.Client(timeout=PATIENCE) as http:
            Api(http, url=process.url, caller=caller).create(model=script.model, input="Hi")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_stopping_the_parent_stops_all_processes(
    server: str, how: signal.Signals, caller: Caller, script: Script, upstream: ScriptedUpstream, http: httpx2.Client
) -> None:
    script.always(stream(chunk(content="Hel"), Gate()))
    with running_web(server=server, processes=str(PROCESSES)) as process:
        api, started = Api(http, url=process.url, caller=caller), children(process)
        with api.stream(model=script.model, input="Hi") as live:
            response_id = live.next()["response"]["id"]
            code = process.stop(how)
            eventually(lambda: not any(map(psutil.pid_exists, started)))
    assert code == (0 if how == signal.SIGTERM else -how)
    with scope.team(caller.team.pk):
        response = Response.objects.get(pk=response_id)
    assert response.handed_over_at is not None

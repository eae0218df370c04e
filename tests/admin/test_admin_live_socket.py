"""WebSockets of running jobs and of a response in progress, on real processes: updates within half a second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx2
import orjson
import pytest
from django.conf import settings
from django.test import Client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from core.clock import now
from responses.models import Response, ToolCall, Turn
from tenants import scope
from tenants.models import Membership, Role
from tests.admin.rows import member, sign_in
from tests.support.api import Api, Caller, MakeCaller
from tests.support.chunks import chunk
from tests.support.machine_clock import machine_time
from tests.support.mcp_requests import calling, tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import PATIENCE, eventually, half_a_second
from tests.support.web import WebProcess, running_web

pytestmark = pytest.mark.slow
_WAIT_SECONDS = PATIENCE

RowPredicate = Callable[[dict[str, Any]], object]


class Watcher:
    """State of a page of running jobs, built from the messages of its socket."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rows: dict[str, dict[str, Any]] = {}
        self.gone: dict[str, str] = {}
        self.counters: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []

    def receive(self, timeout: float = _WAIT_SECONDS) -> dict[str, Any]:
        """Receive the next message and apply it as the page does."""
        message: dict[str, Any] = orjson.loads(self.connection.recv(timeout=timeout))
        self.rows |= {row["id"]: row for row in message["set"]}
        for gone in message["gone"]:
            self.rows.pop(gone["id"], None)
            self.gone[gone["id"]] = gone["state"]
        self.counters = message["counters"]
        self.messages.append(message)
        return message

    def until(self, found: Callable[[], object]) -> datetime:
        """Return when `found` first is true."""
        deadline = machine_time() + _WAIT_SECONDS
        while not found():
            assert machine_time() < deadline, (self.rows, self.gone)
            self.receive()
        return now()

    def until_row(self, response_id: str, matches: RowPredicate) -> datetime:
        """Return when the row of a run first matches."""
        return self.until(lambda: response_id in self.rows and matches(self.rows[response_id]))

    def until_gone(self, response_id: str) -> datetime:
        """Return when the page shows that a run has ended."""
        return self.until(lambda: response_id in self.gone)

    def code(self) -> int:
        """Return the code with which the server closes the connection."""
        try:
            while True:
                self.connection.recv(timeout=_WAIT_SECONDS)
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 0


@contextmanager
def watching(
    web: WebProcess, client: Client | None, *, origin: str | None = None, path: str = "/admin/live/socket"
) -> Iterator[Watcher]:
    """Open the socket of the page with the session of this client."""
    session = client.cookies[settings.SESSION_COOKIE_NAME].value if client is not None else ""
    headers = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"} if session else {}
    address = web.url.replace("http", "ws", 1) + path
    with connect(
        address,
        additional_headers=headers,
        origin=origin or web.url,  # type: ignore[arg-type]
        proxy=None,
        open_timeout=PATIENCE,
    ) as connection:
        yield Watcher(connection)


def call(response_id: str, team_id: str) -> ToolCall:
    """Return the stored call of `wait`."""
    with scope.team(team_id):
        return ToolCall.objects.get(response_id=response_id, name__endswith="wait")


def turn(response_id: str, team_id: str) -> Turn:
    """Return the stored first turn."""
    with scope.team(team_id):
        return Turn.objects.get(response_id=response_id, number=0)


@pytest.mark.usefixtures("worker")
def test_turns_calls_and_cancellation_show_within_half_a_second(
    reaching: Api, reaching_web: WebProcess, script: Script, served: McpServer, lead: Client, caller: Caller
) -> None:
    gate, team_id = Gate(), caller.team.pk
    script.then(calling(("box__wait", "{}"))).then(stream(chunk(content="Hal"), gate))
    with watching(reaching_web, lead) as page:
        page.receive()
        body = {"model": script.model, "input": "Go.", "background": True, "tools": [tool(served)]}
        response_id = reaching.create(**body)["id"]
        calls = page.until_row(response_id, lambda row: row["step"] == "turn 1 · box__wait")
        first = turn(response_id, team_id)
        delays = {"the turn": calls - first.ended_at, "its call": calls - call(response_id, team_id).started_at}
        served.opened.set()
        returned = page.until_row(response_id, lambda row: row["step"] == "turn 2")
        ended_at = call(response_id, team_id).ended_at
        assert ended_at is not None
        delays["its result"] = returned - ended_at
        gate.wait_until_reached()
        page.until_row(response_id, lambda row: row["preview"] == "Hal")
        cancelled_at = now()
        assert lead.post(f"/admin/live/{response_id}/cancel/").status_code == 302
        delays["the end"] = page.until_gone(response_id) - cancelled_at
        assert page.gone[response_id] == "Cancelled"
        assert script.received[1].was_closed()
    limit = half_a_second(lambda: reaching.get("/models"))
    assert {what: after for what, after in delays.items() if after > limit} == {}


def test_a_queued_run_appears_and_disappears_when_cancelled(
    api: Api, web: WebProcess, script: Script, lead: Client, no_worker: None
) -> None:
    with watching(web, lead) as page:
        page.receive()
        response_id = api.create(model=script.model, input="Go.", background=True)["id"]
        shown = page.until_row(response_id, lambda row: row["state"] == "Queued")
        with scope.team(api.caller.team.pk):
            created_at = Response.objects.get(pk=response_id).created_at
        assert shown - created_at < half_a_second(lambda: api.get("/models")) * 2
        assert page.counters["queued"] == "1"
        lead.post(f"/admin/live/{response_id}/cancel/")
        page.until_gone(response_id)
        assert page.counters["queued"] == "0"


def test_only_changed_rows_are_sent(api: Api, web: WebProcess, script: Script, lead: Client, no_worker: None) -> None:
    first = api.create(model=script.model, input="Go.", background=True)["id"]
    with watching(web, lead) as page:
        assert page.receive()["type"] == "everything"
        second = api.create(model=script.model, input="Go.", background=True)["id"]
        page.until_row(second, bool)
        assert [row["id"] for message in page.messages[1:] for row in message["set"]] == [second]
    for response_id in (first, second):
        api.post(f"/responses/{response_id}/cancel", {})


def test_members_receive_runs_of_their_teams_and_staff_of_all(
    api: Api, web: WebProcess, script: Script, lead: Client, stranger: Client, operator: Client, no_worker: None
) -> None:
    with watching(web, lead) as own, watching(web, stranger) as other, watching(web, operator) as all_of_them:
        response_id = api.create(model=script.model, input="Go.", background=True)["id"]
        for page in (own, all_of_them):
            page.until_row(response_id, bool)
        lead.post(f"/admin/live/{response_id}/cancel/")
        for page in (own, all_of_them):
            page.until_gone(response_id)
        # Anything sent in between would be in the next two messages, which are at least keepalives.
        other.receive()
        other.receive()
        assert response_id.encode() not in orjson.dumps(other.messages)


def test_a_foreground_run_is_shown(api: Api, web: WebProcess, script: Script, lead: Client) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate, chunk(content="lo"), chunk(finish="stop")))
    with watching(web, lead) as page, api.stream(model=script.model, input="Go.") as streamed:
        gate.wait_until_reached()
        page.until(lambda: any(row["preview"] == "Hal" for row in page.rows.values()))
        (row,) = page.rows.values()
        assert (row["mode"], row["step"], row["may"]["requeue"]) == ("Stream", "turn 1", False)
        gate.open()
        streamed.rest()
        page.until(lambda: page.gone == {row["id"]: "Completed"})


# -- a response in progress --------------------------------------------------------------------------------------------


def follow_path(response_id: str) -> str:
    """Return the path of the socket of a response."""
    return f"/admin/live/follow?response={response_id}"


def next_events(page: Watcher) -> list[dict[str, Any]]:
    """Return the events of the next message."""
    message: dict[str, Any] = orjson.loads(page.connection.recv(timeout=_WAIT_SECONDS))
    return message["events"] if not message["has_ended"] else [{"has_ended": True}]


@pytest.mark.usefixtures("worker")
def test_a_response_page_receives_text_as_it_grows(api: Api, web: WebProcess, script: Script, lead: Client) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate, chunk(content="lo"), chunk(finish="stop")))
    response_id = api.create(model=script.model, input="Go.", background=True)["id"]
    gate.wait_until_reached()
    with watching(web, lead, path=follow_path(response_id)) as page:
        events: list[dict[str, Any]] = []
        while not any(event.get("text") for event in events):
            events += next_events(page)
        assert [(event.get("type"), event.get("text")) for event in events] == [("message", None), (None, "Hal")]
        gate.open()
        while "has_ended" not in events[-1]:
            events += next_events(page)
        words = "".join(event.get("text", "") for event in events)
        assert (words, events[-2]["status"]) == ("Hallo", "completed")
        assert page.code() == 1000


@pytest.mark.usefixtures("worker")
def test_tool_calls_are_sent_with_their_results(
    reaching: Api, reaching_web: WebProcess, script: Script, served: McpServer, lead: Client
) -> None:
    script.then(calling(("box__note", '{"a":1}'))).say("Done.")
    body = {"model": script.model, "input": "Go.", "background": True, "tools": [tool(served)]}
    response_id = reaching.create(**body)["id"]
    with watching(reaching_web, lead, path=follow_path(response_id)) as page:
        events: list[dict[str, Any]] = [{}]
        while "has_ended" not in events[-1]:
            events += next_events(page)
    calls = [event for event in events if event.get("type") == "mcp_call"]
    assert [(call["name"], call.get("status"), call.get("result")) for call in calls] == [
        ("box.note", None, None),
        ("box.note", "completed", "note is done"),
    ]


def test_viewers_without_read_access_receive_nothing(
    api: Api, web: WebProcess, script: Script, auditor: Client, operator: Client, stranger: Client, no_worker: None
) -> None:
    response_id = api.create(model=script.model, input="Go.", background=True)["id"]
    for client, code in ((auditor, 4403), (operator, 4403), (stranger, 4404)):
        with watching(web, client, path=follow_path(response_id)) as page:
            assert page.code() == code
    with watching(web, stranger, path=follow_path("resp_unknown")) as page:
        assert page.code() == 4404
    api.post(f"/responses/{response_id}/cancel", {})


def test_watching_does_not_keep_a_run_alive(
    api: Api, web: WebProcess, script: Script, lead: Client, caller: Caller
) -> None:
    """In contrast to an API client that follows a foreground run after the client of that run has disconnected."""
    gate = Gate()
    script.then(stream(chunk(content="Hal"), gate))
    with api.stream(model=script.model, input="Go.") as streamed:
        gate.wait_until_reached()
        response_id = streamed.next()["response"]["id"]
        with watching(web, lead, path=follow_path(response_id)) as page:
            while not any(event.get("text") for event in next_events(page)):
                pass
            with scope.team(caller.team.pk):
                assert Response.objects.get(pk=response_id).followed_until is None
            gate.open()


# -- authentication ----------------------------------------------------------------------------------------------------


def test_the_socket_needs_a_session(web: WebProcess) -> None:
    with watching(web, None) as page:
        assert page.code() == 4401


def test_the_socket_needs_a_role(web: WebProcess, database: None) -> None:
    with watching(web, sign_in()) as page:
        assert page.code() == 4403


def test_the_socket_needs_a_required_second_factor(upstream: object, lead: Client) -> None:
    with running_web(REQUIRE_SECOND_FACTOR="1") as strict, watching(strict, lead) as page:
        assert page.code() == 4401


def test_a_page_of_another_origin_is_refused(web: WebProcess, lead: Client) -> None:
    with pytest.raises(Exception, match="403"), watching(web, lead, origin="https://elsewhere.example"):
        pass


def test_connections_close_when_the_session_ends_or_the_role_is_removed(
    web: WebProcess, lead: Client, make_caller: MakeCaller
) -> None:
    team = make_caller().team
    developer = member(team, Role.DEVELOPER)
    # Both at once, because each is noticed at the next check, which is up to ten seconds later.
    with watching(web, lead) as signed_out, watching(web, developer) as removed:
        for page in (signed_out, removed):
            page.receive()
        lead.post("/admin/logout/")
        with scope.team(team.pk):
            Membership.objects.filter(team=team).delete()
        assert (signed_out.code(), removed.code()) == (4401, 4403)


def test_the_socket_works_without_redis(
    caller: Caller, lead: Client, http: httpx2.Client, web: WebProcess, script: Script, no_worker: None
) -> None:
    alone = WebProcess(REDIS_URL="redis://127.0.0.1:1/0")
    try:
        eventually(lambda: is_live(alone, http), seconds=60)
        with watching(alone, lead) as page:
            assert page.receive()["counters"]["workers"] == "–"
            response_id = Api(http, url=web.url, caller=caller).create(
                model=script.model, input="Go.", background=True
            )["id"]
            page.until_row(response_id, bool)
            lead.post(f"/admin/live/{response_id}/cancel/")
            page.until(lambda: page.gone == {response_id: "Cancelled"})
    finally:
        alone.stop()


def is_live(web: WebProcess, http: httpx2.Client) -> bool:
    """Return True if the process answers. It never becomes ready."""
    try:
        return http.get(f"{web.url}/livez").status_code == 200
    except httpx2.TransportError:
        return False

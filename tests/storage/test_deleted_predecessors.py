"""A response is deleted while its successor is created: the chain has no gap in either order of the commits."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from django.db import connections

from responses.lifecycle import cancel
from responses.models import Response
from responses.runs import store
from responses.runs.identity import RequestInfo
from responses.runs.store import Change, LeaseLost, PredecessorGuard
from tenants import directory, scope
from tests.support.api import Api, Caller, error, ok
from tests.support.stored_runs import begin, prepare
from tests.support.upstream import Script
from tests.support.waiting import eventually
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket

_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"


def new_successor(caller: Caller, previous_id: str) -> tuple[str, Change]:
    """Return the id of a new successor and the change that stores it."""
    begun, change = prepare(caller, previous_response_id=previous_id)
    response_id = begun.who.response_id
    return response_id, replace(change, predecessor=PredecessorGuard(response_id=response_id, previous_id=previous_id))


def delete(caller: Caller, response_id: str) -> None:
    principal = directory.principal(caller.secret)
    with scope.team(caller.team.pk):
        response = Response.objects.get(pk=response_id)
    request = RequestInfo(request_id="req_test")
    cancel.delete_response(actor=principal.actor, response=response, request=request)


def test_a_response_to_a_deleted_predecessor_is_not_stored(database: None, caller: Caller) -> None:
    previous = begin(caller).who.response_id
    _, change = new_successor(caller, previous)
    delete(caller, previous)
    other, unconcerned = prepare(caller)
    lost, made = store.apply([change, unconcerned])
    assert (type(lost), made) == (LeaseLost, None)
    with scope.team(caller.team.pk):
        assert list(Response.objects.values_list("pk", flat=True)) == [other.who.response_id]


def test_a_deletion_waits_for_a_new_successor_and_links_it(database: None, caller: Caller) -> None:
    first = begin(caller).who.response_id
    second = begin(caller, previous_response_id=first).who.response_id
    third, change = new_successor(caller, second)

    def work(*_: Any) -> None:
        try:
            delete(caller, second)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as other:
        with scope.team(caller.team.pk):
            assert store.apply([change]) == [None]
            deleting = other.submit(work)
            eventually(lambda: waiting_sessions() == 1 and not deleting.done())
        deleting.result()
    with scope.team(caller.team.pk):
        assert Response.objects.get(pk=third).previous_response_id == first


def waiting_sessions() -> int:
    """Return the number of sessions that wait for a lock of this one."""
    with connections["default"].cursor() as cursor:
        cursor.execute(_WAITING)
        return int(cursor.fetchone()[0])


def test_a_websocket_cannot_continue_a_deleted_response(api: Api, script: Script, web: WebProcess) -> None:
    """The connection still has the items in memory, but a later successor on another node would not."""
    script.say("1").say("2")
    first = api.create(model=script.model, input="a")["id"]
    with open_socket(web.url, secret=api.caller.secret) as socket:
        unstored = socket.respond(model=script.model, input="b", previous_response_id=first, store=False)["id"]
        ok(api.delete(f"/responses/{first}"))
        socket.ask(model=script.model, input="c", previous_response_id=unstored)
        refused = socket.next()
    assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")
    assert refused["error"]["message"] == f"Previous response with id '{unstored}' not found."
    assert error(api.post("/responses", {"model": script.model, "input": "c", "previous_response_id": first}))

"""The webhook outbox: which events create deliveries."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from django.db import connection, transaction

from core.errors import Failure
from engine.events.response_body import Ending, failed
from engine.steps import RunEnded
from responses.runs import store
from responses.runs.recorder import Recorder
from responses.runs.store import LeaseLost
from responses.webhooks import services
from tenants import scope
from tests.support.api import Caller, MakeCaller
from tests.support.scripted import ScriptedModel
from tests.support.stored_runs import Begun, begin, response_of
from tests.support.webhooks import ACTOR, add_endpoint, announce, change_endpoint, deliveries_of, endpoint_of

OPENING = 2


def in_background(caller: Caller, **request: Any) -> Begun:
    """A response that a worker runs."""
    begun = begin(caller, **request)
    who = replace(begun.who, background=True)
    return replace(begun, who=who, recorder=Recorder(who, next_sequence=OPENING))


def end(begun: Begun, ending: Ending | None = None) -> Sequence[Exception | None]:
    """End the run like a process that has resumed it."""
    gone = Failure(code="server_error", message="gone")
    step: RunEnded = begun.run(ScriptedModel()).end_idle(ending or failed(gone))
    _, change = begun.recorder.plan(step)
    return store.apply([change])


def test_each_subscribed_endpoint_gets_the_end_of_a_background_run(caller: Caller) -> None:
    wanted = [add_endpoint(caller, "https://a.example/"), add_endpoint(caller, "https://b.example/", "response.failed")]
    add_endpoint(caller, "https://c.example/", "response.completed")
    begun = in_background(caller)
    assert end(begun) == [None]
    deliveries = deliveries_of(caller)
    assert {one.endpoint_id for one in deliveries} == {made.pk for made in wanted}
    assert {(one.event_type, one.object_id) for one in deliveries} == {("response.failed", begun.who.response_id)}
    assert len({one.event_id for one in deliveries}) == 1
    assert deliveries[0].created_at == response_of(begun).ended_at


def test_foreground_runs_create_no_deliveries(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    assert end(begin(caller)) == [None]
    assert deliveries_of(caller) == []


def test_a_lost_run_creates_no_deliveries(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    begun = in_background(caller)
    assert end(begun) == [None]
    (lost,) = end(begun)
    assert isinstance(lost, LeaseLost)
    assert len(deliveries_of(caller)) == 1


def test_an_end_written_twice_creates_one_delivery(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    begun = in_background(caller)
    step = begun.run(ScriptedModel()).end_idle(failed(Failure(code="server_error", message="gone")))
    _, change = begun.recorder.plan(step)
    for _ in range(2):
        assert store.apply([replace(change, update=None, insert=[])]) == [None]
    assert len(deliveries_of(caller)) == 1


def test_disabled_endpoints_and_those_of_other_teams_get_nothing(caller: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    add_endpoint(other, "https://a.example/")
    add_endpoint(caller, "https://b.example/")
    services.set_enabled(endpoint=endpoint_of(caller), actor=ACTOR, enabled=False)
    assert announce(caller) == 0
    assert (deliveries_of(caller), deliveries_of(other)) == ([], [])
    change_endpoint(caller, enabled=True, disabled_at=None)
    assert announce(caller) == 1


def test_a_rolled_back_event_is_not_delivered(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    with scope.team(caller.team.pk):
        assert announce(caller) == 1
        transaction.set_rollback(True)
    assert deliveries_of(caller) == []


def test_deleting_an_endpoint_deletes_its_deliveries_without_blocking_runs(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    announce(caller)
    begun = in_background(caller)
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        services.delete_endpoint(endpoint=endpoint_of(caller), actor=ACTOR)
        cursor.execute("SELECT count(*) FROM responses_webhookdelivery")
        assert cursor.fetchone() == (0,)
        # The deletion is not committed yet. The end of a run on another connection does not wait for it.
        assert end_elsewhere(begun) == [None]
    assert deliveries_of(caller) == []
    assert response_of(begun).ended_at is not None


def end_elsewhere(begun: Begun) -> Sequence[Exception | None]:
    """End the run in another thread with its own connection."""

    def work() -> Sequence[Exception | None]:
        try:
            return end(begun)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)

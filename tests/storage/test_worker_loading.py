"""Loading a claimed response in a worker: either its run, or an end with the reason."""

import uuid
from datetime import timedelta
from typing import Any

import pytest

from kernel.clock import now
from kernel.leases import Claim
from responses.engine.events.response_body import Ending
from responses.lifecycle import resume, worker
from responses.models import Response, Status
from responses.runs import store
from tenants import scope, services
from tenants.models import Upstream
from tests.support.api import Caller
from tests.support.stored_runs import Begun, begin, body_of, log_of
from tests.support.streams import types


def claimed(caller: Caller, upstream: Upstream) -> tuple[Begun, Claim]:
    """Store a background response for this upstream, claimed by this test."""
    begun = begin(caller, input="Hi", background=True)
    with scope.team(begun.who.team_id):
        Response.objects.filter(pk=begun.who.response_id).update(
            background=True,
            status=Status.QUEUED,
            upstream_id=upstream.pk,
            lease_until=now() + timedelta(hours=1),
        )
    who = begun.who
    return begun, Claim(id=who.response_id, team_id=who.team_id, token=who.lease_token)


@pytest.fixture
def upstream(database: None) -> Upstream:
    """An upstream that only this test uses."""
    name = f"gone {uuid.uuid4().hex}"
    services.add_upstream(name=name, base_url="http://127.0.0.1:1/v1", models=["scripted"])
    return Upstream.objects.get(name=name)


def test_a_queued_run_is_loaded_as_queued(caller: Caller, upstream: Upstream) -> None:
    begun, one = claimed(caller, upstream)
    taken = worker._load(one)
    assert taken is not None
    assert (taken.identity.response_id, taken.identity.background) == (begun.who.response_id, True)


def test_a_run_whose_upstream_was_deleted_fails_with_a_reason(caller: Caller, upstream: Upstream) -> None:
    begun, one = claimed(caller, upstream)
    with scope.every_team():
        upstream.delete()
    assert worker._load(one) is None
    body = body_of(begun)
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert "'scripted'" in body["error"]["message"]
    assert types(log_of(begun))[-2:] == ["error", "response.failed"]


def test_a_revoked_key_fails_the_queued_run(caller: Caller, upstream: Upstream) -> None:
    begun, one = claimed(caller, upstream)
    with scope.every_team():
        services.revoke_key(key=caller.key, actor="test")
    assert worker._load(one) is None
    assert "revoked" in body_of(begun)["error"]["message"]


def test_a_key_that_expired_in_the_queue_does_not_fail_the_run(caller: Caller, upstream: Upstream) -> None:
    _, one = claimed(caller, upstream)
    with scope.every_team():
        caller.key.expires_at = now() - timedelta(minutes=1)
        caller.key.save()
    assert worker._load(one) is not None


@pytest.mark.parametrize(
    "columns",
    [
        {"lease_token": 2},
        {"lease_token": 2, "status": Status.CANCELLED, "ended_at": now()},
        {"status": Status.COMPLETED, "ended_at": now(), "completed_at": now()},
    ],
)
def test_a_run_claimed_or_ended_by_another_process_is_left_alone(
    caller: Caller, upstream: Upstream, columns: dict[str, Any]
) -> None:
    """Its upstream is deleted, so that a worker that wrongly considers the run its own would end it."""
    begun, one = claimed(caller, upstream)
    with scope.every_team():
        upstream.delete()
        Response.objects.filter(pk=one.id).update(**columns)
    assert worker._load(one) is None
    assert body_of(begun)["status"] == columns.get("status", Status.QUEUED)


def test_a_claim_lost_while_loading_cannot_end_the_run(caller: Caller) -> None:
    begun = begin(caller, input="Hi", background=True)
    with scope.team(begun.who.team_id):
        Response.objects.filter(pk=begun.who.response_id).update(lease_token=2)
        late = resume.load(response_id=begun.who.response_id, lease_token=1)
    _, change = late.recorder.plan(late.run.end_idle(Ending(status="cancelled")))
    (lost,) = store.apply([change])
    assert isinstance(lost, store.LeaseLost)
    assert body_of(begun)["status"] == "in_progress"

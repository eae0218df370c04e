"""Loading a claimed response in a worker: it returns the run, or ends it with the reason."""

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.clock import now
from core.errors import ModelNotFound, Unauthorized
from core.work.leases import Claim
from engine.calls.toolbox import Toolbox
from engine.events.response_body import Ending
from providers.targets.turn import FailoverModel
from responses.lifecycle import claimed_run, resume
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response, Status
from responses.runs import store
from tenants import directory, scope, services
from tenants.models import Guardrail, Model, Upstream
from tenants.prices import PriceList
from tests.support.api import Caller, MakeCaller
from tests.support.stored_runs import Begun, begin, body_of, log_of
from tests.support.streams import types


def claimed(caller: Caller, upstream: Upstream, **request: Any) -> tuple[Begun, Claim]:
    """Store a background response for this upstream, claimed by this test."""
    begun = begin(caller, **{"input": "Hi", "background": True, **request})
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


def test_a_queued_run_is_loaded_with_its_request(caller: Caller, upstream: Upstream) -> None:
    begun, one = claimed(caller, upstream)
    taken = claimed_run.load(one)
    assert taken is not None
    identity = taken.assembled.identity
    assert (identity.response_id, identity.background) == (begun.who.response_id, True)


def test_a_run_whose_upstream_was_deleted_fails_with_a_reason(caller: Caller, upstream: Upstream) -> None:
    begun, one = claimed(caller, upstream)
    with scope.every_team():
        upstream.delete()
    assert claimed_run.load(one) is None
    body = body_of(begun)
    assert (body["status"], body["error"]["code"]) == ("failed", "server_error")
    assert "'scripted'" in body["error"]["message"]
    assert types(log_of(begun))[-2:] == ["error", "response.failed"]


@pytest.mark.parametrize("is_gone", [False, True], ids=["both", "first is gone"])
def test_a_run_is_loaded_with_the_targets_that_still_exist(caller: Caller, upstream: Upstream, is_gone: bool) -> None:
    other = services.add_upstream(name=f"other {uuid.uuid4().hex}", base_url="http://127.0.0.1:2/v1", models=["m"])
    _, one = claimed(caller, upstream)
    targets = [["scripted", upstream.pk, "scripted", []], ["m", other.pk, "theirs", []]]
    with scope.every_team():
        Response.objects.filter(pk=one.id).update(options={"targets": targets})
        if is_gone:
            upstream.delete()
    taken = claimed_run.load(one)
    assert taken is not None
    model = taken.assembled.run._model
    assert isinstance(model, FailoverModel)
    found = [(route.model, route.upstream.id, route.upstream_model) for route in model.targets.ordered()]
    assert found == [tuple(target[:3]) for target in targets[is_gone:]]


def test_a_run_is_loaded_with_the_target_that_has_answered(caller: Caller, upstream: Upstream) -> None:
    other = services.add_upstream(name=f"other {uuid.uuid4().hex}", base_url="http://127.0.0.1:2/v1", models=["m"])
    _, one = claimed(caller, upstream)
    prices = PriceList.simple(input="1", output="2")
    targets = [["m", other.pk, "m", []], ["scripted", upstream.pk, "scripted", prices.stored()]]
    with scope.every_team():
        Response.objects.filter(pk=one.id).update(options={"targets": targets})
    taken = claimed_run.load(one)
    assert taken is not None
    model = taken.assembled.run._model
    assert isinstance(model, FailoverModel)
    assert [route.upstream.id for route in model.targets.ordered()] == [upstream.pk, other.pk]
    assert taken.assembled.identity.prices == prices


def test_a_revoked_key_fails_the_queued_run(caller: Caller, upstream: Upstream) -> None:
    begun, one = claimed(caller, upstream)
    with scope.every_team():
        services.revoke_key(key=caller.key, actor="test")
    assert claimed_run.load(one) is None
    assert "revoked" in body_of(begun)["error"]["message"]


def test_a_key_that_expired_in_the_queue_does_not_fail_the_run(caller: Caller, upstream: Upstream) -> None:
    _, one = claimed(caller, upstream)
    with scope.every_team():
        caller.key.expires_at = now() - timedelta(minutes=1)
        caller.key.save()
    assert claimed_run.load(one) is not None


@pytest.mark.parametrize(
    "columns",
    [
        {"lease_token": 2},
        {"lease_token": 2, "status": Status.CANCELLED, "ended_at": now()},
        {"status": Status.COMPLETED, "ended_at": now(), "completed_at": now()},
    ],
)
def test_a_run_claimed_or_ended_by_another_process_is_not_started(
    caller: Caller, upstream: Upstream, columns: dict[str, Any]
) -> None:
    """The upstream is deleted: a worker that wrongly considers the run its own would end it."""
    begun, one = claimed(caller, upstream)
    with scope.every_team():
        upstream.delete()
        Response.objects.filter(pk=one.id).update(**columns)
    assert claimed_run.load(one) is None
    assert body_of(begun)["status"] == columns.get("status", Status.QUEUED)


def test_queued_runs_are_loaded_together(caller: Caller, upstream: Upstream) -> None:
    claims = [claimed(caller, upstream)[1] for _ in range(5)]
    with CaptureQueriesContext(connection) as one:
        resume.read_queued(claims[:1])
    with CaptureQueriesContext(connection) as five:
        assert set(resume.read_queued(claims)) == {claim.id for claim in claims}
    assert len(one) == len(five)


def test_the_number_of_queries_does_not_grow_with_the_teams(make_caller: MakeCaller, upstream: Upstream) -> None:
    claims = [claimed(make_caller(), upstream)[1] for _ in range(6)]
    with CaptureQueriesContext(connection) as one:
        claimed_run.read_queued(claims[:1])
    with CaptureQueriesContext(connection) as five:
        queued = claimed_run.read_queued(claims[1:])
    assert len(one) == len(five)
    with CaptureQueriesContext(connection) as queries:
        assert all(claimed_run.load(claim, queued[claim.id]) is not None for claim in claims[1:])
    assert len(queries) == 0


def test_runs_loaded_together_equal_runs_loaded_alone(make_caller: MakeCaller, upstream: Upstream) -> None:
    allowed, refused, revoked = make_caller(), make_caller(), make_caller()
    models = Model.objects.filter(upstream=upstream)
    with scope.every_team():
        models.get().teams.add(allowed.team, revoked.team)
        Guardrail.objects.create(team=allowed.team, output_checker="model", output_action="flag", model="guard")
        services.revoke_key(key=revoked.key, actor="test")
    runs = {(one.key.pk, one.team.pk, "scripted", upstream.pk, "scripted") for one in (allowed, refused, revoked)}
    directory.look_up_runs(runs)
    with CaptureQueriesContext(connection) as queries:
        assert directory.principal_of_run(allowed.key.pk).team_id == allowed.team.pk
        assert route_of(allowed, upstream).upstream.base_url == upstream.base_url
        found = directory.guardrails(allowed.team.pk)
        assert found is not None
        assert found.model == "guard"
        assert directory.guardrails(refused.team.pk) is None
        with pytest.raises(ModelNotFound):
            route_of(refused, upstream)
        with pytest.raises(Unauthorized, match="revoked"):
            directory.principal_of_run(revoked.key.pk)
    assert len(queries) == 0


def test_an_upstream_whose_key_cannot_be_decrypted_fails_only_its_own_runs(caller: Caller, upstream: Upstream) -> None:
    name = f"broken {uuid.uuid4().hex}"
    services.add_upstream(name=name, base_url="http://127.0.0.1:2/v1", models=["scripted"])
    with scope.every_team(), connection.cursor() as cursor:
        cursor.execute("UPDATE tenants_upstream SET api_key = 'x' WHERE name = %s RETURNING id", [name])
        ((broken_id,),) = cursor.fetchall()
    try:
        runs = {(caller.key.pk, caller.team.pk, "scripted", one, "scripted") for one in (upstream.pk, broken_id)}
        directory.look_up_runs(runs)
        assert route_of(caller, upstream).upstream.base_url == upstream.base_url
    finally:
        with scope.every_team():
            Upstream.objects.defer("api_key").filter(pk=broken_id).delete()


def route_of(caller: Caller, upstream: Upstream) -> directory.Route:
    """Return the route of a run of this caller."""
    return directory.route_of_run(
        team_id=caller.team.pk, model="scripted", upstream_id=upstream.pk, upstream_model="scripted"
    )


@pytest.mark.parametrize(
    "request_",
    [{}, {"instructions": "Be brief."}, {"input": [{"role": "user", "content": "A"}] * 3}],
)
def test_a_queued_run_is_assembled_like_a_resumed_one(
    caller: Caller, upstream: Upstream, request_: dict[str, Any]
) -> None:
    begun, one = claimed(caller, upstream, **request_)
    queued, resumed = claimed_run.load(one, resume.read_queued([one])[one.id]), claimed_run.load(one)
    assert queued is not None
    assert resumed is not None
    first, again = queued.assembled, resumed.assembled
    assert first.identity == again.identity
    assert first.recorder._progress == again.recorder._progress
    assert first.recorder.log.next_sequence == again.recorder.log.next_sequence
    assert first.run._state == again.run._state
    assert first.run._context.items == again.run._context.items
    assert len(first.run._context.items) == len(begun.context.items)
    assert first.run._context.parameters == again.run._context.parameters


@pytest.mark.parametrize(
    "columns", [{"lease_token": 2}, {"status": Status.IN_PROGRESS}, {"status": Status.CANCELLED, "ended_at": now()}]
)
def test_started_and_lost_runs_are_not_loaded_as_queued(
    caller: Caller, upstream: Upstream, columns: dict[str, Any]
) -> None:
    _, one = claimed(caller, upstream)
    with scope.every_team():
        Response.objects.filter(pk=one.id).update(**columns)
    assert resume.read_queued([one]) == {}


def test_runs_of_a_dead_process_are_not_loaded_as_queued(caller: Caller, upstream: Upstream) -> None:
    _, one = claimed(caller, upstream)
    assert resume.read_queued([replace(one, has_expired=True)]) == {}


def test_a_claim_lost_while_loading_cannot_end_the_run(caller: Caller) -> None:
    begun = begin(caller, input="Hi", background=True)
    with scope.team(begun.who.team_id):
        Response.objects.filter(pk=begun.who.response_id).update(lease_token=2)
        late = resume.load(response_id=begun.who.response_id, lease_token=1)
    run = late.build(RunFactory(), Toolbox()).run
    _, change = late.recorder.plan(run.end_idle(Ending(status="cancelled")))
    (lost,) = store.apply([change])
    assert isinstance(lost, store.LeaseLost)
    assert body_of(begun)["status"] == "in_progress"

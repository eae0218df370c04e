"""The queue of background responses: fair between teams, each response claimed once, with a limited number of attempts.

Claims are rolled back with the transaction of the test, so that running workers never see them.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from core.clock import now
from core.process_name import process_name
from core.work.leases import Claim
from responses.lifecycle import queue
from responses.models import Mode, Response, Status
from tenants import scope
from tenants.models import Team
from tests.support.api import Caller, MakeCaller

HELD_BY_ANOTHER = {"lease_owner": "another", "lease_until": now() + timedelta(hours=1)}


@pytest.fixture
def rolled_back(database: None) -> Iterator[None]:
    """A transaction that sees every team and is rolled back."""
    with transaction.atomic(), scope.every_team():
        # Hide responses that other tests have left in the queue.
        Response.objects.filter(background=True, ended_at=None).update(attempt=1000)
        yield
        transaction.set_rollback(True)


def add_queued(caller: Caller, number: int = 1, **columns: Any) -> list[str]:
    """Queue responses of this caller and return their ids, oldest first."""
    rows = [
        Response.objects.create(
            team=caller.team,
            api_key=caller.key,
            mode=Mode.JSON,
            status=columns.get("status", Status.QUEUED),
            background=True,
            created_at=now() + timedelta(seconds=index),
            **{name: value for name, value in columns.items() if name != "status"},
        )
        for index in range(number)
    ]
    return [row.pk for row in rows]


def claimed_ids(slots: int, **held: int) -> list[str]:
    """Return the ids of the responses that a worker claims; `runs` are its active runs by team."""
    running = [Claim(id=f"held by {team}", team_id=team) for team, number in held.items() for _ in range(number)]
    return [claimed.id for claimed in queue.claim(slots=slots, running=running)]


def test_a_claim_takes_the_lease_and_increments_its_token(rolled_back: None, caller: Caller) -> None:
    (response_id,) = add_queued(caller)
    assert claimed_ids(4) == [response_id]
    row = Response.objects.get(pk=response_id)
    assert (row.lease_token, row.attempt, row.lease_owner) == (2, 1, process_name())
    assert row.lease_until is not None
    assert row.lease_until > now()
    assert claimed_ids(4) == []


def test_each_claim_is_recorded_with_time_and_worker(rolled_back: None, caller: Caller) -> None:
    (response_id,) = add_queued(caller)
    before = now()
    for _ in range(2):
        claimed_ids(4)
        Response.objects.filter(pk=response_id).update(lease_until=None)
    claims_made = Response.objects.get(pk=response_id).claims
    assert [made["by"] for made in claims_made] == [process_name(), process_name()]
    assert all(datetime.fromisoformat(made["at"]) >= before - timedelta(seconds=60) for made in claims_made)


def test_a_postponed_response_is_claimed_after_the_pause(rolled_back: None, caller: Caller) -> None:
    (response_id,) = add_queued(caller)
    (claim,) = queue.claim(slots=4, running=[])
    queue.postpone(claim, seconds=60)
    assert claimed_ids(4) == []
    row = Response.objects.get(pk=response_id)
    assert (row.status, row.lease_until, row.attempt, row.claims) == (Status.QUEUED, None, 0, [])
    Response.objects.filter(pk=response_id).update(not_before=now() - timedelta(seconds=1))
    assert claimed_ids(4) == [response_id]


def test_a_lost_claim_is_not_postponed(rolled_back: None, caller: Caller) -> None:
    (response_id,) = add_queued(caller)
    (claim,) = queue.claim(slots=4, running=[])
    Response.objects.filter(pk=response_id).update(lease_token=9)
    queue.postpone(claim, seconds=60)
    assert Response.objects.get(pk=response_id).not_before is None


def test_teams_take_turns_with_their_oldest_response_first(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    first, second = add_queued(many, 10), add_queued(few, 2)
    assert set(claimed_ids(4)) == {*first[:2], *second}


def test_a_team_with_more_runs_waits_for_teams_with_fewer(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    add_queued(many, 10)
    second = add_queued(few, 3)
    assert set(claimed_ids(8, **{many.team.pk: 5})) == set(second)


def test_a_full_worker_still_claims_for_a_team_that_comes_late(rolled_back: None, make_caller: MakeCaller) -> None:
    many, late = make_caller(), make_caller()
    add_queued(many, 10)
    second = add_queued(late, 3)
    assert set(claimed_ids(4, **{many.team.pk: 4})) == set(second[:2])
    assert claimed_ids(4, **{many.team.pk: 4, late.team.pk: 2}) == []


def test_a_team_with_a_higher_weight_gets_a_larger_share(rolled_back: None, make_caller: MakeCaller) -> None:
    heavy, light = make_caller(), make_caller()
    Team.objects.filter(pk=heavy.team.pk).update(weight=3)
    add_queued(heavy, 10)
    add_queued(light, 10)
    teams = Counter(claimed.team_id for claimed in queue.claim(slots=8, running=[]))
    assert teams == {heavy.team.pk: 6, light.team.pk: 2}


def test_a_busy_worker_claims_only_for_teams_with_few_runs(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    add_queued(many, 10)
    second = add_queued(few, 6)
    running = [Claim(id=f"held {number}", team_id=many.team.pk) for number in range(8)]
    assert {claimed.id for claimed in queue.claim(slots=100, running=running, limit=8)} == set(second[:4])
    assert len(queue.claim(slots=100, running=running, limit=100)) == 12


def test_a_single_team_may_use_all_slots(rolled_back: None, caller: Caller) -> None:
    assert claimed_ids(4) == []
    assert len(add_queued(caller, 10)) == 10
    assert len(claimed_ids(4)) == 4
    assert claimed_ids(4, **{caller.team.pk: 4}) == []


@pytest.mark.parametrize(
    ("columns", "is_taken"),
    [
        (HELD_BY_ANOTHER, False),
        ({**HELD_BY_ANOTHER, "lease_until": now() - timedelta(seconds=1)}, True),
        ({"status": Status.IN_PROGRESS}, True),
        ({"attempt": 4}, True),
        ({"attempt": 5}, False),
    ],
)
def test_only_unleased_responses_with_attempts_left_are_claimed(
    rolled_back: None, caller: Caller, columns: dict[str, Any], is_taken: bool
) -> None:
    queued = add_queued(caller, **columns)
    assert claimed_ids(4) == (queued if is_taken else [])


def test_a_released_response_is_claimable_and_does_not_count_as_an_attempt(rolled_back: None, caller: Caller) -> None:
    (response_id,) = add_queued(caller)
    claimed_ids(4)
    assert queue.release([response_id]) == 1
    row = Response.objects.get(pk=response_id)
    assert (row.attempt, row.lease_until, row.lease_token) == (0, None, 2)
    assert claimed_ids(4) == [response_id]


def test_a_process_does_not_claim_its_own_runs(rolled_back: None, caller: Caller) -> None:
    (response_id,) = add_queued(caller)
    mine = Claim(id=response_id, team_id=caller.team.pk)
    assert queue.claim(slots=4, running=[mine]) == []


@pytest.mark.slow
def test_a_long_queue_of_one_team_does_not_slow_down_a_claim(rolled_back: None, make_caller: MakeCaller) -> None:
    """The queue of one team is not read to find the first response of another."""
    many, few = make_caller(), make_caller()
    add_queued(many, 300)
    add_queued(few, 1)
    teams = Counter(claimed.team_id for claimed in queue.claim(slots=6, running=[]))
    assert teams == {many.team.pk: 5, few.team.pk: 1}

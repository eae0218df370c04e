"""Changes that store a reservation of limits are written only if Redis still has the state that granted it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.ids import new_id
from responses.models import Response
from responses.runs import store
from responses.runs.rows import new_row
from responses.runs.store import Change, LeaseLost, PredecessorGuard, ReservationGuard, ReservationLost
from tenants import scope
from tenants.models import LimitEpoch, Reservation
from tests.support.api import Caller
from tests.support.stored_runs import begin, prepare

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def epoch(database: None, caller: Caller) -> int:
    """The epoch of the caller's team."""
    with scope.team(caller.team.pk):
        LimitEpoch.objects.create(team=caller.team, epoch=7)
    return 7


def reserving(caller: Caller, *, epoch: int, response_id: str = "") -> Change:
    """Return a change that stores a reservation of one dollar."""
    key = response_id or new_id("call")
    row = new_row(
        Reservation,
        id=key,
        team_id=caller.team.pk,
        api_key_id=caller.key.pk,
        kind="call",
        epoch=epoch,
        amount=1,
        created_at=AT,
    )
    guard = ReservationGuard(reservation_id=key, team_id=caller.team.pk, epoch=epoch)
    return Change(team_id=caller.team.pk, insert=[row], reservation=guard)


def stored(caller: Caller) -> int:
    """Return the number of the team's reservations."""
    with scope.team(caller.team.pk):
        return Reservation.objects.filter(team=caller.team).count()


def test_a_reservation_from_the_current_limit_state_is_stored(caller: Caller, epoch: int) -> None:
    assert store.apply([reserving(caller, epoch=epoch)]) == [None]
    assert stored(caller) == 1


def test_a_reservation_from_lost_limit_state_is_not_stored(caller: Caller, epoch: int) -> None:
    (lost,) = store.apply([reserving(caller, epoch=epoch - 1)])
    assert isinstance(lost, ReservationLost)
    assert stored(caller) == 0


def test_a_team_without_limit_state_stores_no_reservation(caller: Caller) -> None:
    (lost,) = store.apply([reserving(caller, epoch=1)])
    assert isinstance(lost, ReservationLost)


def test_other_changes_of_the_group_are_written(caller: Caller, epoch: int) -> None:
    begun, change = prepare(caller)
    changes = [reserving(caller, epoch=1), change, reserving(caller, epoch=epoch)]
    lost, *written = store.apply(changes)
    assert isinstance(lost, ReservationLost)
    assert written == [None, None]
    assert stored(caller) == 1
    with scope.team(caller.team.pk):
        assert Response.objects.filter(pk=begun.who.response_id).exists()


@pytest.mark.parametrize(
    ("is_current", "has_predecessor", "outcome"),
    [
        (True, True, None),
        (True, False, LeaseLost),
        (False, True, ReservationLost),
        (False, False, ReservationLost),
    ],
)
def test_a_response_needs_its_reservation_and_its_predecessor(
    caller: Caller, epoch: int, is_current: bool, has_predecessor: bool, outcome: type[Exception] | None
) -> None:
    before = begin(caller)
    begun, change = prepare(caller)
    reserved = reserving(caller, epoch=epoch if is_current else 1, response_id=begun.who.response_id)
    previous_id = before.who.response_id if has_predecessor else "resp_nothing"
    (found,) = store.apply(
        [
            replace(
                change,
                insert=[*change.insert, *reserved.insert],
                predecessor=PredecessorGuard(response_id=begun.who.response_id, previous_id=previous_id),
                reservation=reserved.reservation,
            )
        ]
    )
    assert found is None if outcome is None else type(found) is outcome
    assert stored(caller) == (outcome is None)
    with scope.team(caller.team.pk):
        assert Response.objects.filter(pk=begun.who.response_id).exists() == (outcome is None)

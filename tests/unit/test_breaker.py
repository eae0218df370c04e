"""The state machine of circuit breakers, and the failures that they count."""

import pytest

from core.errors import ContextTooLong, Failure, RateLimited, RequestRejected, UpstreamError
from providers.clients import to_failure
from providers.http_client import ErrorStatus, NoAnswer, Unreachable
from providers.targets.breaker.reasons import Reason, reason_of
from providers.targets.breaker.state import MAX_FAILURES, PROBE_SECONDS, QUOTA_PAUSE, Breaker, Snapshot, State

NOW = 1000.0
BROKEN = Failure.of(UpstreamError("The connection broke."))


def opened(reason: Reason = Reason.UNREACHABLE, *, at: float = NOW) -> Breaker:
    """Return a breaker that has just opened."""
    breaker = Breaker()
    for _ in range(MAX_FAILURES):
        breaker.failed(reason, at)
    return breaker


def pause(breaker: Breaker) -> float:
    """Return the seconds for which a breaker that has just changed is open."""
    return breaker.shared.open_until - breaker.shared.changed_at


def fail_probe(breaker: Breaker, reason: Reason = Reason.UNREACHABLE) -> None:
    """Probe at the end of the pause, without success."""
    at = breaker.shared.open_until
    assert breaker.begin_probe(at)
    assert breaker.failed(reason, at)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_three_consecutive_failures_open_it() -> None:
    breaker = Breaker()
    opens = [breaker.failed(Reason.SERVER_ERROR, NOW) for _ in range(3)]
    assert (opens, breaker.state(NOW)) == ([False, False, True], State.OPEN)


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(Reason.SERVER_ERROR, NOW)
        breaker.failed(Reason.TIMEOUT, NOW)
        breaker.succeeded(NOW)
    assert breaker.state(NOW) is State.CLOSED


@pytest.mark.parametrize(("reason", "seconds"), [(Reason.CREDENTIALS, 1.0), (Reason.QUOTA, QUOTA_PAUSE)])
def test_rejected_credentials_and_quotas_open_it_at_once(reason: Reason, seconds: float) -> None:
    breaker = Breaker()
    assert breaker.failed(reason, NOW)
    assert (breaker.state(NOW), pause(breaker)) == (State.OPEN, seconds)


def test_late_failures_do_not_prolong_the_pause() -> None:
    breaker = opened()
    before = breaker.shared
    assert not breaker.failed(Reason.UNREACHABLE, NOW + 0.5)
    assert not breaker.failed(Reason.TIMEOUT, NOW + 5)
    assert breaker.shared == before


def test_an_exhausted_quota_prolongs_the_pause() -> None:
    breaker = opened()
    assert breaker.failed(Reason.QUOTA, NOW)
    assert not breaker.failed(Reason.QUOTA, NOW + 1)
    assert breaker.shared.open_until == NOW + QUOTA_PAUSE


# -- probes ------------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_twenty_seconds() -> None:
    breaker = opened()
    pauses = [pause(breaker)]
    for _ in range(6):
        fail_probe(breaker)
        pauses.append(pause(breaker))
    assert pauses == [1, 2, 4, 8, 16, 20, 20]


def test_no_probe_begins_during_the_pause() -> None:
    breaker = opened()
    assert not breaker.begin_probe(NOW + 0.99)
    assert breaker.seconds_until_probe(NOW + 0.25) == 0.75


def test_only_one_probe_begins() -> None:
    breaker = opened()
    assert [breaker.begin_probe(NOW + 1) for _ in range(3)] == [True, False, False]
    assert breaker.lets_through(NOW + 1)


def test_another_probe_begins_if_the_last_one_does_not_end() -> None:
    breaker = opened()
    assert breaker.begin_probe(NOW + 1)
    assert not breaker.begin_probe(NOW + PROBE_SECONDS)
    assert breaker.begin_probe(NOW + 1 + PROBE_SECONDS)


def test_a_probe_of_another_process_is_waited_for() -> None:
    breaker = opened()
    assert breaker.begin_probe(NOW + 1)
    breaker.leave_probe(NOW + 1, seconds=0.25)
    assert not breaker.lets_through(NOW + 1)
    assert not breaker.failed(Reason.UNREACHABLE, NOW + 1)
    assert breaker.begin_probe(NOW + 1.25)


@pytest.mark.parametrize("probes", [False, True])
def test_a_success_closes_it(probes: bool) -> None:
    breaker = opened()
    fail_probe(breaker)
    if probes:
        assert breaker.begin_probe(breaker.shared.open_until)
    assert breaker.succeeded(NOW + 1.5)
    assert breaker.state(NOW + 1.5) is State.CLOSED
    assert not breaker.succeeded(NOW + 1.6)
    for _ in range(MAX_FAILURES):
        breaker.failed(Reason.UNREACHABLE, NOW + 2)
    assert pause(breaker) == 1


def test_a_refused_probe_closes_it_but_other_refused_requests_do_not() -> None:
    breaker = opened()
    assert not breaker.refused(NOW + 1)
    assert breaker.begin_probe(NOW + 1)
    assert breaker.refused(NOW + 1)
    assert breaker.state(NOW + 1) is State.CLOSED


# -- other processes ---------------------------------------------------------------------------------------------------


def test_the_newest_state_wins() -> None:
    here, there = opened(), opened(at=NOW + 0.1)
    there.succeeded(NOW + 0.2)
    assert here.adopt(there.shared)
    assert not there.adopt(Snapshot(openings=1, open_until=NOW + 1, reason=Reason.TIMEOUT, changed_at=NOW))
    assert here.state(NOW + 0.3) is there.state(NOW + 0.3) is State.CLOSED


def test_a_state_that_was_already_adopted_keeps_the_probe() -> None:
    breaker = opened()
    assert breaker.begin_probe(NOW + 1)
    assert not breaker.adopt(breaker.shared)
    assert breaker.is_probing


def test_a_later_change_is_newer_even_if_the_clock_goes_back() -> None:
    breaker = opened()
    before = breaker.shared
    breaker.succeeded(NOW - 5)
    assert Breaker(shared=before).adopt(breaker.shared)


# -- reasons -----------------------------------------------------------------------------------------------------------


def reason(status: int, **error: str) -> Reason | None:
    """Return the reason that a status and an error object are."""
    failure = to_failure(ErrorStatus(status, headers={}, body={"error": error}))
    return reason_of(failure, status=status)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_server_errors_count(status: int) -> None:
    assert reason(status, message="Down.") is Reason.SERVER_ERROR


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_credentials_count(status: int) -> None:
    assert reason(status, message="No.") is Reason.CREDENTIALS


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (402, {"message": "Pay."}),
        (429, {"message": "No money.", "code": "insufficient_quota"}),
        (429, {"message": "Come back on Monday.", "code": "usage_limit_reached"}),
        (400, {"message": "You have reached your specified API usage limits.", "type": "invalid_request_error"}),
        (429, {"message": "You've hit your usage limit."}),
    ],
)
def test_exhausted_quotas_count(status: int, error: dict[str, str]) -> None:
    # Anthropic sends the type together with any error.
    assert reason(status, **error) is Reason.QUOTA


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"message": "Slow down."}),
        (429, {"message": "Overloaded.", "code": "engine_overloaded"}),
        (400, {"message": "Bad value."}),
        (400, {"message": "Flagged.", "code": "content_policy_violation"}),
        (400, {"message": "Too long.", "code": "context_length_exceeded"}),
        (404, {"message": "No such model.", "code": "model_not_found"}),
        (422, {"message": "Bad value."}),
    ],
)
def test_refused_requests_do_not_count(status: int, error: dict[str, str]) -> None:
    assert reason(status, **error) is None


def test_missing_answers_count() -> None:
    assert reason_of(to_failure(Unreachable(was_sent=False))) is Reason.UNREACHABLE
    assert reason_of(to_failure(NoAnswer()), has_timed_out=True) is Reason.TIMEOUT


def test_answers_that_break_count_unless_the_request_is_the_reason() -> None:
    failures = [BROKEN, *(Failure.of(kind()) for kind in (RateLimited, RequestRejected, ContextTooLong))]
    reasons = [reason_of(failure, status=200) for failure in failures]
    assert reasons == [Reason.BROKEN_ANSWER, None, None, None]

"""Targets that failed in a call, as its usage record stores them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from engine.failed_targets import FailedTarget, read_failures, stored_failures
from engine.turn import Attempt, Target

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(upstream: str, *, after: float = 0, **values: Any) -> Attempt:
    """Return an attempt at a target, some seconds after the beginning of the call."""
    target = Target(model="m", upstream_id=upstream, upstream_model="m")
    return Attempt(began=BEGAN + timedelta(seconds=after), target=target, **values)


def failures(*attempts: Attempt, has_failed: bool = False) -> list[FailedTarget]:
    """Return the failures of a call after they were stored."""

    def upstream(attempt: Attempt) -> str:
        return attempt.target.upstream_id if attempt.target else ""

    return read_failures(stored_failures(attempts, upstream=upstream, began=BEGAN, has_failed=has_failed))


def test_repeated_requests_to_a_target_are_one_failure() -> None:
    [found] = failures(
        attempt("a", was_sent=False),
        attempt("a", after=0.3, was_sent=False, cause="server_error"),
        attempt("b", after=1, status=200),
    )
    assert found == FailedTarget(upstream="a", reason="not reached", began=300, unreached=2, was_replaced=True)


def test_a_target_that_answers_a_repeated_request_was_not_replaced() -> None:
    [found] = failures(attempt("a", status=503), attempt("a", status=200))
    assert (found.reason, found.was_replaced) == ("HTTP 503", False)


def test_the_last_target_has_failed_only_if_the_call_has() -> None:
    attempts = (attempt("a", status=401, cause="server_error"), attempt("b", timed_out=True))
    assert [found.upstream for found in failures(*attempts)] == ["a"]
    assert [(found.upstream, found.reason, found.was_replaced) for found in failures(*attempts, has_failed=True)] == [
        ("a", "HTTP 401", True), ("b", "no answer in time", False),
    ]  # fmt: skip


def test_an_answer_that_began_is_described_by_its_end() -> None:
    found = failures(
        attempt("a", status=200, cause="answer cut"),
        attempt("b", status=200, timed_out=True, cause="answer stalled"),
        attempt("c", status=200),
        has_failed=True,
    )
    assert [failure.reason for failure in found] == ["answer cut", "answer stalled", "answer cut"]


def test_a_code_that_says_more_than_the_status_is_kept() -> None:
    [found] = failures(attempt("a", status=400, cause="context_length_exceeded"), attempt("b", status=200))
    assert found.reason == "HTTP 400 (context_length_exceeded)"


def test_nothing_is_stored_without_a_failure() -> None:
    assert stored_failures([attempt("a", status=200)], upstream=lambda _: "", began=BEGAN, has_failed=False) is None
    assert failures(has_failed=True) == []

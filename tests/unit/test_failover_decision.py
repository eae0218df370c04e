"""The decision after a failed request to a model with several targets."""

from typing import Any

import pytest

from core.errors import (
    FINAL,
    ContentFlagged,
    ContextTooLong,
    Failure,
    ModelRejected,
    Overloaded,
    RateLimited,
    RequestRejected,
    UpstreamError,
    UpstreamUnavailable,
)
from providers.targets.decision import FailedRequest, NextStep, next_step

SAME, OTHER, LARGER, GIVE_UP = NextStep.SAME_TARGET, NextStep.OTHER_TARGET, NextStep.LARGER_TARGET, NextStep.GIVE_UP
UNREACHABLE, BROKEN, BUSY = Failure.of(UpstreamUnavailable()), Failure.of(UpstreamError()), Failure.of(Overloaded())


def limited(**headers: str) -> Failure:
    """Return the failure of a rate limit."""
    return Failure.of(RateLimited(headers={name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize(
    ("failure", "details", "step"),
    [
        (UNREACHABLE, {}, SAME),
        (UNREACHABLE, {"is_repetition": True}, OTHER),
        (UNREACHABLE, {"has_timed_out": True}, OTHER),
        (UNREACHABLE, {"may_repeat": False}, GIVE_UP),
        (BROKEN, {"status": 500}, SAME),
        (BROKEN, {"status": 500, "is_repetition": True}, OTHER),
        (BROKEN, {"status": 500, "should_retry": False}, OTHER),
        (BUSY, {"status": 503}, SAME),
        (BUSY, {"status": 503, "is_repetition": True}, OTHER),
        # Rejected credentials, and an answer that broke before its first event.
        (BROKEN, {"status": 401}, OTHER),
        (BROKEN, {"status": 403}, OTHER),
        (BROKEN, {"status": 200}, OTHER),
        (BROKEN, {"status": 200, "may_repeat": False}, GIVE_UP),
        (limited(), {"status": 429}, OTHER),
        (limited(retry_after="2"), {"status": 429}, SAME),
        (limited(retry_after="2"), {"status": 429, "is_repetition": True}, OTHER),
        (limited(retry_after="3"), {"status": 429}, OTHER),
        (limited(**FINAL), {"status": 402, "should_retry": False}, OTHER),
        (Failure.of(ModelRejected()), {"status": 404}, OTHER),
        (Failure.of(ContextTooLong()), {"status": 400}, LARGER),
        (Failure.of(ContextTooLong()), {"status": 400, "may_repeat": False}, GIVE_UP),
        (Failure.of(ContentFlagged()), {"status": 400}, GIVE_UP),
        (Failure.of(RequestRejected()), {"status": 400}, GIVE_UP),
        # OpenAI's servers ask for a repetition of some client errors.
        (Failure.of(RequestRejected()), {"status": 409, "should_retry": True}, SAME),
        (Failure.of(RequestRejected()), {"status": 409, "should_retry": True, "is_repetition": True}, GIVE_UP),
    ],
)
def test_the_next_step_after_a_failure(failure: Failure, details: dict[str, Any], step: NextStep) -> None:
    assert next_step(FailedRequest(failure=failure, **details)) is step

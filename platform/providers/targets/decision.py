"""Decision after a failed request to a model with several targets: repeat it, try another target, or give up.

Another target helps if the upstream is the cause of the failure. It does not help if the request is the cause, and it
must not be used to circumvent a content policy.
"""

from enum import Enum, auto

import httpx2

from core.errors import BadRequest, ContextTooLong, Failure, ModelNotFound
from core.records import record
from providers.retries import asked_seconds

LONGEST_WAIT = 2.0
"""Seconds that an upstream may ask to wait before another target is tried instead."""


class NextStep(Enum):
    """Reaction to a failed request."""

    SAME_TARGET = auto()  # after a pause
    OTHER_TARGET = auto()
    LARGER_TARGET = auto()  # another target with a larger context window
    GIVE_UP = auto()


@record
class FailedRequest:
    """A failed request to a target.

    `status` is the HTTP status of the answer; None without an answer. `has_timed_out`: the upstream did not begin to
    answer in time. `is_repetition`: it was the second request to this target. `should_retry` is the upstream's own
    advice. Without `may_repeat`, the upstream may charge for the failed request, and no other request is covered by
    budgets.
    """

    failure: Failure
    status: int | None = None
    has_timed_out: bool = False
    is_repetition: bool = False
    should_retry: bool | None = None
    may_repeat: bool = True


def next_step(failed: FailedRequest) -> NextStep:
    """Return what to do after a failed request."""
    failure, status = failed.failure, failed.status
    if not failed.may_repeat:
        return NextStep.GIVE_UP
    if failure.code == ContextTooLong.default_code:
        return NextStep.LARGER_TARGET
    if failure.code == ModelNotFound.default_code:
        return NextStep.OTHER_TARGET
    is_first = not (failed.is_repetition or failed.has_timed_out) and failed.should_retry is not False
    if is_first and failed.should_retry:
        return NextStep.SAME_TARGET
    if failure.status == BadRequest.status:
        return NextStep.GIVE_UP
    if failure.status == httpx2.codes.TOO_MANY_REQUESTS:
        is_short = 0 < asked_seconds(failure) <= LONGEST_WAIT
        return NextStep.SAME_TARGET if is_first and is_short else NextStep.OTHER_TARGET
    # Not after rejected credentials, and not after an answer that began and cannot be used.
    is_temporary = status is None or status >= httpx2.codes.INTERNAL_SERVER_ERROR
    return NextStep.SAME_TARGET if is_first and is_temporary else NextStep.OTHER_TARGET

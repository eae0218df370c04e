"""The reasons for which a circuit breaker counts a failed request, and their texts for clients."""

from enum import StrEnum

import httpx2

from core.errors import Failure
from providers.upstream_errors import CREDENTIALS_REJECTED, QUOTA_EXHAUSTED


class Reason(StrEnum):
    """Reason why a failed request speaks against its target."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    BROKEN_ANSWER = "broken_answer"  # cut, stalled or unusable
    CREDENTIALS = "credentials"
    QUOTA = "quota"

    @property
    def needs_operator(self) -> bool:
        """True if all further requests will fail as well until an operator changes something."""
        return self in {Reason.CREDENTIALS, Reason.QUOTA}

    @property
    def is_temporary(self) -> bool:
        """True if the request itself may be repeated at the same target some seconds later."""
        return self in {Reason.UNREACHABLE, Reason.SERVER_ERROR}

    @property
    def message(self) -> str:
        """The text of the error for clients while no target takes their requests."""
        return _MESSAGES[self]


# No upstream's text, which could contain content: processes share the reason.
_MESSAGES = {
    Reason.UNREACHABLE: "The model's server could not be reached.",
    Reason.TIMEOUT: "The model's server did not answer in time.",
    Reason.SERVER_ERROR: "The model's server failed.",
    Reason.BROKEN_ANSWER: "The model's server did not complete its answers.",
    Reason.CREDENTIALS: CREDENTIALS_REJECTED.message,
    Reason.QUOTA: QUOTA_EXHAUSTED.message,
}


def reason_of(failure: Failure, *, status: int | None = None, has_timed_out: bool = False) -> Reason | None:
    """Return why a failed request speaks against its target; None if it does not.

    `status` is the HTTP status of the answer, and None without an answer. With status 200 the answer began well. The
    request itself is the reason for a 400, and a 429 passes with its `Retry-After`.
    """
    if failure == CREDENTIALS_REJECTED:
        return Reason.CREDENTIALS
    if failure == QUOTA_EXHAUSTED:
        return Reason.QUOTA
    if has_timed_out:
        return Reason.TIMEOUT
    if status is None:
        return Reason.UNREACHABLE
    if httpx2.codes.is_server_error(status):
        return Reason.SERVER_ERROR
    is_broken = httpx2.codes.is_success(status) and httpx2.codes.is_server_error(failure.status)
    return Reason.BROKEN_ANSWER if is_broken else None

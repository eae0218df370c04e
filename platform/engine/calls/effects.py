"""Effects of hosted calls: the id that is sent along with a call, and calls whose outcome is unknown.

A call that was sent to its tool may have taken effect. If the run stops before the answer, the outcome is unknown. The
call is repeated only if its tool declares that this does no harm.
"""

import hashlib
from dataclasses import dataclass

from core.errors import Failure, UpstreamError
from engine.calls.outcomes import OUTCOME_UNKNOWN, ToolResult
from engine.turn import Call

_EFFECT_ID_DIGITS = 32
UNKNOWN_RESULT = ToolResult(
    output=(
        "error: the outcome of this call is unknown, because the run stopped before the tool answered; "
        "the call may have taken effect"
    ),
    error=OUTCOME_UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class FailRun:
    """Fail the run. Its output has the call, with an error."""

    failure: Failure


def on_unknown_outcome(call: Call) -> FailRun:
    """Return what a resumed run does about a call with an unknown outcome that must not be repeated."""
    message = f"The call of '{call.name}' was interrupted, and its tool is not known to be repeatable."
    return FailRun(Failure.of(UpstreamError(message)))


def effect_id(response_id: str, turn: int, call_id: str) -> str:
    """Return the id of the effects of a call. It is the same in each process, and different for each call.

    It depends only on values that are stored before the call is sent to its tool.
    """
    digest = hashlib.sha256(f"{response_id}/{turn}/{call_id}".encode()).hexdigest()
    return f"effect_{digest[:_EFFECT_ID_DIGITS]}"

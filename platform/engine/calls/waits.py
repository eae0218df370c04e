"""Decisions of people about hosted calls that were sent to their tools. The run waits until they are made.

A call waits because its outcome is unknown, or because its tool has asked a question. The other calls of its turn are
executed first. Then the run is suspended, and the process that continues it finds the answer.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from engine.calls.effects import UNKNOWN_RESULT
from engine.calls.outcomes import ToolResult
from engine.events.types import Body
from engine.turn import ToolInput

_NOT_ANSWERED = ToolResult(
    output="error: the tool has asked a question that was not answered, so the call was not completed",
    error="not_answered",
)
_NO_RESULT = "The call took effect. A person has confirmed this; the output of the tool is not known."


class WaitKind(StrEnum):
    """Reasons for which a call waits."""

    UNKNOWN_OUTCOME = "unknown_outcome"
    QUESTION = "question"


class Outcome(StrEnum):
    """Answers about a call whose outcome is unknown."""

    DONE = "done"
    NOT_DONE = "not_done"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDecision:
    """Decision of a person about a call, which waits for it until `expires_at`.

    `question` is the question of the tool. `answer` is the answer of the person, and None as long as there is none. It
    has an `outcome` and may have a `result` and a `reason` if the outcome was unknown. The answer to a question has the
    form that the tool expects.
    """

    id: str
    kind: WaitKind
    expires_at: datetime | None = None
    question: Body | None = None
    answer: Body | None = None

    @property
    def unanswered(self) -> ToolResult:
        """Result of the call if the run ends while it waits."""
        return UNKNOWN_RESULT if self.kind is WaitKind.UNKNOWN_OUTCOME else _NOT_ANSWERED

    @property
    def result(self) -> ToolResult | None:
        """Result of the call that the answer determines; None if the call is sent again."""
        if self.kind is not WaitKind.UNKNOWN_OUTCOME or self.answer is None:
            return None
        match Outcome(self.answer["outcome"]):
            case Outcome.DONE:
                return ToolResult(output=self.answer.get("result") or _NO_RESULT)
            case Outcome.NOT_DONE:
                reason = self.answer.get("reason")
                cause = f": {reason}" if reason else ""
                text = f"error: the call was interrupted, and a person has found that it did not take effect{cause}"
                return ToolResult(output=text, error="not_done")
            case Outcome.REPEAT:
                return None

    @property
    def input(self) -> ToolInput | None:
        """Input with which the call is sent again; None if it is sent as before."""
        if self.question is None or self.answer is None:
            return None
        return ToolInput(question=self.question, answer=self.answer)

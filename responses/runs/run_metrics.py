"""Metrics of runs. Each step is counted after its commit."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from core.telemetry import metrics
from engine.steps import (
    CallRecord,
    ContextCompacted,
    RunEnded,
    Step,
    ToolFinished,
    ToolsPrepared,
    ToolsStarted,
    TurnDiscarded,
    TurnEnded,
    TurnRecord,
)
from responses.runs.identity import RunIdentity
from responses.runs.rows import Row

# The states of calls that the platform does not execute. All other calls are counted at their end.
_UNEXECUTED = {"waiting": "left_to_client", "asked": "approval_requested", "refused": "refused"}


class RunMetrics:
    """Counts the steps of one run after their commit."""

    __slots__ = ("_cost", "_identity", "_started")

    def __init__(self, identity: RunIdentity) -> None:
        self._identity = identity
        self._cost = 0.0
        # Created only for hosted calls, because an empty dictionary would take 64 bytes for each run.
        self._started: dict[str, datetime] | None = None

    def add_costs(self, records: Sequence[Row]) -> None:
        """Add the costs of usage records. They are counted with the next step."""
        self._cost += sum(float(record.values["cost"] or 0) for record in records)

    def count(self, step: Step, *, first_token_ms: int | None = None) -> None:
        """Count a step. `first_token_ms` is the time to the first token of the run."""
        match step:
            case TurnEnded(turn=turn, calls=calls):
                self._count_turn(turn)
                self._count_calls(calls)
            case TurnDiscarded(turn=turn) | ContextCompacted(turn=turn):
                self._count_turn(turn)
            case ToolsPrepared(calls=calls):
                self._count_calls(calls)
            case ToolsStarted(calls=started):
                self._started = {**(self._started or {}), **{start.call.call_id: step.started_at for start in started}}
            case ToolFinished():
                self._count_finished(step)
            case RunEnded():
                if step.turn is not None:
                    self._count_turn(step.turn)
                self._count_calls(step.calls)
                self._count_end(step, first_token_ms)

    def _count_turn(self, turn: TurnRecord) -> None:
        identity, usage, result = self._identity, turn.total_usage, turn.result
        metrics.count_usage(
            model=identity.model,
            team_id=identity.team_id,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost=self._cost,
        )
        self._cost = 0.0
        seconds = None
        if result.first_token_at is not None:
            seconds = (turn.ended_at - result.first_token_at).total_seconds()
        metrics.count_turn(
            model=identity.model,
            outcome=turn.outcome,
            output_tokens=turn.usage.output_tokens,
            output_seconds=seconds,
        )

    def _count_calls(self, calls: Sequence[CallRecord]) -> None:
        for record in calls:
            if (status := _UNEXECUTED.get(record.state)) is not None:
                metrics.count_tool_call(tool_type=record.kind, status=status)

    def _count_finished(self, step: ToolFinished) -> None:
        started = (self._started or {}).pop(step.call.call_id, None)
        metrics.count_tool_call(
            tool_type=step.kind,
            status="failed" if step.result.error else "completed",
            seconds=None if started is None else max(0.0, (step.ended_at - started).total_seconds()),
        )

    def _count_end(self, step: RunEnded, first_token_ms: int | None) -> None:
        identity = self._identity
        mode = "stream" if identity.streamed else "json"
        if identity.background:
            mode = "background"
        metrics.count_response(
            model=identity.model,
            mode="batch" if identity.batch else mode,
            status=str(step.ending.status),
            team_id=identity.team_id,
            seconds=identity.duration_ms(until=step.ended_at) / 1000,
            first_token_seconds=None if first_token_ms is None else first_token_ms / 1000,
        )


def count_usage(records: Sequence[Row]) -> None:
    """Count the usage records of calls outside of runs, such as embeddings."""
    for record in records:
        values = record.values
        cost: Decimal | None = values["cost"]
        metrics.count_usage(
            model=values["model"],
            team_id=values["team_id"],
            input_tokens=values["input_tokens"],
            cached_tokens=values["cached_tokens"],
            cache_write_tokens=values["cache_write_tokens"],
            output_tokens=values["output_tokens"],
            reasoning_tokens=values["reasoning_tokens"],
            cost=float(cost or 0),
        )

"""Time for which runs and calls have waited for decisions. Durations and latencies do not include it."""

from datetime import datetime

from responses.models import Decision, DecisionKind, Response, ToolCall
from responses.runs.run_usage import milliseconds


def end_wait_of_run(response_id: str, *, at: datetime) -> None:
    """Record that a run waits no more, and for how long it has waited. The row must be locked."""
    rows = Response.objects.filter(pk=response_id)
    row = rows.values("waits_since", "waited_ms").get()
    waited = row["waited_ms"]
    # The run may get its decisions before it is suspended.
    if row["waits_since"] is not None:
        waited = (waited or 0) + milliseconds(at - row["waits_since"])
    rows.update(waited_ms=waited, waits_since=None, waits_until=None)


def end_wait_of_call(row: Decision, *, at: datetime) -> None:
    """Record for how long a call that was made has waited for this decision, unless it is sent again.

    Call it while the row of the response is locked.
    """
    if row.kind != DecisionKind.APPROVAL:
        calls = ToolCall.objects.filter(response_id=row.response_id, turn=row.turn or 0, call_id=row.call_id)
        calls.update(waited_ms=milliseconds(at - row.asked_at))

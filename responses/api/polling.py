"""Response headers for polling clients: the time of the next poll, and the progress of the run."""

from urllib.parse import quote

from core.clock import now
from responses.models import RUNNING, Response, Status
from responses.runs.selectors import RunProgress

_MIN_POLL_MS = 500
_MAX_POLL_MS = 5000
# While a run waits for a cheaper time, only a cancellation can end it.
_MAX_WAITING_POLL_MS = 60_000


def polling_headers(response: Response, progress: RunProgress) -> dict[str, str]:
    """Return the headers for a response that has not ended, read from its row; empty for other responses."""
    if response.status not in RUNNING:
        return {}
    # A tenth of the response's age. After a long wait, clients hardly notice a poll that is this much too late.
    tenth = round((now() - response.created_at).total_seconds() * 100)
    headers = {"openai-poll-after-ms": str(max(_MIN_POLL_MS, min(_MAX_POLL_MS, tenth)))}
    if (start := response.planned_start) is not None:
        wait = round((start - now()).total_seconds() * 1000)
        headers["openai-poll-after-ms"] = str(max(_MIN_POLL_MS, min(_MAX_WAITING_POLL_MS, wait)))
    if response.status == Status.QUEUED:
        return {**headers, "x-queue-position": str(progress.ahead + 1)}
    headers["x-progress-turns"] = str(response.turns)
    headers["x-progress-output-tokens"] = str(response.output_tokens)
    if progress.tool is not None:
        # Tools may have names in any language; headers are ASCII.
        headers["x-progress-tool"] = quote(progress.tool)
    return headers

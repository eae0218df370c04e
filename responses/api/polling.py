"""What clients that poll are told beside the body: when to ask again, and how far the run has come."""

from urllib.parse import quote

from kernel.clock import now
from responses.models import RUNNING, Response, Status
from responses.runs.progress import RunProgress

_SOONEST_MS = 500
_LATEST_MS = 5000


def headers(response: Response, underway: RunProgress) -> dict[str, str]:
    """The headers of a response that has not ended; all of them stand in columns that the steps of its run write."""
    if response.status not in RUNNING:
        return {}
    found = {"openai-poll-after-ms": str(_poll_after_ms(response))}
    if response.status == Status.QUEUED:
        return {**found, "x-queue-position": str(underway.ahead + 1)}
    found["x-progress-turns"] = str(response.turns)
    found["x-progress-output-tokens"] = str(response.output_tokens)
    if underway.tool is not None:
        # Tools may have any name, headers take ASCII.
        found["x-progress-tool"] = quote(underway.tool)
    return found


def _poll_after_ms(response: Response) -> int:
    """A tenth of its age: whoever waits for long may as well wait a little longer."""
    age = now() - response.created_at
    return max(_SOONEST_MS, min(_LATEST_MS, round(age.total_seconds() * 100)))

"""Cells of tables of responses, shared by lists and pages."""

from datetime import UTC, datetime

from django.contrib.admin import display
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from console.markdown import without_markup
from console.widgets import badge, duration, key_cell, state_words, two_lines, when
from responses.models import Mode, Response, Status
from tenants.prices import NO_PRICE, rounded_amount

STATUS_TONES = {
    Status.COMPLETED.value: "success",
    Status.FAILED.value: "danger",
    Status.INCOMPLETE.value: "warning",
    Status.IN_PROGRESS.value: "info",
    Status.QUEUED.value: "info",
}
AWAITING_APPROVAL = "Awaiting approval"
"""The text instead of "in progress" while a run waits for a decision of a person."""
_MODES = {Mode.JSON.value: "Sync", Mode.STREAM.value: "Stream"}


def url(response_id: str) -> str:
    """Return the URL of the page of a response."""
    return reverse("admin:responses_response_change", args=[response_id])


def conversation_url(conversation_id: str) -> str:
    """Return the URL of the page of a conversation."""
    return reverse("admin:conversations_conversation_change", args=[conversation_id])


def elapsed(start: datetime | None, end: datetime | None) -> str:
    """Return the time between two moments; a dash if one of them is missing."""
    # Never negative, although the clocks of different hosts may disagree slightly.
    return duration(None if start is None or end is None else max(0, round((end - start).total_seconds() * 1000)))


@display(description="Time")
def created(response: Response) -> SafeString | str:
    return when(response.created_at)


def planned_start(response: Response) -> str:
    """Return when a run starts that waits for a cheaper time; empty for other runs."""
    start = response.planned_start
    # A completion window is shorter than a day.
    return "" if start is None else f"starts at {start.astimezone(UTC):%H:%M} UTC, cheaper then"


def status_and_tone(response: Response) -> tuple[str, str]:
    """Return the status as text with the tone of its badge."""
    if response.awaits_decision:
        return AWAITING_APPROVAL, "warning"
    return state_words(response.status), STATUS_TONES.get(response.status, "")


def status(response: Response) -> SafeString:
    """Return the status as a badge."""
    return badge(*status_and_tone(response))


def error_or_reason(response: Response) -> str:
    """Return the error code as in the API, or in words why the output is incomplete; empty for other responses."""
    return response.error_code or state_words(response.incomplete_reason or "")


@display(description="Status")
def status_and_mode(response: Response) -> SafeString:
    """Return the status badge with the mode below it."""
    return two_lines(status(response), mode(response))


@display(description="Team and key")
def caller(response: Response) -> SafeString:
    """Return the team with the API key below it."""
    return two_lines(response.team.name, key(response))


def key(response: Response) -> SafeString | str:
    """Return prefix and last four characters of the API key."""
    return key_cell(response.api_key)


@display(description="Model")
def model(response: Response) -> SafeString:
    """Return the requested model, with the upstream's model below it if the names differ."""
    # Routes may map a model name to another name at the upstream.
    is_same = response.upstream_model == response.model
    return two_lines(response.model, "" if is_same else f"→ {response.upstream_model}")


@display(description="Tokens (in / out)")
def tokens(response: Response) -> SafeString:
    """Return input and output tokens, with cached tokens below them."""
    cached = f"{response.cached_tokens:,} cached" if response.cached_tokens else ""
    return two_lines(f"{response.input_tokens:,} / {response.output_tokens:,}", cached)


def preview(text: str) -> str:
    """Return the preview of an input or output as plain text."""
    return without_markup(text)


def mode(response: Response) -> str:
    """Return "Sync", "Stream" or "Background", followed by the endpoint unless it is the endpoint of responses."""
    shown = "Background" if response.background else _MODES[response.mode]
    return shown if response.endpoint == "responses" else f"{shown} · {response.endpoint}"


@display(description="Conversation")
def conversation(response: Response) -> SafeString | str:
    """Return the end of the conversation id as a link to the responses of the conversation."""
    if not response.conversation_id:
        return "–"
    query = urlencode({"conversation": response.conversation_id, "period": "30d"})
    return format_html(
        '<a class="c-code c-link" href="{}?{}" title="Responses of {}">…{}</a>',
        reverse("admin:responses_response_changelist"),
        query,
        response.conversation_id,
        response.conversation_id[-6:],
    )


@display(description="Tools")
def tools(response: Response) -> str:
    return str(response.tool_calls or "–")


@display(description="Cost")
def cost(response: Response) -> str:
    """Return the cost in US dollars, "No price" if no price was known, or a dash before the first model call."""
    value = response.cost
    if value is None:
        return NO_PRICE if response.turns else "–"
    return rounded_amount(value)


@display(description="Duration")
def latency(response: Response) -> SafeString:
    """Return the total duration with the time to first token below it."""
    first = f"first token {duration(response.first_token_ms)}" if response.first_token_ms is not None else ""
    return two_lines(duration(response.duration_ms), first)


def moderation_results(response: Response) -> list[dict[str, str]]:
    """Return the side, outcome and detail of each moderation result (input, output); empty without moderation."""
    found = []
    for side in ("input", "output"):
        result = (response.moderation or {}).get(side)
        if result and result["type"] == "error":
            found.append({"side": side, "outcome": "check failed", "detail": result["message"]})
        elif result:
            flagged = [name for name, applies in result["categories"].items() if applies]
            outcome = "flagged" if result["flagged"] else "not flagged"
            found.append({"side": side, "outcome": outcome, "detail": ", ".join([*flagged, f"by {result['model']}"])})
    return found

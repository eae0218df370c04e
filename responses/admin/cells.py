"""What the columns of a list of responses show."""

from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from console.widgets import badge, copyable, duration, tone, two_lines, when
from responses.models import Mode, Response, Status
from tenants.console.content_access import HIDDEN
from tenants.prices import amount

STATUS_TONES = {
    Status.COMPLETED.value: "success",
    Status.FAILED.value: "danger",
    Status.INCOMPLETE.value: "warning",
    Status.IN_PROGRESS.value: "info",
    Status.QUEUED.value: "info",
}


_MODES = {Mode.JSON.value: "Sync", Mode.STREAM.value: "Stream"}


def url(response_id: str) -> str:
    """The page of a response."""
    return reverse("admin:responses_response_change", args=[response_id])


def moment(response: Response) -> SafeString | str:
    """When it was created."""
    return when(response.created_at)


def status(response: Response) -> SafeString:
    """The badge of its status."""
    return tone(STATUS_TONES, response.status)


def state(response: Response) -> SafeString:
    """Its status, and how it was asked for."""
    return two_lines(status(response), mode(response))


def previews(response: Response, *, readable: bool = False) -> SafeString:
    """Its id, what was asked, and what came out: dots for those who may not read it."""
    asked, answered = (
        words if readable or not words else HIDDEN for words in (response.input_preview, response.output_preview)
    )
    return format_html(
        '<span class="c-preview">{}<span title="{}">{}</span><small title="{}">{}</small></span>',
        copyable(response.pk, href=url(response.pk)),
        asked,
        asked,
        answered,
        _outcome(response, answered) if response.stored else "not stored",
    )


def caller(response: Response) -> SafeString:
    """Its team, and the key that was used."""
    return two_lines(response.team.name, key(response))


def key(response: Response) -> SafeString:
    """The visible ends of the key that was used."""
    return format_html('<code class="c-code">{}…{}</code>', response.api_key.prefix, response.api_key.last_four)


def served(response: Response) -> SafeString:
    """The model that was asked for, and the one that answered where it has another name."""
    is_same = response.upstream_model == response.model
    return two_lines(response.model, "" if is_same else f"→ {response.upstream_model}")


def tokens(response: Response) -> SafeString:
    """What went in and came out."""
    cached = f"{response.cached_tokens:,} cached" if response.cached_tokens else ""
    return two_lines(f"{response.input_tokens:,} / {response.output_tokens:,}", cached)


def mode(response: Response) -> str:
    """How its client waited for it."""
    return "Background" if response.background else _MODES[response.mode]


def conversation(response: Response) -> SafeString | str:
    """The end of its conversation's id, which leads to all responses of that."""
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


def paid(response: Response) -> str:
    """What it cost, as far as prices were known; small change with two digits that say something."""
    cost = response.cost
    if cost is None or cost >= 1 or not cost:
        return amount(cost if cost is None else round(cost, 2))
    return amount(round(cost, 1 - cost.adjusted()))


def took(response: Response) -> SafeString:
    """How long it took, in all and to the first token."""
    first = f"TTFT {duration(response.first_token_ms)}" if response.first_token_ms is not None else ""
    return two_lines(duration(response.duration_ms), first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a moderation model found on one side of a response."""

    side: str
    verdict: str
    detail: str


def judgements(response: Response) -> list[Judgement]:
    """What was found in the input and in the output; empty where nobody judged."""
    found = response.moderation or {}
    return [_judgement(side, found[side]) for side in ("input", "output") if found.get(side)]


def _judgement(side: str, found: dict[str, Any]) -> Judgement:
    if found["type"] == "error":
        return Judgement(side=side, verdict="not judged", detail=found["message"])
    flagged = [name for name, applies in found["categories"].items() if applies]
    detail = ", ".join([*flagged, f"by {found['model']}"])
    return Judgement(side=side, verdict="flagged" if found["flagged"] else "not flagged", detail=detail)


def _outcome(response: Response, answered: str) -> str | SafeString:
    """What came out, in a line; the error's code first where there is one."""
    reason = response.error_code or response.incomplete_reason
    if reason is None:
        return answered
    return format_html("{} {}", badge(reason, "danger" if response.error_code else "warning"), answered)

"""Attempts tab: the workers that claimed the run, and the model calls with their outcomes."""

from typing import Any

from django.http import HttpRequest

from console.widgets import badge, copyable, duration, tone, when
from responses.admin import cells
from responses.admin.response.timeline import claims_of
from responses.models import RUNNING, Response, Turn
from tenants.admin.usage_records import OUTCOME_TONES
from tenants.console.content_access import may_read
from tenants.models import Upstream

PAGE = 200


def attempts(request: HttpRequest, response: Response) -> dict[str, Any]:
    """Return the claims and a page of turns.

    The defect of a discarded answer may quote the answer, so it is content.
    """
    first = _first(request)
    rows = Turn.objects.filter(response_id=response.pk, team_id=response.team_id).order_by("number")
    turns = list(rows[first : first + PAGE + 1])
    can_read = may_read(request, response.team_id)
    return {
        "claims": _claims(response),
        "turns": [_turn(turn, can_read=can_read) for turn in turns[:PAGE]],
        "following": first + PAGE if len(turns) > PAGE else None,
        "upstream": Upstream.objects.filter(pk=response.upstream_id).only("name").first(),
        "can_read": can_read,
        "lease": when(response.lease_until) if response.status in RUNNING and response.lease_until else "",
    }


def _first(request: HttpRequest) -> int:
    text = request.GET.get("from", "")
    return int(text) if text.isdecimal() and len(text) < 8 else 0


def _claims(response: Response) -> list[dict[str, Any]]:
    claims = claims_of(response)
    # The end of a claim is not recorded: it lasts until the next one.
    ends = [at for at, _ in claims[1:]] + [response.ended_at]
    last = len(claims) - 1
    return [
        {
            "number": number + 1,
            "by": by,
            "began": when(at),
            "took": _between(at, ends[number]),
            "outcome": badge("lost", "warning", "Lease expired or released; another worker resumed the run.")
            if number < last
            else cells.status(response),
        }
        for number, (at, by) in enumerate(claims)
    ]


def _turn(turn: Turn, *, can_read: bool) -> dict[str, Any]:
    discarded = turn.discarded or {}
    return {
        "turn": turn,
        "number": turn.number + 1,
        "outcome": tone(OUTCOME_TONES, turn.state),
        "began": when(turn.started_at),
        "took": _between(turn.started_at, turn.ended_at),
        "first_token": _between(turn.started_at, turn.first_token_at),
        "input": f"{turn.input_tokens:,}",
        "output": f"{turn.output_tokens:,}",
        "upstream_request": copyable(turn.upstream_request_id) if turn.upstream_request_id else "–",
        "defect": discarded.get("defect") or ("context length exceeded" if discarded else ""),
        "is_discarded": turn.discarded is not None,
        "can_read": can_read,
    }


def _between(start: Any, end: Any) -> str:
    return duration(None if end is None or start is None else max(0, round((end - start).total_seconds() * 1000)))

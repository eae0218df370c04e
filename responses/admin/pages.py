# mypy: allow-subclassing-any
"""The page of one response: everything here is read-only."""

from typing import Any

from django.contrib.admin import register
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode

from kernel.console import copyable, duration, pretty, when
from responses import selectors
from responses.admin import cells
from responses.admin.listing import ResponseList
from responses.admin.transcript import SHOWN_ITEMS, transcript
from responses.models import Response, ToolCall
from tenants.admin.roles import TeamScoped

SHOWN_EVENTS = 500
_SHOWN_FOLLOWERS = 5
_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")


@register(Response)
class ResponseAdmin(ResponseList):
    """What the agents asked, and what they got."""

    def get_urls(self) -> list[URLPattern]:
        events = self.admin_site.admin_view(self.events_view)
        return [path("<path:object_id>/events/", events, name="responses_response_events"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The transcript, with everything that is known about the run."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        response = self._visible(request, object_id)
        if response is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[no-any-return]
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": response,
            "title": response.pk,
            "is_fullwidth": "1",
            **_told(response),
            **_transcript(request, response),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/responses/response/detail.html", context)

    def events_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The table of events, which the page asks for when it is opened."""
        response = self._visible(request, object_id)
        if response is None:
            raise Http404
        events, total = selectors.logged_events(response=response, limit=SHOWN_EVENTS)
        context = {"events": events, "total": total, "response": response}
        return TemplateResponse(request, "admin/responses/response/events.html", context)

    def _visible(self, request: HttpRequest, object_id: str) -> Response | None:
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        found: Response | None = rows.filter(pk=unquote(object_id)).first()
        return found if found is not None and self.has_view_permission(request, found) else None


# -- what the page of one response tells -------------------------------------------------------------------------------


def _told(response: Response) -> dict[str, Any]:
    """The facts about a response, apart from its items."""
    day = f"{response.created_at:%Y-%m-%d}"
    ledger = {"object_id": response.pk, "occurred_at_from_0": day}
    return {
        "status_badge": cells.status(response),
        "id_link": copyable(response.pk),
        "request_link": copyable(response.request_id) if response.request_id else "",
        "key_link": cells.key(response),
        "created": when(response.created_at),
        "ended": when(response.ended_at),
        "first_token": duration(response.first_token_ms),
        "total": duration(response.duration_ms),
        "speed": _speed(response),
        **{name: f"{getattr(response, name):,}" for name in _TOKENS},
        "previous_url": cells.url(response.previous_response_id) if response.previous_response_id else "",
        "ledger_url": f"{reverse('admin:tenants_usagerecord_changelist')}?{urlencode(ledger)}",
        "prompt": response.parameters.get("prompt"),
        "judgements": cells.judgements(response),
        "parameters": pretty(response.parameters),
        "options": pretty(response.options) if response.options else None,
    }


def _speed(response: Response) -> str:
    """Output tokens per second after the first one."""
    if not response.duration_ms or response.first_token_ms is None or not response.output_tokens:
        return "–"
    spent = response.duration_ms - response.first_token_ms
    return f"{response.output_tokens * 1000 / spent:,.0f}" if spent > 0 else "–"


def _transcript(request: HttpRequest, response: Response) -> dict[str, Any]:
    rows = _call_rows(response)
    turns = list(response.turn_set.filter(team_id=response.team_id).order_by("number")[:SHOWN_ITEMS])
    return {
        **transcript(request, response, rows),
        "turns": [
            {
                "turn": turn,
                "first_token": _between(turn.started_at, turn.first_token_at),
                "took": _between(turn.started_at, turn.ended_at),
                "input": f"{turn.input_tokens:,}",
                "output": f"{turn.output_tokens:,}",
            }
            for turn in turns
        ],
        "calls": [_call(row) for row in rows if row.response_id == response.pk],
        "followers": _followers(response),
    }


def _between(start: Any, end: Any) -> str:
    return duration(None if end is None else max(0, round((end - start).total_seconds() * 1000)))


def _call_rows(response: Response) -> list[ToolCall]:
    """The calls of the response before, which this one's input answers, and behind them the response's own."""
    owners = [owner for owner in (response.previous_response_id, response.pk) if owner]
    rows = ToolCall.objects.filter(response_id__in=owners, team_id=response.team_id).order_by("turn", "id")
    return sorted(rows[: 2 * SHOWN_ITEMS], key=lambda row: row.response_id == response.pk)


def _call(row: ToolCall) -> dict[str, Any]:
    """A call as the table of calls has it; those that nobody made stand only there."""
    return {
        "row": row,
        "took": _between(row.started_at, row.ended_at),
        "arguments": pretty(row.arguments),
        "output": pretty(row.output) if row.output else None,
    }


def _followers(response: Response) -> list[dict[str, str]]:
    rows = Response.objects.filter(previous_response_id=response.pk, team_id=response.team_id)
    return [
        {"id": row.pk, "url": cells.url(row.pk)} for row in rows.only("id").order_by("created_at")[:_SHOWN_FOLLOWERS]
    ]

"""The attempts and the timeline of a response for the API: timing and causes, without content and addresses."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db.models import QuerySet

from core.clock import unix
from core.http.endpoints import Endpoint
from engine.spans import Activity
from responses.api.objects import AttemptEntry, AttemptList, Timeline, TimelineEntry
from responses.models import Decision, Response, ToolCall, Turn
from responses.runs import access
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

MAX_TURNS, MAX_CALLS = 2000, 5000
_FAILED = "failed"


def attempts(response: Response) -> list[AttemptEntry]:
    """Return the requests to model servers that a run has made, oldest first: the failed ones, and each model call."""
    turns = list(_turns(response))
    # A turn begins with its failed requests.
    found: list[tuple[tuple[int, bool, datetime], AttemptEntry]] = []
    for number, span in _spans(response, turns):
        if span["activity"] != Activity.ATTEMPT or span.get("state") != _FAILED or "detail" not in span:
            continue
        began = _moment(response, span["began"])
        entry = _attempt(response, number, began, _moment(response, span["ended"]), status=_FAILED)
        entry["cause"], entry["http_status"] = span["detail"].get("cause"), span["detail"].get("status")
        found.append(((-1 if number is None else number, False, began), entry))
    listed = {entry["turn"] for _, entry in found}
    for turn in turns:
        # The last request of a turn that failed is in the list already.
        if turn.state != _FAILED or turn.number not in listed:
            entry = _attempt(response, turn.number, turn.started_at, turn.ended_at, status=turn.state)
            entry["upstream_request_id"] = turn.upstream_request_id
            found.append(((turn.number, True, turn.started_at), entry))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def timeline(response: Response) -> list[TimelineEntry]:
    """Return the timed steps of a run, in the order of their beginnings."""
    own: dict[str, Any] = {"response_id": response.pk, "team_id": response.team_id}
    turns = list(_turns(response))
    entries = [
        _step(response, "model_call", f"turn {row.number + 1}", row.started_at, row.ended_at, row.state)
        for row in turns
    ]
    entries += [
        _step(
            response,
            span["activity"],
            span["name"],
            _moment(response, span["began"]),
            _moment(response, span["ended"]),
            span.get("state", ""),
        )
        for _, span in _spans(response, turns)
    ]
    calls = ToolCall.objects.filter(**own).only("name", "started_at", "ended_at", "status").order_by("turn", "id")
    entries += [
        _step(response, "tool_call", call.name, call.started_at, call.ended_at, call.status)
        for call in calls[:MAX_CALLS]
    ]
    decisions = Decision.objects.filter(**own).order_by("asked_at")[:MAX_TURNS]
    entries += [_step(response, "approval", "", row.asked_at, row.answered_at, row.state) for row in decisions]
    return sorted(entries, key=lambda entry: entry["began_ms"])


def _turns(response: Response) -> QuerySet[Turn]:
    rows = Turn.objects.filter(response_id=response.pk, team_id=response.team_id)
    return rows.defer("discarded").order_by("number")[:MAX_TURNS]


def _spans(response: Response, turns: list[Turn]) -> list[tuple[int | None, dict[str, Any]]]:
    own: list[tuple[int | None, dict[str, Any]]] = [(None, span) for span in response.spans]
    return own + [(turn.number, span) for turn in turns for span in turn.spans]


def _moment(response: Response, milliseconds: float) -> datetime:
    return response.created_at + timedelta(milliseconds=milliseconds)


def _attempt(
    response: Response, turn: int | None, began: datetime, ended: datetime | None, *, status: str
) -> AttemptEntry:
    return {
        "object": "response.attempt",
        "turn": turn,
        "model": response.model,
        "status": status,
        "cause": None,
        "http_status": None,
        "upstream_request_id": None,
        "started_at": unix(began),
        "duration_ms": _length(began, ended),
    }


def _step(
    response: Response, kind: str, name: str, began: datetime, ended: datetime | None, state: str
) -> TimelineEntry:
    return {
        "object": "response.timeline_entry",
        "type": kind,
        "name": name or None,
        "status": state or None,
        "began_ms": max(0, round((began - response.created_at).total_seconds() * 1000)),
        "duration_ms": _length(began, ended),
    }


def _length(began: datetime, ended: datetime | None) -> int | None:
    return None if ended is None else max(0, round((ended - began).total_seconds() * 1000))


Entry = TypeVar("Entry")


def _read(request: ApiRequest, response_id: str, entries_of: Callable[[Response], list[Entry]]) -> list[Entry]:
    """Return entries of a response that the key may read."""
    with scope.team(request.principal.team_id):
        return entries_of(access.get_response(principal=request.principal, response_id=response_id))


class AttemptsView(ApiView, path="responses/<resp:response_id>/attempts"):
    """The requests of a response to model servers."""

    @Endpoint(
        Scope.RESPONSES_READ,
        "List the attempts of a response",
        query=None,
        note="extension: each request to a model's server with its outcome, and the cause if it failed",
    )
    def get(self, request: ApiRequest, response_id: str) -> AttemptList:
        return {"object": "list", "data": _read(request, response_id, attempts)}


class TimelineView(ApiView, path="responses/<resp:response_id>/timeline"):
    """The timeline of a response."""

    @Endpoint(
        Scope.RESPONSES_READ,
        "Get the timeline of a response",
        query=None,
        note="extension: model calls, tool calls, approvals and measured parts of the run, with their times",
    )
    def get(self, request: ApiRequest, response_id: str) -> Timeline:
        return {"object": "list", "data": _read(request, response_id, timeline)}

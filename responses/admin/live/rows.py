"""What the page of running jobs shows of a run: the same for the table that the server renders, for its socket, and for
the page that asks every two seconds. Moments go out as milliseconds; the page makes ages of them, which grow there.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from console.widgets import compact, duration
from responses.admin.cells import STATUS_TONES, url
from responses.admin.live.queries import Look, RunRow, Step
from responses.models import Mode, Status
from tenants.console.content_access import HIDDEN
from tenants.console.roles import CONTRIBUTORS, OPERATORS
from tenants.console.viewer import Viewer

STUCK_AFTER = timedelta(seconds=60)
_GOOD_STEPS = frozenset({"stop", "tool_calls", "completed", "returned", "compacted"})
_BAD_STEPS = frozenset({"failed", "abandoned", "error", "refused"})
_MODES = {Mode.JSON.value: "JSON", Mode.STREAM.value: "stream"}

Shown = dict[str, Any]


def shown(row: RunRow, viewer: Viewer, *, team: str, at: datetime) -> Shown:
    """A run for this viewer."""
    response, why = row.response, stuck(row, at=at)
    name, tone = _state(row)
    words = row.heard.words if response.stored else ""
    return {
        "id": response.pk,
        "url": url(response.pk),
        "order": f"{int(row.is_waiting)}{_ms(response.created_at)}{response.pk}",
        "state": name,
        "tone": tone,
        "team": team,
        "model": response.model,
        "mode": "background" if response.background else _MODES[response.mode],
        "created": _ms(response.created_at),
        "waits": row.begun_at is None,
        "wait": "" if row.begun_at is None else _between(response.created_at, row.begun_at),
        "worker": response.lease_owner or "–",
        "renewed": None if response.lease_until is None else _ms(renewed_at(response.lease_until)),
        "attempt": response.attempt if response.background else "–",
        "step": _step(row),
        "tokens": f"{compact(response.input_tokens)} / {compact(response.output_tokens)}",
        "event": row.heard.last_event if row.heard.last_event >= 0 else "–",
        "words": words if not words or viewer.may_read(response.team_id) else HIDDEN,
        "stuck": why,
        "steps": [_chip(step) for step in row.steps],
        "may": _allowed(row, viewer, is_stuck=bool(why)),
    }


def ages(row: Shown, *, at: datetime) -> Shown:
    """What the page's script makes of moments, for a page without one."""
    return {
        "age": age(row["created"], at=at),
        "beat": age(row["renewed"], at=at),
        "waited": "waits" if row["waits"] else f"waited {row['wait']}",
    }


def age(moment: int | None, *, at: datetime) -> str:
    """`12 s`, `3 min 20 s`, `2 h 5 min`; a dash where there is no moment."""
    if moment is None:
        return "–"
    minutes, seconds = divmod(max(0, (_ms(at) - moment) // 1000), 60)
    if not minutes:
        return f"{seconds} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min {seconds} s"


def counters(look: Look, *, workers: int | None, at: datetime) -> Shown:
    """The figures above the table."""
    return {
        "running": f"{look.executed:,}",
        "queued": f"{look.waiting:,}",
        "oldest": None if look.oldest_waiting is None else _ms(look.oldest_waiting),
        "stuck": str(sum(bool(stuck(row, at=at)) for row in look.rows.values())),
        "workers": "–" if workers is None else str(workers),
        "left": look.executed + look.waiting - len(look.rows),
    }


def stuck(row: RunRow, *, at: datetime) -> str:
    """Why nothing may come of a run any more unless somebody does something; empty for one that is well."""
    response = row.response
    if response.lease_until is not None:
        if response.lease_until < at:
            return "its lease has run out"
        if at - renewed_at(response.lease_until) > STUCK_AFTER:
            return "its lease was not renewed for a minute"
        return ""
    if response.attempt >= settings.BACKGROUND_ATTEMPTS:
        return "no further worker tries"
    return "no worker takes it" if at - response.created_at > STUCK_AFTER else ""


def renewed_at(lease_until: datetime) -> datetime:
    """When whoever executes a run last said so."""
    return lease_until - timedelta(seconds=settings.LEASE_SECONDS)


def may_steer(viewer: Viewer, team_id: str) -> bool:
    """Whether somebody may cancel the runs of a team, requeue them, and give them up."""
    return viewer.is_administrator or viewer.staff in OPERATORS or viewer.roles.get(team_id) in CONTRIBUTORS


def _allowed(row: RunRow, viewer: Viewer, *, is_stuck: bool) -> Mapping[str, bool]:
    if not may_steer(viewer, row.response.team_id):
        return {"cancel": False, "requeue": False, "fail": False}
    return {"cancel": True, "requeue": row.response.background and not row.is_waiting, "fail": is_stuck}


def _state(row: RunRow) -> tuple[str, str]:
    response = row.response
    if response.status == Status.QUEUED:
        return "queued", "waiting"
    if row.is_waiting:
        return "handed on", "waiting"
    return ("tool", "tool") if row.calls_under_way else ("in progress", "running")


def ended(status: str) -> tuple[str, str]:
    """The words and the tone of a state in which a run has ended."""
    tones = {"success": "good", "danger": "bad"}
    return Status(status).label.lower(), tones.get(STATUS_TONES.get(status, ""), "ended")


def _step(row: RunRow) -> str:
    if row.is_waiting:
        return "waits for a worker"
    turn = f"turn {row.response.turns + (0 if row.calls_under_way else 1)}"
    return " · ".join([turn, *dict.fromkeys(row.calls_under_way)])


def _chip(step: Step) -> Shown:
    took = _between(step.started_at, step.ended_at) if step.ended_at else ""
    state = "good" if step.state in _GOOD_STEPS else "bad" if step.state in _BAD_STEPS else "open"
    return {
        "kind": step.kind,
        "name": step.name,
        "state": step.state.replace("_", " "),
        "tone": state,
        "took": took,
    }


def _between(start: datetime, end: datetime) -> str:
    return duration(max(0, round((end - start).total_seconds() * 1000)))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)

"""Rows of the running-jobs table as JSON, for the first page, the WebSocket and the polling fallback.

Times are milliseconds since the epoch. The script of the page computes ages from them, so that no messages are needed
to update the ages.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.urls import reverse

from console.markdown import without_markup
from console.widgets import compact, duration, state_words
from responses.admin.cells import AWAITING_APPROVAL, STATUS_TONES, mode, planned_start, url
from responses.admin.live.active import MAX_AWAITING, count_text, stuck_reason
from responses.admin.live.queries import RunRow, RunsSnapshot
from responses.models import Status
from tenants.console.content_access import HIDDEN
from tenants.console.roles import CONTRIBUTORS, OPERATORS
from tenants.console.viewer import Viewer

# A lease lasts 30 seconds by default, and an idle worker claims immediately. So a minute without a lease or a claim is
# unusual.
_DAY = timedelta(days=1)
_STEP_TONES = {
    **dict.fromkeys(("stop", "tool_calls", "completed", "returned", "compacted"), "good"),
    **dict.fromkeys(("failed", "abandoned", "outcome_unknown", "error", "refused"), "bad"),
}

RowJson = dict[str, Any]


def message(
    snapshot: RunsSnapshot,
    shown: Iterable[RowJson],
    *,
    at: datetime,
    gone: Sequence[RowJson] = (),
    is_first: bool = True,
    is_unavailable: bool = False,
) -> RowJson:
    """Return the message with these rows, and with the runs that have disappeared since the previous message."""
    active = snapshot.active
    return {
        "type": "everything" if is_first else "changes",
        "at": _ms(at),
        "is_unavailable": is_unavailable,
        "counters": {
            "running": count_text(active.running),
            "queued": count_text(active.queued),
            "awaiting": count_text(len(active.decisions), MAX_AWAITING),
            "oldest": None if active.oldest_queued is None else _ms(active.oldest_queued),
            "stuck": count_text(active.stuck(at)),
            "workers": "–" if snapshot.workers is None else str(snapshot.workers),
            # All runs that wait for decisions are shown.
            "left": active.running + active.queued - sum(not row.decision_id for row in snapshot.rows.values()),
        },
        "set": [*shown],
        "gone": [*gone],
    }


def read_teams(snapshot: RunsSnapshot, viewer: Viewer) -> set[str]:
    """Return the teams whose content is in the rows that this viewer sees, for the audit log."""
    runs = snapshot.rows.values()
    found = {row.response.team_id for row in runs if row.log_tail.preview and row.response.stored}
    return {team_id for team_id in found if viewer.may_read(team_id)}


def rows_json(snapshot: RunsSnapshot, viewer: Viewer, *, at: datetime) -> dict[str, RowJson]:
    """Return the rows of all runs for this viewer, by response id."""
    return {
        key: _row_json(row, viewer, team=snapshot.teams.get(row.response.team_id, ""), at=at)
        for key, row in snapshot.rows.items()
    }


def _row_json(row: RunRow, viewer: Viewer, *, team: str, at: datetime) -> RowJson:
    response, stuck_reason = row.response, stuck(row, at=at)
    name, tone = _state(row)
    # The client asked not to store this content: none of it is displayed.
    preview = without_markup(row.log_tail.preview) if response.stored else ""
    turn = f"turn {response.turns + (0 if row.active_calls else 1)}"
    can_act = viewer.is_administrator or viewer.staff in OPERATORS or viewer.roles.get(response.team_id) in CONTRIBUTORS
    return {
        "id": response.pk,
        "url": url(response.pk),
        # The script sorts rows by this key: executed runs before waiting ones, oldest first.
        "order": f"{int(row.is_waiting)}{_ms(response.created_at)}{response.pk}",
        "state": name,
        "tone": tone,
        "team": team,
        "model": response.model,
        "mode": mode(response),
        "created": _ms(response.created_at),
        "waits": row.begun_at is None,
        "wait": "" if row.begun_at is None else _between(response.created_at, row.begun_at),
        "worker": response.lease_owner or "–",
        "renewed": None if response.lease_until is None else _ms(_renewed_at(response.lease_until)),
        "attempt": response.attempt if response.background else "–",
        "step": _waits_for(row, at=at) if row.is_waiting else " · ".join([turn, *dict.fromkeys(row.active_calls)]),
        "approval": reverse("console:approval", args=[row.decision_id]) if row.decision_id else "",
        "tokens": f"{compact(response.input_tokens)} / {compact(response.output_tokens)}",
        "event": row.log_tail.last_event if row.log_tail.last_event >= 0 else "–",
        # Shows that there is output, even to viewers who may not read it.
        "preview": preview if not preview or viewer.may_read(response.team_id) else HIDDEN,
        "stuck": stuck_reason,
        "steps": [
            {
                "kind": step.kind,
                "name": step.name,
                "state": state_words(step.state),
                "tone": _STEP_TONES.get(step.state, "open"),
                "took": _between(step.started_at, step.ended_at) if step.ended_at else "",
            }
            for step in row.steps
        ],
        "may": {
            "cancel": can_act,
            "requeue": can_act and response.background and not row.is_waiting,
            "fail": can_act and bool(stuck_reason),
        },
    }


def _waits_for(row: RunRow, *, at: datetime) -> str:
    until = row.response.waits_until
    if row.response.awaits_decision and until is not None:
        # The column has no room for both the day and the time.
        return f"until {until.astimezone(UTC):{'%H:%M UTC' if until - at < _DAY else '%d %b'}}"
    return planned_start(row.response) or "waiting for a worker"


def ages(row: RowJson, *, at: datetime) -> RowJson:
    """Return the ages of a row for a page without scripts. Otherwise the script of the page computes them."""
    return {
        "age": age(row["created"], at=at),
        "beat": age(row["renewed"], at=at),
        "waited": "waiting" if row["waits"] else f"waited {row['wait']}",
    }


def age(moment: int | None, *, at: datetime) -> str:
    """Return an age such as `12 s`, `3 min 20 s` or `2 h 5 min`; a dash for None."""
    if moment is None:
        return "–"
    minutes, seconds = divmod(max(0, (_ms(at) - moment) // 1000), 60)
    if not minutes:
        return f"{seconds} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min {seconds} s"


def stuck(row: RunRow, *, at: datetime) -> str:
    """Return the reason why a run makes no progress and needs an operator, or an empty string."""
    return stuck_reason(row.response, at=at)


def _renewed_at(lease_until: datetime) -> datetime:
    return lease_until - timedelta(seconds=settings.LEASE_SECONDS)


def _state(row: RunRow) -> tuple[str, str]:
    # Returns the status and tone of the badge. A requeued run keeps the API status `in_progress` without a worker.
    response = row.response
    if response.status == Status.QUEUED:
        return "Queued", "waiting"
    if response.awaits_decision:
        return AWAITING_APPROVAL, "approval"
    if row.is_waiting:
        return "Requeued", "waiting"
    return ("Tool", "tool") if row.active_calls else ("In progress", "running")


def ended(status: str) -> tuple[str, str]:
    """Return the label and the tone of a final status."""
    tones = {"success": "good", "danger": "bad"}
    return state_words(status), tones.get(STATUS_TONES.get(status, ""), "ended")


def _between(start: datetime, end: datetime) -> str:
    return duration(max(0, round((end - start).total_seconds() * 1000)))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)

"""The page of running jobs and its actions. It also works without its WebSocket, and without scripts."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse

from core.clock import now
from core.origin import origin
from responses.admin.cells import url
from responses.admin.live import rows
from responses.admin.live.queries import RunRow, take_snapshot
from responses.lifecycle import cancel
from responses.lifecycle.queue import notify_workers
from responses.models import Response
from responses.runs.identity import RequestInfo
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import CONTRIBUTORS, EVERY_ROLE, OPERATORS
from tenants.console.site import page, render
from tenants.console.viewer import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAction:
    """An action on a run, with the texts of its confirmation page."""

    act: Callable[..., bool]
    question: str
    meaning: str
    button: str
    outcome: str


_ACTIONS = {
    "cancel": LiveAction(
        act=cancel.cancel_run,
        question="Cancel this run?",
        meaning="Stops the run. Finished output is kept; work in progress is lost.",
        button="Cancel run",
        outcome="was cancelled",
    ),
    "requeue": LiveAction(
        act=cancel.requeue_run,
        question="Requeue this run?",
        meaning="Takes the run away from its worker. Another worker resumes it after the last completed step and "
        "repeats the step in progress.",
        button="Requeue run",
        outcome="was requeued",
    ),
    "fail": LiveAction(
        act=cancel.fail_run,
        question="Mark this run as failed?",
        meaning="Ends the run with status failed. Finished output is kept.",
        button="Mark as failed",
        outcome="was marked as failed",
    ),
}


@page("live/", name="live", viewers=EVERY_ROLE)
def live(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Serve the table of active runs. The script of the page keeps it up to date."""
    found, at = _snapshot_message(viewer), now()
    # Ages are also rendered here, for browsers without scripts and for the time until the script has loaded.
    table = [{**row, **rows.ages(row, at=at)} for row in found["set"]]
    context = {**found, "set": table, "as_of": f"{at:%H:%M:%S}", "blank": {"id": ""}}
    context["oldest_age"] = rows.age(found["counters"]["oldest"], at=at)
    return render(request, "console/live/page.html", title="Running jobs", live=context)


@page("live/rows/", name="live_rows", viewers=EVERY_ROLE)
def live_rows(request: HttpRequest, viewer: Viewer) -> JsonResponse:
    """Serve all rows as JSON, for a page whose WebSocket does not connect."""
    return JsonResponse(_snapshot_message(viewer))


@page("live/<str:response_id>/<str:name>/", name="live_steer", viewers=CONTRIBUTORS | OPERATORS)
def run_action(request: HttpRequest, viewer: Viewer, response_id: str, name: str) -> HttpResponse:
    """Cancel a run, requeue it or mark it as failed. GET serves a confirmation page."""
    action = _ACTIONS.get(name)
    response = Response.objects.filter(pk=response_id).first() if "\x00" not in response_id else None
    if action is None or response is None:
        raise Http404
    # A run of another team gets the same answer as a run that does not exist.
    if not viewer.may(CONTRIBUTORS | OPERATORS, response):
        raise Http404
    if request.method != "POST":
        return render(
            request,
            "console/live/confirm.html",
            title="Running jobs",
            is_fullwidth=False,
            action=action,
            response_id=response.pk,
            url=url(response.pk),
        )
    refusal = ""
    if name == "requeue" and not response.background:
        refusal = "cannot be requeued: its client is connected and waits for it"
    if name == "fail" and response.ended_at is None and not rows.stuck(RunRow(response=response), at=now()):
        refusal = "is not stuck. Cancel it instead"
    arguments = {"team_id": response.team_id, "response_id": response.pk, "actor": viewer.actor}
    is_done = not refusal and action.act(**arguments, request=RequestInfo(request_id=origin().request_id))
    if is_done and name == "requeue":
        # After the commit: a worker woken earlier would not see the run as waiting.
        transaction.on_commit(notify_workers)
    message = f"{response.pk} {action.outcome}." if is_done else f"{response.pk} {refusal or 'has already ended'}."
    # The dialog of the page sends the form by script and shows the message itself.
    if request.headers.get("X-Requested-With") == "fetch":
        return JsonResponse({"message": message}, status=HTTPStatus.OK if is_done else HTTPStatus.CONFLICT)
    (messages.success if is_done else messages.warning)(request, message)
    return HttpResponseRedirect(reverse("console:live"))


def _snapshot_message(viewer: Viewer) -> dict[str, Any]:
    at, snapshot = now(), take_snapshot(teams=viewer.visible_teams)
    found = sorted(rows.rows_json(snapshot, viewer, at=at).values(), key=lambda row: str(row["order"]))
    audit_team_reads(viewer, rows.read_teams(snapshot, viewer))
    return rows.message(snapshot, found, at=at)

"""The page of running jobs, and what people do there. It works without its socket, and without a script, too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse

from kernel.clock import now
from kernel.origin import origin
from responses.admin.cells import url
from responses.admin.live import rows
from responses.admin.live.poller import see
from responses.admin.live.queries import RunRow
from responses.lifecycle import cancel
from responses.lifecycle.notifier import notify_workers
from responses.models import Response
from responses.runs.ledger import RequestInfo
from tenants.console.audited_admin import actor
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import CONTRIBUTORS, EVERY_ROLE, OPERATORS, everywhere, may
from tenants.console.site import page, render
from tenants.console.viewer import viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deed:
    """Something that people do with a run, and how the page asks about it first."""

    act: Callable[..., bool]
    question: str
    meaning: str
    button: str
    outcome: str


_DEEDS = {
    "cancel": _Deed(
        act=cancel.cancel_run,
        question="Cancel this run?",
        meaning="It ends where it stands. What it has finished stays in its output, and what it is at is lost.",
        button="Cancel the run",
        outcome="was cancelled",
    ),
    "requeue": _Deed(
        act=cancel.requeue_run,
        question="Requeue this run?",
        meaning="The worker that has it loses it. The next one goes on behind its last finished step, and repeats what "
        "was under way.",
        button="Requeue the run",
        outcome="waits for another worker",
    ),
    "fail": _Deed(
        act=cancel.fail_run,
        question="Mark this run as failed?",
        meaning="It ends as failed where it stands. What it has finished stays in its output.",
        button="End it as failed",
        outcome="was ended as failed",
    ),
}


@page("live/", name="live", viewers=EVERY_ROLE)
def live(request: HttpRequest) -> HttpResponse:
    """What runs, as a table; the page's script keeps it up to date."""
    found, at = _everything(request), now()
    # Without a script the ages are those of the moment at which the page was made.
    table = [{**row, **rows.ages(row, at=at)} for row in found["set"]]
    told = {**found, "set": table, "as_of": f"{at:%H:%M:%S}", "blank": {"id": ""}}
    told["oldest_age"] = rows.age(found["counters"]["oldest"], at=at)
    return render(request, "console/live/page.html", title="Running jobs", live=told)


@page("live/rows/", name="live_rows", viewers=EVERY_ROLE)
def live_rows(request: HttpRequest) -> JsonResponse:
    """All of it once more, for a page whose socket does not work."""
    return JsonResponse(_everything(request))


@page("live/<str:response_id>/<str:what>/", name="live_steer", viewers=CONTRIBUTORS | OPERATORS)
def steer(request: HttpRequest, response_id: str, what: str) -> HttpResponse:
    """Cancel a run, have another worker go on with it, or end it as failed; asked for with GET, it asks back."""
    response, deed = _steered(request, response_id), _DEEDS.get(what)
    if deed is None or response is None:
        raise Http404
    if request.method != "POST":
        return _asked(request, response, deed)
    refusal = _refusal(response, what)
    names = {"team_id": response.team_id, "response_id": response.pk, "actor": actor(request)}
    is_done = not refusal and deed.act(**names, request=RequestInfo(request_id=origin().request_id))
    if is_done and what == "requeue":
        transaction.on_commit(notify_workers)
    said = f"{response.pk} {deed.outcome}." if is_done else f"{response.pk} {refusal or 'has ended already'}."
    if request.headers.get("X-Requested-With") == "fetch":
        return JsonResponse({"said": said}, status=200 if is_done else 409)
    (messages.success if is_done else messages.warning)(request, said)
    return HttpResponseRedirect(reverse("console:live"))


def _asked(request: HttpRequest, response: Response, deed: _Deed) -> HttpResponse:
    context = {"question": deed.question, "meaning": deed.meaning, "button": deed.button}
    where = {"response_id": response.pk, "url": url(response.pk)}
    return render(request, "console/live/confirm.html", title="Running jobs", is_fullwidth=False, **context, **where)


def _everything(request: HttpRequest) -> dict[str, Any]:
    who, at = viewer(request), now()
    seen = see(teams=who.visible_teams)
    found = [
        rows.shown(row, who, team=seen.teams.get(row.response.team_id, ""), at=at) for row in seen.look.rows.values()
    ]
    spoken = {row.response.team_id for row in seen.look.rows.values() if row.heard.words and row.response.stored}
    audit_team_reads(who, [team_id for team_id in spoken if who.may_read(team_id)])
    return {
        "type": "everything",
        "at": round(at.timestamp() * 1000),
        "is_away": False,
        "counters": rows.counters(seen.look, workers=seen.workers, at=at),
        "set": sorted(found, key=lambda row: str(row["order"])),
        "gone": [],
    }


def _steered(request: HttpRequest, response_id: str) -> Response | None:
    """The response; None for one that this user may not steer, as for an unknown id."""
    found = Response.objects.filter(pk=response_id).first() if "\x00" not in response_id else None
    is_theirs = found is not None and (everywhere(request, OPERATORS) or may(request, CONTRIBUTORS, found))
    return found if is_theirs else None


def _refusal(response: Response, what: str) -> str:
    if what == "requeue" and not response.background:
        return "cannot be requeued: its client waits for it"
    if what == "fail" and response.ended_at is None and not rows.stuck(RunRow(response=response), at=now()):
        return "is not stuck: cancel it instead"
    return ""

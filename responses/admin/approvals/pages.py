"""Pages of approvals: the inbox of what waits, and the page of a decision with its call and the form to decide."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminTextareaWidget

from console.widgets import when
from core.clock import now, shared_now
from core.errors import ApiError
from core.origin import origin
from responses.admin import cells
from responses.admin.approvals.arguments import form_of
from responses.admin.approvals.inbox import VIEWS, InboxQuery, InboxRow, read_page
from responses.lifecycle.decisions.decide import Answer, decide
from responses.models import Decision, DecisionKind, DecisionState
from responses.runs.decisions import listing
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.console.content_access import read_allowed
from tenants.console.roles import EVERY_ROLE, LEADS, OPERATORS, Roles
from tenants.console.site import page, render
from tenants.console.viewer import Viewer

DECIDERS: Roles = LEADS | OPERATORS
_MAX_TEAMS = 200
_OUTCOMES = {DecisionState.GRANTED.value: "Approved"}
_TONES = {
    DecisionState.GRANTED.value: "success",
    DecisionState.DENIED.value: "danger",
}


class DecisionForm(forms.Form):
    """The decision about a call. The model reads the reason of a denial."""

    approve = forms.TypedChoiceField(choices=[("yes", "Approve"), ("no", "Deny")], coerce=lambda value: value == "yes")
    reason = forms.CharField(
        required=False,
        max_length=10_000,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="Optional. If you deny the call, the model reads the reason.",
    )


@page("approvals/", name="approvals", viewers=EVERY_ROLE)
def approvals(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Show the inbox, or only its rows for the request that refreshes them."""
    query = InboxQuery.of(request.GET)
    found = read_page(viewer, query)
    rows = {
        "view": VIEWS[query.view],
        "rows": [_shown(viewer, row) for row in found.rows],
        "first_url": query.url() if query.after else "",
        "next_url": query.url(after=found.next) if found.next else "",
        "at": now(),
    }
    # A history restore also has the HX-Request header, but replaces the whole page.
    if "HX-Request" in request.headers and "HX-History-Restore-Request" not in request.headers:
        return TemplateResponse(request, "console/approvals/rows.html", rows)
    return render(
        request,
        "console/approvals/inbox.html",
        title="Approvals",
        query=query,
        views=[(query.url(state=name), view.title, name == query.view) for name, view in VIEWS.items()],
        teams=list(viewer.teams().values_list("pk", "name")[:_MAX_TEAMS]),
        kinds=DecisionKind.choices,
        **rows,
    )


def _shown(viewer: Viewer, entry: InboxRow) -> dict[str, Any]:
    row = entry.row
    return {
        "row": row,
        "subject": entry.subject,
        "outcome": _OUTCOMES.get(row.state, row.get_state_display()),
        "tone": _TONES.get(row.state, ""),
        "requested": when(row.asked_at),
        "expires": when(row.expires_at),
        "ended": when(row.answered_at),
        "decided_by": "" if row.state == DecisionState.EXPIRED else row.decided_by,
        "response_url": cells.url(row.response_id),
        "may_decide": viewer.may(DECIDERS, row),
    }


@page("approvals/<str:decision_id>/", name="approval", viewers=EVERY_ROLE)
def approval(request: HttpRequest, viewer: Viewer, decision_id: str) -> HttpResponse:
    """Show a decision, and make it on POST."""
    with scope.team(*viewer.visible_teams):
        known = Decision.objects.select_related("team", "response")
        row = None if "\x00" in decision_id else known.filter(pk=decision_id).first()
        if row is None:
            raise Http404
        subject = listing.subject_of(row)
        is_readable = read_allowed(viewer, row)
        arguments = form_of(row, subject) if is_readable else []
    may_decide = viewer.may(DECIDERS, row)
    form = DecisionForm(request.POST or None)
    if request.method == "POST":
        if not may_decide:
            raise PermissionDenied
        if form.is_valid():
            return _decide(request, viewer, row, form.cleaned_data)
    outcome = _outcome(row)
    conversation = row.response.conversation_id
    return render(
        request,
        "console/approvals/approval.html",
        title="Approval",
        is_fullwidth=False,
        decision=row,
        subject=subject,
        arguments=arguments,
        hidden_team="" if is_readable else row.team_id,
        response_url=cells.url(row.response_id),
        conversation_url=cells.conversation_url(conversation) if conversation else "",
        form=form,
        is_open=not outcome,
        may_decide=may_decide,
        outcome=outcome,
        tone=_TONES.get(row.state, "") if outcome else "warning",
        requested=when(row.asked_at),
        expires=when(row.expires_at),
        decided=when(row.answered_at),
    )


def _outcome(row: Decision) -> str:
    """Return why nobody can decide any more; empty for an open decision."""
    if row.state != DecisionState.ASKED:
        return _OUTCOMES.get(row.state, row.get_state_display())
    if row.expires_at is None:
        return "Answered by the client in a later request"
    if row.response.ended_at is not None:
        return "The response has ended"
    return "Expired" if row.expires_at <= shared_now() else ""


def _decide(request: HttpRequest, viewer: Viewer, row: Decision, given: dict[str, Any]) -> HttpResponse:
    try:
        decide(
            team_id=row.team_id,
            response_id=row.response_id,
            decision_id=row.pk,
            answer=Answer(**given),
            actor=viewer.actor,
            request=RequestInfo(request_id=origin().request_id),
        )
    except ApiError as error:
        # Somebody else was faster, or it is too late: the page shows the outcome.
        messages.error(request, error.message)
        return HttpResponseRedirect(reverse("console:approval", args=[row.pk]))
    messages.success(request, "The call was approved." if given["approve"] else "The call was denied.")
    is_from_response = request.GET.get("from") == "response"
    return HttpResponseRedirect(cells.url(row.response_id) if is_from_response else reverse("console:approvals"))

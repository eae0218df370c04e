"""Page of a decision for which a response waits: the call with its arguments, and a form to approve or deny it."""

from typing import Any

import orjson
from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.widgets import UnfoldAdminTextareaWidget

from core.errors import ApiError
from core.origin import origin
from responses.admin.redaction import redacted
from responses.lifecycle.decisions.decide import Answer, decide
from responses.models import Decision, DecisionState
from responses.runs.decisions import listing
from responses.runs.identity import RequestInfo
from tenants import scope
from tenants.console.content_access import read_allowed
from tenants.console.roles import EVERY_ROLE, LEADS, OPERATORS, Roles
from tenants.console.site import page, render
from tenants.console.viewer import Viewer

DECIDERS: Roles = LEADS | OPERATORS


class DecisionForm(forms.Form):
    """The decision about a call. The model reads the reason of a denial."""

    approve = forms.TypedChoiceField(choices=[("yes", "Approve"), ("no", "Deny")], coerce=lambda value: value == "yes")
    reason = forms.CharField(
        required=False,
        max_length=10_000,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="Optional. If you deny the call, the model reads the reason.",
    )


@page("approvals/<str:decision_id>/", name="approval", viewers=EVERY_ROLE)
def approval(request: HttpRequest, viewer: Viewer, decision_id: str) -> HttpResponse:
    """Show a decision, and make it on POST."""
    with scope.team(*viewer.visible_teams):
        row = Decision.objects.select_related("team", "response").filter(pk=decision_id).first()
        if row is None:
            raise Http404
        arguments = _arguments(viewer, row)
        subject = listing.subject_of(row)
    may_decide = viewer.may(DECIDERS, row)
    form = DecisionForm(request.POST or None)
    if request.method == "POST":
        if not may_decide:
            raise PermissionDenied
        if form.is_valid():
            return _decide(request, viewer, row, form.cleaned_data)
    is_open = row.state == DecisionState.ASKED and row.expires_at is not None and row.response.ended_at is None
    return render(
        request,
        "console/approval.html",
        title="Approval",
        is_fullwidth=False,
        decision=row,
        tool=subject.tool,
        arguments=arguments,
        form=form,
        is_open=is_open,
        may_decide=may_decide,
        outcome="" if is_open else row.get_state_display(),
    )


def _arguments(viewer: Viewer, row: Decision) -> list[tuple[str, str]] | None:
    """Return the arguments as names and texts, without secrets; None if the viewer may not read them."""
    if not read_allowed(viewer, row):
        return None
    arguments: dict[str, Any] = redacted(listing.subject_of(row).arguments)
    return [(name, _text(value)) for name, value in arguments.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


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
        messages.error(request, error.message)
    else:
        messages.success(request, "The call was approved." if given["approve"] else "The call was denied.")
    return HttpResponseRedirect(reverse("console:approval", args=[row.pk]))

"""Pages of approvals: the inbox of what waits, and the page of a decision with its call and the form to decide."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from typing_extensions import override
from unfold.widgets import UnfoldAdminTextareaWidget

from console.widgets import when
from core.clock import now, shared_now
from core.errors import ApiError
from core.origin import origin
from engine.calls.effects import effect_id
from engine.calls.questions import Question
from engine.calls.waits import Outcome
from responses.admin import cells
from responses.admin.approvals.arguments import Argument, form_of, values_of
from responses.admin.approvals.inbox import VIEWS, InboxQuery, InboxRow, read_page
from responses.admin.approvals.questions import AnswerForm
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
    DecisionState.ANSWERED.value: "success",
}
_TITLES = {
    DecisionKind.APPROVAL.value: "Approval",
    DecisionKind.UNKNOWN_OUTCOME.value: "Unknown outcome",
    DecisionKind.QUESTION.value: "Question of a tool",
}
_ANSWERS = {Outcome.DONE: "Done", Outcome.NOT_DONE: "Not done", Outcome.REPEAT: "Repeated"}
_ACTIONS = {"accept": "Answered", "decline": "Declined", "cancel": "Cancelled"}
_CONFIRMATIONS = {
    DecisionState.GRANTED: "The call was approved.",
    DecisionState.DENIED: "The call was denied.",
    Outcome.DONE: "The response continues with the result.",
    Outcome.NOT_DONE: "The response continues without the effect of the call.",
    Outcome.REPEAT: "The call is repeated.",
    "accept": "The answer is sent to the tool.",
    "decline": "The tool is told that the question was declined.",
    "cancel": "The tool is told that the question was cancelled.",
}
_MAX_REASON, _MAX_RESULT = 10_000, 100_000


class ApprovalForm(forms.Form):
    """The decision about a call that needs approval. The model reads the reason of a denial."""

    approve = forms.TypedChoiceField(choices=[("yes", "Approve"), ("no", "Deny")], coerce=lambda value: value == "yes")
    reason = forms.CharField(
        required=False,
        max_length=_MAX_REASON,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="Optional. If you deny the call, the model reads the reason.",
    )

    def answer(self) -> Answer:
        """Return the valid data as an answer."""
        return Answer(approve=self.cleaned_data["approve"], reason=self.cleaned_data["reason"])


class OutcomeForm(forms.Form):
    """The decision about a call whose outcome is unknown."""

    outcome = forms.TypedChoiceField(
        choices=[(value.value, label) for value, label in _ANSWERS.items()], coerce=Outcome
    )
    result = forms.CharField(
        required=False,
        max_length=_MAX_RESULT,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
        help_text="Only for “Done”: text or JSON that the model reads as the output of the call.",
    )
    reason = forms.CharField(
        required=False,
        max_length=_MAX_REASON,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        help_text="Optional. The model reads it if the call was not done.",
    )

    @override
    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        if given.get("result") and given.get("outcome") not in {None, Outcome.DONE}:
            self.add_error("result", "Only a call that was done has a result.")
        return given

    def answer(self) -> Answer:
        """Return the valid data as an answer."""
        given = self.cleaned_data
        return Answer(outcome=given["outcome"], result=given["result"] or None, reason=given["reason"])


_FORMS: dict[str, type[ApprovalForm | OutcomeForm]] = {
    DecisionKind.APPROVAL.value: ApprovalForm,
    DecisionKind.UNKNOWN_OUTCOME.value: OutcomeForm,
}


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
        "outcome": _label(row),
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
    question = Question.restored(row.question) if row.question is not None else None
    form = _FORMS[row.kind](request.POST or None) if question is None else AnswerForm(question, request.POST or None)
    if request.method == "POST":
        # A question can be declined by a person who must not read it, but not answered.
        if not may_decide or (isinstance(form, AnswerForm) and form.accepts and not is_readable):
            raise PermissionDenied
        if form.is_valid():
            return _decide(request, viewer, row, form.answer())
    outcome = _outcome(row)
    conversation = row.response.conversation_id
    return render(
        request,
        "console/approvals/approval.html",
        title=_TITLES[row.kind],
        is_fullwidth=False,
        decision=row,
        subject=subject,
        arguments=arguments,
        answer=(row.answer or {}) if is_readable else {},
        question=question,
        given=_given(row, question) if is_readable else [],
        effect_id=effect_id(row.response_id, row.turn or 0, row.call_id),
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


def _given(row: Decision, question: Question | None) -> list[Argument]:
    """Return the values of the answer to a question."""
    content = (row.answer or {}).get("content")
    return values_of(content, question.schema) if content and question is not None else []


def _label(row: Decision) -> str:
    """Return the state of a decision in one or two words."""
    if row.state == DecisionState.ANSWERED and row.kind == DecisionKind.QUESTION:
        return _ACTIONS[(row.answer or {})["action"]]
    if row.state == DecisionState.ANSWERED and row.kind == DecisionKind.UNKNOWN_OUTCOME:
        return _ANSWERS[Outcome((row.answer or {})["outcome"])]
    return _OUTCOMES.get(row.state, row.get_state_display())


def _outcome(row: Decision) -> str:
    """Return why nobody can decide any more; empty for an open decision."""
    if row.state != DecisionState.ASKED:
        return _label(row)
    if row.expires_at is None:
        return "Answered by the client in a later request"
    if row.response.ended_at is not None:
        return "The response has ended"
    return "Expired" if row.expires_at <= shared_now() else ""


def _decide(request: HttpRequest, viewer: Viewer, row: Decision, answer: Answer) -> HttpResponse:
    try:
        decide(
            team_id=row.team_id,
            response_id=row.response_id,
            decision_id=row.pk,
            answer=answer,
            actor=viewer.actor,
            request=RequestInfo(request_id=origin().request_id),
        )
    except ApiError as error:
        # Somebody else was faster, or it is too late: the page shows the outcome.
        messages.error(request, error.message)
        return HttpResponseRedirect(reverse("console:approval", args=[row.pk]))
    messages.success(request, _CONFIRMATIONS[answer.action or answer.outcome or answer.state])
    is_from_response = request.GET.get("from") == "response"
    return HttpResponseRedirect(cells.url(row.response_id) if is_from_response else reverse("console:approvals"))

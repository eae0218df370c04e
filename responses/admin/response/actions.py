# mypy: allow-subclassing-any
"""Actions on responses: compare, cancel, retry and delete, for one response or a selection."""

from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode
from unfold.widgets import UnfoldAdminTextInputWidget

from console.widgets import changelist_url
from core.errors import ApiError
from core.origin import origin
from responses.admin import cells
from responses.lifecycle.cancel import cancel_run, delete_response
from responses.lifecycle.create import queue_response
from responses.lifecycle.resolve import NewRequest
from responses.models import RUNNING, Mode, Response
from responses.requests import rebuild
from responses.runs.identity import RequestInfo
from tenants import directory
from tenants.console.audited_admin import audit_row
from tenants.console.roles import CONTRIBUTORS, EVERY_ROLE, OPERATORS, Roles
from tenants.console.row_actions import ActionFailed, ReasonForm, RowAction, RowActions, RowForm
from tenants.console.viewer import viewer_of

CANCELLERS: Roles = CONTRIBUTORS | OPERATORS
_TEMPLATE = "admin/responses/response/confirm.html"


class RetryForm(RowForm):
    """Form with the model of a retried response, which its key must be allowed to use.

    Without the field, as for several responses, each response keeps its model.
    """

    model = forms.CharField(max_length=200, required=False, widget=UnfoldAdminTextInputWidget(attrs={"list": "models"}))

    def __init__(self, data: Any = None, *, rows: Any = ()) -> None:
        super().__init__(data, rows=rows)
        self.models: list[str] = []
        if len(rows) != 1:
            del self.fields["model"]
            return
        self.fields["model"].initial = rows[0].model
        try:
            caller = directory.principal_of_run(rows[0].api_key_id)
        except ApiError:
            # A revoked key cannot be used for a retry. The retry itself reports this error.
            return
        self.models = [model["id"] for model in directory.list_models(caller)]


def compare_selected(admin: Any, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
    """Compare two selected responses, the older one as A."""
    keys = list(queryset.order_by("created_at", "id").values_list("pk", flat=True)[:3])
    if len(keys) != 2:
        messages.error(request, "Select exactly two responses to compare.")
        return HttpResponseRedirect(request.get_full_path())
    query = urlencode({"a": keys[0], "b": keys[1]})
    return HttpResponseRedirect(f"{reverse('console:compare')}?{query}#first-difference")


class ResponseActions(RowActions):
    """Actions on responses. Each action that changes one writes a line to the audit log."""

    @RowAction(
        title="Compare with…",
        icon="compare_arrows",
        permits=lambda viewer, response: viewer.may(EVERY_ROLE, response),
        list_roles=EVERY_ROLE,
    )
    def compare(self, request: HttpRequest, response: Response) -> HttpResponse:
        """Open the page that suggests responses to compare with."""
        return HttpResponseRedirect(f"{reverse('console:compare')}?{urlencode({'a': response.pk})}")

    @RowAction(
        title="Cancel",
        icon="cancel",
        permits=lambda viewer, response: viewer.may(CANCELLERS, response),
        list_roles=CANCELLERS,
        applies=lambda response: response.status in RUNNING,
        not_applicable="The response has already ended.",
        question="Cancel this response?",
        description="Stops the run. Partial output is kept and billed.",
        button="Cancel run",
        button_variant="danger",
        template=_TEMPLATE,
        done="cancelled",
    )
    def cancel(self, request: HttpRequest, response: Response) -> None:
        """Stop a run."""
        is_cancelled = cancel_run(
            team_id=response.team_id,
            actor=viewer_of(request).actor,
            response_id=response.pk,
            request=RequestInfo(request_id=origin().request_id),
        )
        if not is_cancelled:
            raise ActionFailed("The response has already ended.")

    @RowAction(
        title="Retry as new",
        icon="replay",
        permits=lambda viewer, response: viewer.may(CONTRIBUTORS, response),
        list_roles=CONTRIBUTORS,
        applies=lambda response: response.stored and response.status not in RUNNING,
        not_applicable="The response is still running or was not stored.",
        question="Retry this response?",
        description="Runs a new background response with the same input and API key. It is billed like the original. "
        "Tool secrets are never stored, so they are not sent again.",
        button="Retry",
        template=_TEMPLATE,
        form=RetryForm,
        done="retried",
    )
    def retry(self, request: HttpRequest, response: Response, form: RetryForm) -> HttpResponse:
        """Queue a new response with the same input, and open it."""

        async def queue(body: Any) -> str:
            # The new request is made with the key of the response: the key's team is billed and its limits apply.
            principal = await directory.aprincipal_by_id(response.api_key_id)
            info = RequestInfo(request_id=origin().request_id)
            new = NewRequest(principal=principal, body=body, info=info, mode=Mode.JSON)
            return str((await queue_response(new)).body["id"])

        parameters = {**rebuild.rebuild_request(response), **rebuild.waiting_options(response)}
        if model := form.cleaned_data.get("model"):
            parameters = {**parameters, "model": model}
        try:
            new_id = async_to_sync(queue)(rebuild.parse_for_worker(parameters))
        except ApiError as failed:
            raise ActionFailed(failed.message) from failed
        audit_row(viewer_of(request), response, "retried", after={"response": new_id})
        return HttpResponseRedirect(cells.url(new_id))

    @RowAction(
        title="Delete",
        icon="delete",
        permits=lambda viewer, response: viewer.may(CONTRIBUTORS, response),
        list_roles=CONTRIBUTORS,
        question="Delete this response?",
        description="Permanently deletes the input and output with their turns, tool calls and events. Usage records "
        "and audit events are kept. Responses that continue this one are linked to the response before it.",
        button="Delete permanently",
        button_variant="danger",
        template=_TEMPLATE,
        form=ReasonForm,
        done="deleted",
    )
    def delete(self, request: HttpRequest, response: Response, form: ReasonForm) -> HttpResponse:
        """Delete a response and its content."""
        delete_response(
            actor=viewer_of(request).actor,
            response=response,
            request=RequestInfo(request_id=origin().request_id),
            reason=form.cleaned_data["reason"],
        )
        return HttpResponseRedirect(changelist_url("responses_response"))

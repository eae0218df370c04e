# mypy: allow-subclassing-any
"""Actions on responses in the admin: cancel, retry and delete, for one response or a selection.

Each action is a POST from a confirmation page and writes a row to the audit log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.contrib import messages
from django.contrib.admin import helpers
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from typing_extensions import override
from unfold.decorators import action

from kernel.errors import ApiError
from responses.admin import cells
from responses.admin.response_list import export
from responses.admin.response_list.changelist import FilteredChangeList, scan
from responses.admin.response_list.columns import ResponseList
from responses.lifecycle import cancel, create
from responses.models import RUNNING, Mode, Response
from responses.requests import rebuild
from responses.runs.identity import RequestInfo
from tenants import directory
from tenants.console.audited_admin import actor, audit_row
from tenants.console.roles import CONTRIBUTORS, OPERATORS, Roles, may

CANCELLERS: Roles = CONTRIBUTORS | OPERATORS
_PAGE = "admin/responses/response/confirm.html"
_MIN_REASON, _MAX_REASON = 5, 500


class ActionFailed(Exception):
    """An action that a response refused; the message is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAction:
    """An action on a response, with its texts and permissions.

    `perform` returns the id of the response to open afterwards, or an empty string for the list. It raises
    ActionFailed. `done` is the past participle used in messages ("3 responses cancelled").
    """

    name: str
    title: str
    description: str
    button: str
    icon: str
    done: str
    roles: Roles
    is_applicable: Callable[[Response], bool]
    not_applicable: str
    perform: Callable[[HttpRequest, Response, str], str]
    requires_reason: bool = False
    variant: str = "danger"

    def may(self, request: HttpRequest, response: Response) -> bool:
        """Return whether the user's roles and the state of the response allow the action."""
        return may(request, self.roles, response) and self.is_applicable(response)


def _request_info(request: HttpRequest) -> RequestInfo:
    return RequestInfo(request_id=getattr(request, "scope", {}).get("request_id", ""))


def _cancel(request: HttpRequest, response: Response, _: str) -> str:
    has_ended = not cancel.cancel_run(
        team_id=response.team_id, actor=actor(request), response_id=response.pk, request=_request_info(request)
    )
    if has_ended:
        raise ActionFailed("The response has already ended.")
    return response.pk


def _retry(request: HttpRequest, response: Response, _: str) -> str:
    # The same key, and not the user, makes the new request: its team is billed and its limits apply.
    try:
        body = rebuild.parse_for_worker(rebuild.rebuild_request(response))
        new_id = async_to_sync(_queue)(response.api_key_id, body, _request_info(request))
    except ApiError as failed:
        raise ActionFailed(failed.message) from failed
    audit_row(request, response, "retried", after={"response": new_id})
    return new_id


async def _queue(key_id: str, body: Any, request: RequestInfo) -> str:
    principal = await directory.aprincipal_by_id(key_id)
    made = await create.queue_response(principal=principal, body=body, mode=Mode.JSON, request=request)
    return str(made["id"])


def _delete(request: HttpRequest, response: Response, reason: str) -> str:
    create.delete_response(actor=actor(request), response=response, request=_request_info(request), reason=reason)
    return ""


CANCEL = ResponseAction(
    name="cancel",
    title="Cancel",
    description="Stops the run. Partial output is kept and billed.",
    button="Cancel run",
    icon="cancel",
    done="cancelled",
    roles=CANCELLERS,
    is_applicable=lambda response: response.status in RUNNING,
    not_applicable="The response has already ended.",
    perform=_cancel,
)
RETRY = ResponseAction(
    name="retry",
    title="Retry as new",
    description="Runs a new background response with the same parameters, input and API key. It is billed like the "
    "original. Tool secrets are never stored, so they are not sent again.",
    button="Retry",
    icon="replay",
    done="retried",
    roles=CONTRIBUTORS,
    is_applicable=lambda response: response.stored and response.status not in RUNNING,
    not_applicable="The response is still running or was not stored.",
    perform=_retry,
    variant="primary",
)
DELETE = ResponseAction(
    name="delete",
    title="Delete",
    description="Permanently deletes the input and output with their turns, tool calls and events. Usage records and "
    "audit events are kept. Responses that continue this one are linked to the response before it.",
    button="Delete permanently",
    icon="delete",
    done="deleted",
    roles=CONTRIBUTORS,
    is_applicable=lambda _: True,
    not_applicable="",
    perform=_delete,
    requires_reason=True,
)
RESPONSE_ACTIONS = (CANCEL, RETRY, DELETE)


class ResponseListWithActions(ResponseList):
    """Response list with bulk actions and a confirmation page for each action on a single response."""

    actions = ("export_selected", "cancel_selected", "retry_selected", "erase_selected")

    @override
    def get_urls(self) -> list[URLPattern]:
        single = [
            path(
                f"<path:object_id>/{response_action.name}/",
                self.admin_site.admin_view(self._view_for(response_action)),
                name=f"responses_response_{response_action.name}",
            )
            for response_action in RESPONSE_ACTIONS
        ]
        exports = self.admin_site.admin_view(self.export_view)
        return [path("export/", exports, name="responses_response_export"), *single, *super().get_urls()]

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Export the filtered responses as JSON Lines, newest first, at most `export.MOST_ROWS`."""
        if not export.may_export(request):
            raise PermissionDenied
        rows = cast("FilteredChangeList", self.get_changelist_instance(request))
        return export.export(request, scan(rows.plan, limit=export.MOST_ROWS).ids)

    def _view_for(self, response_action: ResponseAction) -> Callable[..., HttpResponse]:
        def serve(request: HttpRequest, object_id: str) -> HttpResponse:
            response = self.get_visible(request, object_id)
            if not may(request, response_action.roles, response):
                raise PermissionDenied
            # A POST without the required reason shows the page again, with an error.
            if request.method == "POST" and _has_required_reason(request, response_action):
                return self._perform(request, response_action, response)
            return self._confirm(request, response_action, [response], back=cells.url(response.pk))

        return serve

    def _perform(self, request: HttpRequest, response_action: ResponseAction, response: Response) -> HttpResponse:
        response_id = response.pk
        if not response_action.is_applicable(response):
            messages.error(request, f"{response_id}: {response_action.not_applicable}")
            return HttpResponseRedirect(cells.url(response_id))
        try:
            next_id = response_action.perform(request, response, _reason(request))
        except ActionFailed as failed:
            messages.error(request, f"{response_id}: {failed}")
            return HttpResponseRedirect(cells.url(response_id))
        messages.success(request, f"{response_id} {response_action.done}.")
        return HttpResponseRedirect(cells.url(next_id) if next_id else reverse("admin:responses_response_changelist"))

    # -- a selection ---------------------------------------------------------------------------------------------------

    @action(description="Export as JSONL", icon="download", permissions=["export"])  # type: ignore[untyped-decorator]
    def export_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> StreamingHttpResponse:
        """Export the selection as JSON Lines."""
        return export.export(request, queryset.values_list("pk", flat=True))

    def has_export_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Return whether the user may export responses of at least one team."""
        return export.may_export(request)

    @action(description="Cancel", icon="cancel", permissions=["cancel"])  # type: ignore[untyped-decorator]  # Unfold
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
        """Cancel the selected responses that are running."""
        return self._selected(request, CANCEL, queryset)

    @action(description="Retry as new", icon="replay", permissions=["make"])  # type: ignore[untyped-decorator]  # as above
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
        """Retry the selected responses that have ended."""
        return self._selected(request, RETRY, queryset)

    @action(description="Delete", icon="delete", permissions=["make"])  # type: ignore[untyped-decorator]  # as above
    def erase_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
        """Delete the selected responses."""
        return self._selected(request, DELETE, queryset)

    def has_cancel_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Return whether the user may cancel runs of at least one team."""
        return may(request, CANCELLERS)

    def has_make_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Return whether the user may create responses for at least one team."""
        return may(request, CONTRIBUTORS)

    def _selected(
        self, request: HttpRequest, response_action: ResponseAction, queryset: QuerySet[Response]
    ) -> HttpResponse:
        # `defer(None)`: the list defers parameters and metadata, which a retry needs; without it each row is read
        # again.
        chosen = list(queryset.select_related("team", "api_key").defer(None))
        permitted = [response for response in chosen if response_action.may(request, response)]
        # Django posts the bulk action first without `confirmed`; the confirmation page posts the same action with it.
        if "confirmed" not in request.POST or not _has_required_reason(request, response_action):
            return self._confirm(
                request, response_action, permitted, skipped=len(chosen) - len(permitted), back=request.get_full_path()
            )
        done, last_error = 0, ""
        for response in permitted:
            response_id = response.pk
            try:
                response_action.perform(request, response, _reason(request))
                done += 1
            except ActionFailed as failed:
                last_error = f"{response_id}: {failed}"
        if done:
            messages.success(request, f"{done} {'response' if done == 1 else 'responses'} {response_action.done}.")
        if done < len(permitted):
            messages.error(request, f"{len(permitted) - done} could not be {response_action.done}. {last_error}")
        return HttpResponseRedirect(request.get_full_path())

    def _confirm(
        self,
        request: HttpRequest,
        response_action: ResponseAction,
        chosen: Sequence[Response],
        *,
        back: str,
        skipped: int = 0,
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": response_action.title if len(chosen) == 1 else f"{response_action.title}: {len(chosen)} responses",
            "response_action": response_action,
            "chosen": chosen,
            "skipped": skipped,
            "back": back,
            "is_selection": "action" in request.POST,
            "action": request.POST.get("action", ""),
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
            "error": request.method == "POST"
            and "reason" in request.POST
            and not _has_required_reason(request, response_action),
            "min_reason": _MIN_REASON,
            "max_reason": _MAX_REASON,
        }
        return TemplateResponse(request, _PAGE, context)


def _reason(request: HttpRequest) -> str:
    return request.POST.get("reason", "").replace("\x00", "").strip()[:_MAX_REASON]


def _has_required_reason(request: HttpRequest, response_action: ResponseAction) -> bool:
    return not response_action.requires_reason or len(_reason(request)) >= _MIN_REASON

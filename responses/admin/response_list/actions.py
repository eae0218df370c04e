# mypy: allow-subclassing-any
"""What people do to responses: cancel, ask again, delete, one of them or a selection. Each is a POST behind a page that
asks, and a line in the audit log."""

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
from responses.admin.response_list.changelist import AimedList, look
from responses.admin.response_list.columns import ResponseList
from responses.lifecycle import cancel, create
from responses.models import RUNNING, Mode, Response
from responses.requests import rebuild
from responses.runs.ledger import RequestInfo
from tenants import directory
from tenants.console.audited_admin import actor, audit_row
from tenants.console.roles import CONTRIBUTORS, OPERATORS, Roles, may

CANCELLERS: Roles = CONTRIBUTORS | OPERATORS
_PAGE = "admin/responses/response/confirm.html"
_LEAST_REASON, _LONGEST_REASON = 5, 500


class NotDone(Exception):
    """Why something could not be done to a response, in words for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that people do to responses. `act` answers the id of the response to go to, empty for the list."""

    name: str
    title: str
    lead: str
    button: str
    icon: str
    done: str
    roles: Roles
    fits: Callable[[Response], bool]
    unfit: str
    act: Callable[[HttpRequest, Response, str], str]
    wants_reason: bool = False
    variant: str = "danger"

    def may(self, request: HttpRequest, response: Response) -> bool:
        """Whether the user may do it to this response, as it is now."""
        return may(request, self.roles, response) and self.fits(response)


def _request_info(request: HttpRequest) -> RequestInfo:
    return RequestInfo(request_id=getattr(request, "scope", {}).get("request_id", ""))


def _cancel(request: HttpRequest, response: Response, _: str) -> str:
    has_ended = not cancel.cancel_run(
        team_id=response.team_id, actor=actor(request), response_id=response.pk, request=_request_info(request)
    )
    if has_ended:
        raise NotDone("It had ended already.")
    return response.pk


def _retry(request: HttpRequest, response: Response, _: str) -> str:
    """Ask again in the background, in the name of the same key: its team pays, and its limits hold."""
    try:
        body = rebuild.parsed(rebuild.request_of(response))
        new_id = async_to_sync(_queue)(response.api_key_id, body, _request_info(request))
    except ApiError as failed:
        raise NotDone(failed.message) from failed
    audit_row(request, response, "retried", after={"response": new_id})
    return new_id


async def _queue(key_id: str, body: Any, request: RequestInfo) -> str:
    principal = await directory.aprincipal_by_id(key_id)
    made = await create.queue_response(principal=principal, body=body, mode=Mode.JSON, request=request)
    return str(made["id"])


def _delete(request: HttpRequest, response: Response, reason: str) -> str:
    create.delete_response(actor=actor(request), response=response, request=_request_info(request), reason=reason)
    return ""


CANCEL = Deed(
    name="cancel",
    title="Cancel",
    lead="The run ends where it stands. What it has said so far is kept, and paid for.",
    button="Cancel the run",
    icon="cancel",
    done="cancelled",
    roles=CANCELLERS,
    fits=lambda response: response.status in RUNNING,
    unfit="It has ended already.",
    act=_cancel,
)
RETRY = Deed(
    name="retry",
    title="Retry as new",
    lead="A new response with the same parameters and input is run in the background, in the name of the same key. "
    "It costs what the first one cost. Secrets of tools are not kept, and so not sent again.",
    button="Ask again",
    icon="replay",
    done="asked again",
    roles=CONTRIBUTORS,
    fits=lambda response: response.stored and response.status not in RUNNING,
    unfit="It is still running, or was not stored.",
    act=_retry,
    variant="primary",
)
DELETE = Deed(
    name="delete",
    title="Delete",
    lead="What was asked and answered is deleted for good, with its turns, tool calls and events. The ledger and the "
    "audit log keep their numbers; what followed it follows what it followed itself.",
    button="Delete for good",
    icon="delete",
    done="deleted",
    roles=CONTRIBUTORS,
    fits=lambda _: True,
    unfit="",
    act=_delete,
    wants_reason=True,
)
DEEDS = (CANCEL, RETRY, DELETE)


class ActingList(ResponseList):
    """The list with its actions, and the pages that ask before one of them is done to a single response."""

    actions = ("export_selected", "cancel_selected", "retry_selected", "erase_selected")

    @override
    def get_urls(self) -> list[URLPattern]:
        one = [
            path(
                f"<path:object_id>/{deed.name}/",
                self.admin_site.admin_view(self._page_of(deed)),
                name=f"responses_response_{deed.name}",
            )
            for deed in DEEDS
        ]
        exports = self.admin_site.admin_view(self.export_view)
        return [path("export/", exports, name="responses_response_export"), *one, *super().get_urls()]

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """What the filters choose as JSON Lines, the newest first, up to a bound."""
        if not export.may_export(request):
            raise PermissionDenied
        rows = cast("AimedList", self.get_changelist_instance(request))
        return export.export(request, look(rows.aimed, limit=export.MOST_ROWS).ids)

    def _page_of(self, deed: Deed) -> Callable[..., HttpResponse]:
        def serve(request: HttpRequest, object_id: str) -> HttpResponse:
            response = self.seen(request, object_id)
            if not may(request, deed.roles, response):
                raise PermissionDenied
            if request.method == "POST" and _is_told(request, deed):
                return self._do(request, deed, response)
            return self._ask(request, deed, [response], back=cells.url(response.pk))

        return serve

    def _do(self, request: HttpRequest, deed: Deed, response: Response) -> HttpResponse:
        response_id = response.pk
        if not deed.fits(response):
            messages.error(request, f"{response_id}: {deed.unfit}")
            return HttpResponseRedirect(cells.url(response_id))
        try:
            onward = deed.act(request, response, _reason(request))
        except NotDone as failed:
            messages.error(request, f"{response_id}: {failed}")
            return HttpResponseRedirect(cells.url(response_id))
        messages.success(request, f"{response_id} is {deed.done}.")
        return HttpResponseRedirect(cells.url(onward) if onward else reverse("admin:responses_response_changelist"))

    # -- a selection ---------------------------------------------------------------------------------------------------

    @action(description="Export as JSONL", icon="download", permissions=["export"])  # type: ignore[untyped-decorator]
    def export_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> StreamingHttpResponse:
        """Take them away as JSON Lines."""
        return export.export(request, queryset.values_list("pk", flat=True))

    def has_export_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Whether there is a team whose responses the user may take away."""
        return export.may_export(request)

    @action(description="Cancel", icon="cancel", permissions=["cancel"])  # type: ignore[untyped-decorator]  # Unfold
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
        """Cancel those that run."""
        return self._selected(request, CANCEL, queryset)

    @action(description="Retry as new", icon="replay", permissions=["make"])  # type: ignore[untyped-decorator]  # as above
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
        """Ask those again that have ended."""
        return self._selected(request, RETRY, queryset)

    @action(description="Delete", icon="delete", permissions=["make"])  # type: ignore[untyped-decorator]  # as above
    def erase_selected(self, request: HttpRequest, queryset: QuerySet[Response]) -> HttpResponse:
        """Delete them."""
        return self._selected(request, DELETE, queryset)

    def has_cancel_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Whether there is a team whose runs the user may cancel."""
        return may(request, CANCELLERS)

    def has_make_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Whether there is a team in whose name the user may ask."""
        return may(request, CONTRIBUTORS)

    def _selected(self, request: HttpRequest, deed: Deed, queryset: QuerySet[Response]) -> HttpResponse:
        chosen = list(queryset.select_related("team", "api_key").defer(None))
        fit = [response for response in chosen if deed.may(request, response)]
        if "confirmed" not in request.POST or not _is_told(request, deed):
            return self._ask(request, deed, fit, left=len(chosen) - len(fit), back=request.get_full_path())
        done, told = 0, ""
        for response in fit:
            name = response.pk
            try:
                deed.act(request, response, _reason(request))
                done += 1
            except NotDone as failed:
                told = f"{name}: {failed}"
        if done:
            messages.success(request, f"{done} {'response is' if done == 1 else 'responses are'} {deed.done}.")
        if done < len(fit):
            messages.error(request, f"{len(fit) - done} could not be {deed.done}. {told}")
        return HttpResponseRedirect(request.get_full_path())

    def _ask(
        self, request: HttpRequest, deed: Deed, chosen: Sequence[Response], *, back: str, left: int = 0
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": deed.title if len(chosen) == 1 else f"{deed.title}: {len(chosen)} responses",
            "deed": deed,
            "chosen": chosen,
            "left": left,
            "back": back,
            "is_selection": "action" in request.POST,
            "action": request.POST.get("action", ""),
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
            "error": request.method == "POST" and "reason" in request.POST and not _is_told(request, deed),
            "least": _LEAST_REASON,
            "longest": _LONGEST_REASON,
        }
        return TemplateResponse(request, _PAGE, context)


def _reason(request: HttpRequest) -> str:
    return request.POST.get("reason", "").replace("\x00", "").strip()[:_LONGEST_REASON]


def _is_told(request: HttpRequest, deed: Deed) -> bool:
    """Whether there is a reason, where there has to be one."""
    return not deed.wants_reason or len(_reason(request)) >= _LEAST_REASON

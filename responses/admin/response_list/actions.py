"""Actions on responses in the admin: cancel, retry, delete and export, for one response or a selection.

Cancel, retry and delete are a POST from a confirmation page and write a row to the audit log.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from asgiref.sync import async_to_sync
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from conversations.models import Placement, Section
from core.clock import now
from core.db.db_threads import in_db_thread
from core.errors import ApiError
from core.origin import origin
from responses.admin import cells
from responses.lifecycle import cancel, create
from responses.lifecycle.resolve import NewRequest
from responses.models import RUNNING, Mode, Response
from responses.requests import rebuild
from responses.runs import selectors
from responses.runs.identity import RequestInfo
from tenants import directory, scope
from tenants.console.audited_admin import audit_row
from tenants.console.content_access import audit_team_reads
from tenants.console.roles import CONTRIBUTORS, OPERATORS, Roles
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import Team

CANCELLERS: Roles = CONTRIBUTORS | OPERATORS
EXPORTERS: Roles = CONTRIBUTORS | OPERATORS
MAX_EXPORTED = 10_000
# Responses read at a time: bounds the memory of one export.
_EXPORT_BATCH = 25
_EXPORTED_COLUMNS = (
    "id", "created_at", "ended_at", "status", "mode", "background", "team_id", "api_key_id", "model", "upstream_model",
    "previous_response_id", "conversation_id", "end_user", "request_id", "client_request_id", "first_token_ms",
    "duration_ms", "turns", "tool_calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost",
    "error_code", "incomplete_reason",
)  # fmt: skip
_MIN_REASON, _MAX_REASON = 5, 500


class ActionFailed(Exception):
    """An action that a response refused; the message is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAction:
    """An action on a response, with its texts and permissions.

    `function` returns the id of the response to open afterwards. `done` is the past participle used in messages
    ("3 responses cancelled").
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
    function: Callable[[HttpRequest, Response], str]
    requires_reason: bool = False
    variant: str = "danger"

    def may(self, viewer: Viewer, response: Response) -> bool:
        """Return whether the user's roles and the state of the response allow the action."""
        return viewer.may(self.roles, response) and self.is_applicable(response)

    def perform(self, request: HttpRequest, response: Response) -> str:
        """Return the id of the response to open afterwards, or an empty string for the list. Raises ActionFailed."""
        if not self.is_applicable(response):
            raise ActionFailed(self.not_applicable)
        return self.function(request, response)


def _request_info() -> RequestInfo:
    return RequestInfo(request_id=origin().request_id)


def _cancel(request: HttpRequest, response: Response) -> str:
    has_ended = not cancel.cancel_run(
        team_id=response.team_id, actor=viewer_of(request).actor, response_id=response.pk, request=_request_info()
    )
    if has_ended:
        raise ActionFailed("The response has already ended.")
    return response.pk


def _retry(request: HttpRequest, response: Response) -> str:
    async def queue(body: Any) -> str:
        # The same key, and not the user, makes the new request: its team is billed and its limits apply.
        principal = await directory.aprincipal_by_id(response.api_key_id)
        new = NewRequest(principal=principal, body=body, info=_request_info(), mode=Mode.JSON)
        return str((await create.queue_response(new)).body["id"])

    parameters = rebuild.rebuild_request(response)
    if model := request.POST.get("model", "").replace("\x00", "").strip():
        parameters = {**parameters, "model": model}
    try:
        new_id = async_to_sync(queue)(rebuild.parse_for_worker(parameters))
    except ApiError as failed:
        raise ActionFailed(failed.message) from failed
    audit_row(viewer_of(request), response, "retried", after={"response": new_id})
    return new_id


def _delete(request: HttpRequest, response: Response) -> str:
    reason = _reason(request)
    cancel.delete_response(actor=viewer_of(request).actor, response=response, request=_request_info(), reason=reason)
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
    function=_cancel,
)
RETRY = ResponseAction(
    name="retry",
    title="Retry as new",
    description="Runs a new background response with the same input and API key. It is billed like the "
    "original. Tool secrets are never stored, so they are not sent again.",
    button="Retry",
    icon="replay",
    done="retried",
    roles=CONTRIBUTORS,
    is_applicable=lambda response: response.stored and response.status not in RUNNING,
    not_applicable="The response is still running or was not stored.",
    function=_retry,
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
    function=_delete,
    requires_reason=True,
)
RESPONSE_ACTIONS = (CANCEL, RETRY, DELETE)


def perform_on_one(action: ResponseAction, request: HttpRequest, viewer: Viewer, response: Response) -> HttpResponse:
    """Serve the confirmation page of an action on one response, and perform it once confirmed."""
    if not viewer.may(action.roles, response):
        raise PermissionDenied
    response_id, page = response.pk, cells.url(response.pk)
    # A POST without the required reason shows the page again, with an error.
    if request.method != "POST" or not _has_required_reason(request, action):
        return _confirm(request, action, [response], back=page)
    try:
        next_id = action.perform(request, response)
    except ActionFailed as failed:
        messages.error(request, f"{response_id}: {failed}")
        return HttpResponseRedirect(page)
    messages.success(request, f"{response_id} {action.done}.")
    return HttpResponseRedirect(cells.url(next_id) if next_id else reverse("admin:responses_response_changelist"))


def perform_on_selection(
    action: ResponseAction, _: Any, request: HttpRequest, queryset: QuerySet[Response]
) -> HttpResponse:
    """Serve the confirmation page of an action on the selected responses, and perform it once confirmed."""
    # `defer(None)`: the list defers parameters and metadata, which a retry needs; without it each row is read again.
    chosen = list(queryset.select_related("team", "api_key").defer(None))
    permitted = [response for response in chosen if action.may(viewer_of(request), response)]
    # Django posts the bulk action first without `confirmed`; the confirmation page posts the same action with it.
    if "confirmed" not in request.POST or not _has_required_reason(request, action):
        return _confirm(request, action, permitted, skipped=len(chosen) - len(permitted), back=request.get_full_path())
    done, last_error = 0, ""
    for response in permitted:
        response_id = response.pk
        try:
            action.perform(request, response)
            done += 1
        except ActionFailed as failed:
            last_error = f"{response_id}: {failed}"
    if done:
        messages.success(request, f"{done} {'response' if done == 1 else 'responses'} {action.done}.")
    if done < len(permitted):
        messages.error(request, f"{len(permitted) - done} could not be {action.done}. {last_error}")
    return HttpResponseRedirect(request.get_full_path())


def _confirm(
    request: HttpRequest, action: ResponseAction, chosen: Sequence[Response], *, back: str, skipped: int = 0
) -> HttpResponse:
    has_reason = _has_required_reason(request, action)
    context = {
        **admin.site.each_context(request),
        "opts": Response._meta,  # noqa: SLF001 - Django's documented API for models
        "title": action.title if len(chosen) == 1 else f"{action.title}: {len(chosen)} responses",
        "response_action": action,
        "chosen": chosen,
        "skipped": skipped,
        "back": back,
        "is_selection": "action" in request.POST,
        "action": request.POST.get("action", ""),
        "models": [*_models(chosen)] if action is RETRY and len(chosen) == 1 else None,
        "checkbox": helpers.ACTION_CHECKBOX_NAME,
        "error": request.method == "POST" and "reason" in request.POST and not has_reason,
        "min_reason": _MIN_REASON,
        "max_reason": _MAX_REASON,
    }
    return TemplateResponse(request, "admin/responses/response/confirm.html", context)


def _models(chosen: Sequence[Response]) -> Iterable[str]:
    """Yield the models that the key of a response may use."""
    try:
        caller = directory.principal_of_run(chosen[0].api_key_id)
    except ApiError:
        # A revoked key cannot retry at all; the retry reports it.
        return
    yield from (model["id"] for model in directory.list_models(caller))


def _reason(request: HttpRequest) -> str:
    return request.POST.get("reason", "").replace("\x00", "").strip()[:_MAX_REASON]


def _has_required_reason(request: HttpRequest, action: ResponseAction) -> bool:
    return not action.requires_reason or len(_reason(request)) >= _MIN_REASON


def export(request: HttpRequest, ids: Iterable[str]) -> StreamingHttpResponse:
    """Stream the responses that the user may export as JSON Lines, newest first.

    The audit log records the number per team.
    """
    rows = Response.objects.filter(pk__in=list(ids)[:MAX_EXPORTED])
    viewer = viewer_of(request)
    teams = viewer.team_ids(EXPORTERS)
    if teams is not None:
        rows = rows.filter(team_id__in=teams)
    counts = dict(rows.values_list("team_id").annotate(rows=Count("pk")).order_by())
    for team_id, count in sorted(counts.items()):
        after = {"rows": count, "filters": request.GET.urlencode()[:1000]}
        audit_row(
            viewer_of(request),
            Team(pk=team_id),
            "exported",
            action="responses.exported",
            after=after,
            target="responses",
        )
    audit_team_reads(viewer, {team_id for team_id in counts if viewer.may_read(team_id)})
    exported = list(rows.order_by("-created_at", "-id").values_list("pk", flat=True))

    def read_batch(batch: Sequence[str]) -> bytes:
        # The stream runs after the request's transaction, so row-level security needs the user's teams again.
        with scope.team(*viewer.visible_teams):
            found = {row.pk: row for row in Response.objects.filter(pk__in=batch)}
            readable = [row for row in found.values() if row.stored and viewer.may_read(row.team_id)]
            inputs, outputs = _inputs([row.pk for row in readable]), selectors.outputs(readable)
        lines = []
        for row in (found[row_id] for row_id in batch if row_id in found):
            line: dict[str, Any] = {name: getattr(row, name) for name in _EXPORTED_COLUMNS}
            # A string: JSON readers would round a decimal number.
            line["cost"] = None if row.cost is None else str(row.cost)
            # Without access to the content, a line has the metrics only.
            if row in readable:
                line["input"] = inputs.get(row.pk, [])
                line["response"] = selectors.public_body(row, outputs.get(row.pk, []))
            lines.append(orjson.dumps(line) + b"\n")
        return b"".join(lines)

    async def stream() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(exported), _EXPORT_BATCH):
            yield await in_db_thread(partial(read_batch, exported[start : start + _EXPORT_BATCH]))

    name = f"responses-{now():%Y%m%d-%H%M%S}.jsonl"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingHttpResponse(stream(), content_type="application/jsonl", headers=headers)


def _inputs(ids: Sequence[str]) -> dict[str, list[Any]]:
    placements = Placement.objects.filter(owner__in=ids, section=Section.INPUT).select_related("item")
    found: dict[str, list[Any]] = {}
    for placement in placements.order_by("owner", "position"):
        found.setdefault(placement.owner, []).append(placement.item.body)
    return found


# By the name that the form of the list posts: title, roles, function of the admin, the request and the rows.
SELECTION_ACTIONS: dict[str, tuple[str, Roles, Callable[..., HttpResponse | StreamingHttpResponse]]] = {
    "export_selected": (
        "Export as JSONL",
        EXPORTERS,
        lambda _, request, queryset: export(request, queryset.values_list("pk", flat=True)),
    ),
    "cancel_selected": (CANCEL.title, CANCEL.roles, partial(perform_on_selection, CANCEL)),
    "retry_selected": (RETRY.title, RETRY.roles, partial(perform_on_selection, RETRY)),
    # Django's own action is called `delete_selected`.
    "erase_selected": (DELETE.title, DELETE.roles, partial(perform_on_selection, DELETE)),
}

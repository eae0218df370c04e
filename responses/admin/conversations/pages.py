# mypy: allow-subclassing-any
"""Conversation pages: the list, one conversation as a chat, and its actions.

Fork and delete need a POST after a confirmation page and are recorded in the audit log. Users without the role get 403.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import display, register
from django.contrib.admin.views.main import ChangeList
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import PermissionDenied
from django.db.models import F, Func, IntegerField, Q, QuerySet, TextField, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from typing_extensions import override

from console.filters import RelatedFilter, text_filter
from console.markdown import without_markup
from console.widgets import TimeFilter, ago, badge, column, copyable, two_lines, when
from conversations import export, selectors, services
from conversations.models import Conversation
from core.errors import ApiError, NotFound
from core.http.rendering import download_headers
from responses.admin import cells
from responses.admin.conversations.summaries import (
    recently_active,
    responses_of_items,
    summaries_of,
)
from responses.admin.transcript.entries import entries, item_context
from responses.models import Response, ToolCall
from tenants.console.audited_admin import audit_row
from tenants.console.content_access import HIDDEN, audit_team_reads, read_allowed, with_readable
from tenants.console.roles import CONTRIBUTORS, LEADS, OPERATORS
from tenants.console.row_pages import RowPages
from tenants.console.viewer import Viewer, viewer_of

SHOWN_ITEMS = 50
# Number of items shown after the item that a link points to.
_ITEMS_AFTER = 25
_SHOWN_RESPONSES = 10
_MAX_CALLS = 500
_MAX_MATCHES = 2000
_ACTIVE_PERIODS = {"1h": ("in the last hour", timedelta(hours=1)), "24h": ("in the last 24 hours", timedelta(hours=24))}
FORK_ROLES = CONTRIBUTORS | OPERATORS
DELETE_ROLES = LEADS | OPERATORS
# The ids of items to delete are part of the URL of the confirmation page.
_MAX_DELETED = 20
_FORMATS = {"jsonl": ("application/jsonl", export.lines), "md": ("text/markdown; charset=utf-8", export.markdown)}


class CreatedFilter(TimeFilter):
    """Limit the list by creation time, unless another filter already limits it."""

    @override
    def _bounds(self, present: Any, *, is_search: bool) -> Any:
        query = self.request.GET
        return super()._bounds(
            present, is_search=is_search or query.get("active") in _ACTIVE_PERIODS or "end_user" in query
        )


class ActiveFilter(admin.SimpleListFilter):
    """Selects conversations with recent responses. `ConversationAdmin.get_queryset` applies the filter."""

    title = "last activity"
    parameter_name = "active"

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, title) for name, (title, _) in _ACTIVE_PERIODS.items()]

    @override
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


def _of_end_user(end_user: str) -> Q:
    """Return the condition for the 2,000 latest conversations of an end user, found through an index of responses."""
    by_user = Response.objects.filter(end_user=end_user, conversation_id__isnull=False).order_by("-created_at")
    return Q(pk__in=set(by_user.values_list("conversation_id", flat=True)[:_MAX_MATCHES]))


def _with_metadata(pair: str) -> Q | None:
    """Return the condition for conversations with metadata, given as `name=value`."""
    name, equals, value = pair.partition("=")
    return Q(metadata__contains={name.strip(): value.strip()}) if equals else None


# -- one conversation --------------------------------------------------------------------------------------------------


def _chat(request: HttpRequest, viewer: Viewer, conversation: Conversation) -> dict[str, Any]:
    """Return the template context of the items before `?before=`, or around `?item=`, or of the latest items."""
    before, given = None, request.GET.get("before", "")
    if given.isascii() and given.isdigit() and len(given) < 10:
        before = int(given)
    elif item_id := request.GET.get("item"):
        place = selectors.find_placement(conversation=conversation, item_id=item_id)
        before = place.position + _ITEMS_AFTER if place is not None else None
    placed = selectors.placements(conversation)
    if before is not None:
        placed = placed.filter(position__lt=before)
    # Prefetched, not joined: under row-level security a join may read the whole conversation.
    newest = list(placed.prefetch_related("item").order_by("-position")[: SHOWN_ITEMS + 1])
    placements = newest[:SHOWN_ITEMS][::-1]
    is_readable = read_allowed(viewer, conversation)
    owners, responses = responses_of_items(conversation, placements)
    calls = ToolCall.objects.filter(response_id__in=responses, team_id=conversation.team_id).order_by("id")
    context = item_context(placements, list(calls[:_MAX_CALLS]), team_id=conversation.team_id, owners=owners)
    by_key = {str(key): owner for key, owner in owners.items()}
    rows: list[dict[str, Any]] = []
    shown = entries(placements, context, is_readable=is_readable)
    last = ""
    for entry in shown:
        owner = by_key.get(entry.key, "")
        # The first entry of a response has a header.
        response = responses.get(owner) if owner != last else None
        answer = getattr(entry, "answer", None)
        rows.append(
            {
                "entry": entry,
                "response": response,
                "status": cells.status(response) if response else "",
                "cost": cells.cost(response) if response else "",
                "took": cells.latency(response) if response else "",
                # The first item that was added without a response, after items of a response.
                "starts_without_response": bool(last) > bool(owner),
                # A call and its output are two items. A fork after this entry includes both.
                "item_ids": [entry.id, answer.id] if answer else [entry.id],
                "last_id": answer.id if answer else entry.id,
            }
        )
        last = owner
    return {
        "original": conversation,
        "rows": rows,
        "at": placements[0].position if placements else 0,
        "has_earlier": len(newest) > SHOWN_ITEMS,
        # The link points into the middle of the conversation: there are newer items below the shown items.
        "has_later": before is not None and before < conversation.next_position,
        "first_response_id": by_key.get(shown[0].key, "") if shown else "",
        # The page already begins with the header of this response. The new fragment contains the header too, so the old
        # header is removed.
        "duplicate_header_at": before if last and last == request.GET.get("of") else None,
        "may_fork": viewer.may(FORK_ROLES, conversation),
        "may_delete": viewer.may(DELETE_ROLES, conversation),
    }


def earlier_items(request: HttpRequest, viewer: Viewer, conversation: Conversation) -> HttpResponse:
    """Serve the items before a position, as an HTML fragment that is inserted above the items of the page."""
    return TemplateResponse(
        request, "admin/conversations/conversation/items.html", _chat(request, viewer, conversation)
    )


class ReasonForm(forms.Form):
    """The reason for a deletion, recorded in the audit log."""

    reason = forms.CharField(max_length=500, min_length=5)


def fork(request: HttpRequest, viewer: Viewer, conversation: Conversation) -> HttpResponse:
    """Copy the conversation into a new one: the items up to and including `after`, or all of them."""
    if not viewer.may(FORK_ROLES, conversation):
        raise PermissionDenied
    after = request.POST.get("after") or request.GET.get("after") or None
    if request.method == "POST":
        try:
            # The fork was created by a user and not with an API key.
            made = services.fork_conversation(
                team_id=conversation.team_id, key_id=None, conversation_id=conversation.pk, after=after
            )
        except NotFound as gone:
            messages.error(request, gone.message)
            return HttpResponseRedirect(cells.conversation_url(conversation.pk))
        audit_row(viewer, made, "forked", after={"from": conversation.pk, "after": after or "the last item"})
        messages.success(request, f"Forked from {conversation.pk}.")
        return HttpResponseRedirect(cells.conversation_url(made.pk))
    scope = f"the items up to {after}" if after else "all items"
    lead = f"Creates a new conversation with {scope} and the same metadata. This conversation does not change."
    context = {"title": "Fork this conversation?", "lead": lead, "button": "Fork", "hidden": {"after": after or ""}}
    return _confirmation_page(request, conversation, context)


def remove(request: HttpRequest, viewer: Viewer, conversation: Conversation) -> HttpResponse:
    """Delete the items named by `item`, or the whole conversation if none is named."""
    if not viewer.may(DELETE_ROLES, conversation):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    items = given.getlist("item")[:_MAX_DELETED]
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        arguments: dict[str, Any] = {
            "team_id": conversation.team_id,
            "actor": viewer.actor,
            "conversation_id": conversation.pk,
            "reason": form.cleaned_data["reason"],
        }
        try:
            for item_id in items:
                services.delete_item(item_id=item_id, **arguments)
            if not items:
                services.delete_conversation(**arguments)
        except ApiError as refused:
            messages.error(request, refused.message)
            return HttpResponseRedirect(cells.conversation_url(conversation.pk))
        deleted = f"Deleted: {', '.join(items)}." if items else f"Deleted conversation {conversation.pk}."
        messages.success(request, deleted)
        changelist = reverse("admin:conversations_conversation_changelist")
        return HttpResponseRedirect(cells.conversation_url(conversation.pk) if items else changelist)
    if items:
        title = f"Delete {'this item' if len(items) == 1 else f'these {len(items)} items'}?"
        names = ", ".join(items)
        lead = f"Removes {names} from this conversation. Responses and forks that contain the same items keep them."
    else:
        title = "Delete this conversation?"
        lead = "Permanently deletes the conversation, and all items that no response or fork contains."
    context = {"title": title, "lead": lead, "button": "Delete", "items": items, "form": form, "is_dangerous": True}
    return _confirmation_page(request, conversation, context)


def export_items(request: HttpRequest, viewer: Viewer, conversation: Conversation) -> StreamingHttpResponse:
    """Stream the whole conversation as JSON Lines or Markdown."""
    if not read_allowed(viewer, conversation):
        raise PermissionDenied
    form = "md" if request.GET.get("format") == "md" else "jsonl"
    content_type, serialize = _FORMATS[form]
    headers = download_headers(f"{conversation.pk}.{form}")
    found = selectors.find_conversation(team_id=conversation.team_id, conversation_id=conversation.pk)
    return StreamingHttpResponse(serialize(found or conversation), content_type=content_type, headers=headers)


def _confirmation_page(request: HttpRequest, conversation: Conversation, context: dict[str, Any]) -> HttpResponse:
    page = {
        **admin.site.each_context(request),
        "opts": Conversation._meta,  # noqa: SLF001 - Django's documented API for models
        "original": conversation,
        "back": cells.conversation_url(conversation.pk),
        **context,
    }
    return TemplateResponse(request, "admin/conversations/conversation/confirm.html", page)


# -- the list ----------------------------------------------------------------------------------------------------------


@register(Conversation)
class ConversationAdmin(RowPages):
    """List and detail page of conversations."""

    empty_text = "A conversation is created with POST /v1/conversations, and keeps the items of its responses."

    list_display = ["created", "conversation", "owner", "user", "items", "runs", "tools", "tokens", "errors"]
    list_prefetch = ("team", "api_key")
    list_filter = [
        ("created_at", CreatedFilter),
        ActiveFilter,
        ("team", RelatedFilter),
        ("api_key", RelatedFilter),
        # Responses have an index by end user, so this search needs no time range.
        text_filter("end_user", "end user", _of_end_user),
        text_filter("metadata", "metadata name=value", _with_metadata),
    ]
    search_fields = ["id"]
    search_help_text = "Exact ID: conv_…"
    row_views = (
        ("items", "items/", earlier_items),
        ("fork", "fork/", fork),
        ("remove", "remove/", remove),
        ("export", "export/", export_items),
    )

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = with_readable(viewer_of(request), super().get_queryset(request))
        # Applied here and not in the filter, because ordering needs the same ids. The list may have old conversations.
        recent_ids = self._recently_active_ids(request)
        return rows if recent_ids is None else rows.filter(pk__in=recent_ids)

    def get_ordering(self, request: HttpRequest) -> Sequence[Any]:
        """Order by last activity if the activity filter is used, else by creation."""
        recent_ids = self._recently_active_ids(request)
        if recent_ids is None:
            return self.ordering
        # The order of the ids is known already. Sorting by it in SQL keeps pagination in the database.
        listed = Value(recent_ids, output_field=ArrayField(TextField()))
        return [Func(listed, F("pk"), function="array_position", output_field=IntegerField()).asc()]

    def _recently_active_ids(self, request: Any) -> list[str] | None:
        """Return the ids selected by the activity filter, or None without it. Read once for each request."""
        if (period := request.GET.get("active")) not in _ACTIVE_PERIODS:
            return None
        if not hasattr(request, "recently_active"):
            teams = viewer_of(request).team_ids(self.viewers)
            request.recently_active = recently_active(length=_ACTIVE_PERIODS[period][1], teams=teams)
        found: list[str] = request.recently_active
        return found

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Add the summaries of the rows, with previews of the conversations that the viewer may read."""
        changelist = super().get_changelist_instance(request)
        rows = list(changelist.result_list)
        summaries = summaries_of(rows)
        for row in rows:
            row.summary = summaries[row.pk]
        # A preview is content: displaying it counts as reading it.
        audit_team_reads(viewer_of(request), {row.team_id for row in rows if row.readable and row.summary.preview})
        changelist.result_list = rows
        return changelist

    @override
    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Serve the chat: the latest items, or the items around `?item=`."""
        viewer, conversation = viewer_of(request), self.get_or_404(request, object_id)
        is_readable = viewer.may_read(conversation.team_id)
        summary = summaries_of([conversation], with_previews=is_readable)[conversation.pk]
        latest = Response.objects.filter(conversation_id=conversation.pk, team_id=conversation.team_id)
        return self.render(
            request,
            "admin/conversations/conversation/detail.html",
            conversation.pk,
            is_fullwidth="1",
            id_link=copyable(conversation.pk),
            summary=summary,
            tokens=summary.tokens,
            cost=summary.dollars,
            created=when(conversation.created_at),
            last_active=when(summary.last_active),
            metadata={key: value if is_readable else HIDDEN for key, value in conversation.metadata.items()},
            hidden_team="" if is_readable else conversation.team_id,
            responses=list(latest.only("id", "status", "created_at").order_by("-created_at")[:_SHOWN_RESPONSES]),
            is_readable=is_readable,
            **_chat(request, viewer, conversation),
        )

    # -- columns -------------------------------------------------------------------------------------------------------

    created = column(
        "Created, last activity", lambda row: when(row.created_at, note=f"active {ago(row.summary.last_active)}")
    )
    owner = column("Team and API key", lambda row: two_lines(row.team.name, cells.key(row) if row.api_key else ""))
    user = column("End user", lambda row: row.summary.end_user or "–")
    items = column("Items", lambda row: f"{row.summary.items:,}{'+' if row.summary.more_items else ''}")
    tools = column("Tool calls", lambda row: f"{row.summary.tools:,}" if row.summary.tools else "–")
    tokens = column("Tokens in / out", lambda row: two_lines(row.summary.tokens, row.summary.dollars))
    errors = column("Errors", lambda row: badge(f"{row.summary.errors:,}", "danger") if row.summary.errors else "–")

    @display(description="Conversation")
    def conversation(self, row: Any) -> SafeString:
        preview = without_markup(row.summary.preview) if row.readable else HIDDEN
        link = copyable(row.pk, href=cells.conversation_url(row.pk))
        lock_owner = row.summary.locked_by
        lock = badge("locked", "info", f"locked by {lock_owner}") if lock_owner else ""
        markup = '<span class="c-preview">{}<span title="{}">{}</span><small>{}</small></span>'
        return format_html(markup, link, preview, preview, lock)

    @display(description="Responses")
    def runs(self, row: Any) -> SafeString:
        number = f"{row.summary.responses:,}{'+' if row.summary.more_responses else ''}"
        turns = f"{row.summary.turns:,} turn{'' if row.summary.turns == 1 else 's'}"
        return two_lines(number, turns if row.summary.turns else "")

# mypy: allow-subclassing-any
"""Conversation pages: the list, and one conversation as a chat."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.postgres.fields import ArrayField
from django.db.models import F, Func, IntegerField, QuerySet, TextField, Value
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import AutocompleteSelectFilter, TextFilter

from console.widgets import LogAdmin, TimeFilter, badge, copyable, two_lines, when
from conversations import selectors
from conversations.models import Conversation, Placement
from responses.admin import cells
from responses.admin.conversations import actions as conversation_actions
from responses.admin.conversations.summaries import (
    ConversationSummary,
    recently_active,
    responses_of_items,
    summaries_of,
)
from responses.admin.transcript.entries import Entry, entries, item_context
from responses.models import Response, ToolCall
from tenants.console.content_access import HIDDEN, audit_read, audit_team_reads, hidden_notice, may_read
from tenants.console.roles import CONTRIBUTORS, LEADS, OPERATORS, TeamScoped, everywhere, may, teams_of
from tenants.console.viewer import viewer

SHOWN_ITEMS = 50
# Items shown after the one that a link points to.
_ITEMS_AFTER = 25
_SHOWN_RESPONSES = 10
_MAX_CALLS = 500
_MAX_MATCHES = 2000
_ACTIVE_PERIODS = {"1h": ("in the last hour", timedelta(hours=1)), "24h": ("in the last 24 hours", timedelta(hours=24))}
FORK_ROLES = CONTRIBUTORS | OPERATORS
DELETE_ROLES = LEADS | OPERATORS


class CreatedFilter(TimeFilter):
    """Limit the list by creation time, unless another filter already limits it."""

    @override
    def _bounds(self, present: Any, *, is_search: bool) -> Any:
        query = self.request.GET
        return super()._bounds(
            present, is_search=is_search or query.get("active") in _ACTIVE_PERIODS or "end_user" in query
        )


class ActiveFilter(admin.SimpleListFilter):
    """Conversations with recent responses, whatever their age. `ConversationAdmin.get_queryset` applies the filter."""

    title = "last activity"
    parameter_name = "active"

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, title) for name, (title, _) in _ACTIVE_PERIODS.items()]

    @override
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class EndUserFilter(TextFilter):
    """Conversations of an end user: the 2,000 latest, found by the index of responses."""

    title = "end user"
    parameter_name = "end_user"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not (end_user := (self.value() or "").strip()):
            return queryset
        # Responses have an index by end user, so the search needs no time range.
        by_user = Response.objects.filter(end_user=end_user, conversation_id__isnull=False).order_by("-created_at")
        return queryset.filter(pk__in=set(by_user.values_list("conversation_id", flat=True)[:_MAX_MATCHES]))


class MetadataFilter(TextFilter):
    """Conversations by metadata, as `name=value`."""

    title = "metadata name=value"
    parameter_name = "metadata"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name, equals, value = (self.value() or "").partition("=")
        return queryset.filter(metadata__contains={name.strip(): value.strip()}) if equals else queryset


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """An entry of the chat.

    `response` is set for the first entry of a response and shows a header. `starts_without_response` marks the first of
    the items that were added without a response, after items of one.
    """

    entry: Entry
    response: Response | None
    starts_without_response: bool
    item_ids: Sequence[str]

    @property
    def last_id(self) -> str:
        """Id of the last item of the entry: a fork here includes it."""
        return self.item_ids[-1]

    @property
    def status(self) -> SafeString:
        """Status badge of the response."""
        return cells.status(self.response) if self.response else SafeString()

    @property
    def took(self) -> SafeString:
        """Duration of the response."""
        return cells.latency(self.response) if self.response else SafeString()


@register(Conversation)
class ConversationAdmin(LogAdmin, TeamScoped):
    """List and detail page of conversations."""

    list_display = ["active", "conversation", "owner", "user", "items", "runs", "tools", "tokens", "errors"]
    list_display_links = ["active"]
    list_prefetch = ("team", "api_key")
    list_filter = [
        ("created_at", CreatedFilter),
        ActiveFilter,
        ("team", AutocompleteSelectFilter),
        ("api_key", AutocompleteSelectFilter),
        EndUserFilter,
        MetadataFilter,
    ]
    search_fields = ["id"]
    search_help_text = "Exact ID: conv_…"
    ordering = ["-created_at", "-id"]
    sortable_by = ()

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        # Here and not in the filter: ordering needs the same ids, and the list may contain old conversations.
        recent_ids = self._recently_active_ids(request)
        return rows if recent_ids is None else rows.filter(pk__in=recent_ids)

    def get_ordering(self, request: HttpRequest) -> Sequence[Any]:
        """Order by last activity if that filter is active, else by creation."""
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
            teams = None if everywhere(request, self.viewers) else teams_of(request, self.viewers)
            request.recently_active = recently_active(length=_ACTIVE_PERIODS[period][1], teams=teams)
        found: list[str] = request.recently_active
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        row_id = search_term.strip()
        return (queryset.filter(pk=row_id) if row_id else queryset), False

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Add the summaries of the rows, with previews of those that may be read."""
        changelist = super().get_changelist_instance(request)
        rows = list(changelist.result_list)
        summaries = summaries_of(rows)
        readable = {row.team_id for row in rows if may_read(request, row.team_id)}
        for row in rows:
            row.summary = summaries[row.pk]
            row.is_readable = row.team_id in readable
        # A preview is content: displaying it counts as reading it.
        audit_team_reads(viewer(request), {row.team_id for row in rows if row.is_readable and row.summary.preview})
        changelist.result_list = rows
        return changelist

    # -- one conversation ----------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        views = {
            "items": self.items_view,
            "fork": conversation_actions.fork,
            "remove": conversation_actions.remove,
            "export": conversation_actions.export_items,
        }
        served = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(view if name == "items" else self._for_one(view)),
                name=f"conversations_conversation_{name}",
            )
            for name, view in views.items()
        ]
        return [*served, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Serve the chat: the latest items, or those around `?item=`."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        conversation = self.visible(request, object_id)
        if conversation is None:
            raise Http404
        is_readable = may_read(request, conversation.team_id)
        summary = summaries_of([conversation], with_previews=is_readable)[conversation.pk]
        latest = Response.objects.filter(conversation_id=conversation.pk, team_id=conversation.team_id)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": conversation,
            "title": conversation.pk,
            "is_fullwidth": "1",
            "id_link": copyable(conversation.pk),
            "summary": summary,
            "tokens": f"{summary.input_tokens:,} / {summary.output_tokens:,}",
            "cost": _cost(summary),
            "created": when(conversation.created_at),
            "last_active": when(summary.last_active),
            "metadata": _metadata(conversation, is_readable=is_readable),
            "content_hidden": "" if is_readable else hidden_notice(request, conversation.team_id),
            "responses": list(latest.only("id", "status", "created_at").order_by("-created_at")[:_SHOWN_RESPONSES]),
            "may_delete": may(request, DELETE_ROLES, conversation),
            "is_readable": is_readable,
            **self._chat(request, conversation),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/conversations/conversation/detail.html", context)

    def items_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Serve the items before a position, as an HTML fragment that is inserted above those on the page."""
        conversation = self.visible(request, object_id)
        if conversation is None:
            raise Http404
        context = self._chat(request, conversation)
        return TemplateResponse(request, "admin/conversations/conversation/items.html", context)

    def visible(self, request: HttpRequest, object_id: str) -> Conversation | None:
        """Return the conversation, or None if the user cannot see it."""
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        found: Conversation | None = rows.filter(pk=unquote(object_id)).first() if "\x00" not in object_id else None
        return found if found is not None and self.has_view_permission(request, found) else None

    def _for_one(self, view: Any) -> Any:
        """Wrap a view of one conversation. Raises 404 for one that the user cannot see."""

        def serve(request: HttpRequest, object_id: str) -> Any:
            conversation = self.visible(request, object_id)
            if conversation is None:
                raise Http404
            return view(request, conversation)

        return serve

    def _chat(self, request: HttpRequest, conversation: Conversation) -> dict[str, Any]:
        before = _before(request, conversation)
        placed = selectors.placements(conversation)
        if before is not None:
            placed = placed.filter(position__lt=before)
        # Prefetched, not joined: under row-level security a join may read the whole conversation.
        newest = list(placed.prefetch_related("item").order_by("-position")[: SHOWN_ITEMS + 1])
        placements = newest[:SHOWN_ITEMS][::-1]
        is_readable = may_read(request, conversation.team_id)
        if is_readable:
            audit_read(request, conversation, team_id=conversation.team_id)
        rows, first_response_id, last_response_id = _rows(conversation, placements, is_readable=is_readable)
        return {
            "original": conversation,
            "rows": rows,
            "at": placements[0].position if placements else 0,
            "has_earlier": len(newest) > SHOWN_ITEMS,
            # A link into the middle of the conversation: newer items exist below those shown.
            "has_later": before is not None and before < conversation.next_position,
            "first_response_id": first_response_id,
            # The page already begins with the header of this response: the new fragment has it, the old one is removed.
            "duplicate_header_at": before if last_response_id and last_response_id == request.GET.get("of") else None,
            "may_fork": may(request, FORK_ROLES, conversation),
            "may_delete": may(request, DELETE_ROLES, conversation),
        }

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Last activity")
    def active(self, row: Any) -> Any:
        return when(row.summary.last_active)

    @display(description="Conversation")
    def conversation(self, row: Any) -> SafeString:
        preview = row.summary.preview if row.is_readable else HIDDEN
        link = copyable(row.pk, href=reverse("admin:conversations_conversation_change", args=[row.pk]))
        lock_owner = row.summary.locked_by
        lock = badge("locked", "info", f"locked by {lock_owner}") if lock_owner else ""
        markup = '<span class="c-preview">{}<span title="{}">{}</span><small>{}</small></span>'
        return format_html(markup, link, preview, preview, lock)

    @display(description="Team and API key")
    def owner(self, row: Any) -> SafeString:
        return two_lines(row.team.name, cells.key(row) if row.api_key else "")

    @display(description="End user")
    def user(self, row: Any) -> str:
        return row.summary.end_user or "–"

    @display(description="Items")
    def items(self, row: Any) -> str:
        return f"{row.summary.items:,}{'+' if row.summary.more_items else ''}"

    @display(description="Responses")
    def runs(self, row: Any) -> SafeString:
        number = f"{row.summary.responses:,}{'+' if row.summary.more_responses else ''}"
        turns = f"{row.summary.turns:,} turn{'' if row.summary.turns == 1 else 's'}"
        return two_lines(number, turns if row.summary.turns else "")

    @display(description="Tool calls")
    def tools(self, row: Any) -> str:
        return f"{row.summary.tools:,}" if row.summary.tools else "–"

    @display(description="Tokens in / out")
    def tokens(self, row: Any) -> SafeString:
        return two_lines(f"{row.summary.input_tokens:,} / {row.summary.output_tokens:,}", _cost(row.summary))

    @display(description="Errors")
    def errors(self, row: Any) -> SafeString | str:
        return badge(f"{row.summary.errors:,}", "danger") if row.summary.errors else "–"


# -- the chat ----------------------------------------------------------------------------------------------------------


def _before(request: HttpRequest, conversation: Conversation) -> int | None:
    """Return the position before which items are shown: `?before=`, or shortly after the item that `?item=` names."""
    given = request.GET.get("before", "")
    if given.isascii() and given.isdigit() and len(given) < 10:
        return int(given)
    if item_id := request.GET.get("item"):
        place = selectors.find_placement(conversation=conversation, item_id=item_id)
        if place is not None:
            return place.position + _ITEMS_AFTER
    return None


def _rows(
    conversation: Conversation, placements: Sequence[Placement], *, is_readable: bool
) -> tuple[list[ChatRow], str, str]:
    """Return the rows, and the response ids of the first and the last one (empty for none)."""
    owners, responses = responses_of_items(conversation, placements)
    calls = ToolCall.objects.filter(response_id__in=responses, team_id=conversation.team_id).order_by("id")
    context = item_context(placements, list(calls[:_MAX_CALLS]), team_id=conversation.team_id, owners=owners)
    by_key = {str(key): owner for key, owner in owners.items()}
    rows, last = [], ""
    for entry in entries(placements, context, is_readable=is_readable):
        owner = by_key.get(entry.key, "")
        response = responses.get(owner) if owner != last else None
        rows.append(
            ChatRow(
                entry=entry,
                response=response,
                starts_without_response=bool(last) > bool(owner),
                item_ids=list(_ids(entry)),
            )
        )
        last = owner
    first = by_key.get(rows[0].entry.key, "") if rows else ""
    return rows, first, last


def _ids(entry: Entry) -> Iterator[str]:
    """Yield the ids of the items in an entry: a call and its output are two items."""
    yield entry.id
    if (answer := getattr(entry, "answer", None)) is not None:
        yield answer.id


def _metadata(conversation: Conversation, *, is_readable: bool) -> dict[str, str]:
    return {name: value if is_readable else HIDDEN for name, value in conversation.metadata.items()}


def _cost(summary: ConversationSummary) -> str:
    return "" if summary.cost is None else f"${summary.cost:,.4f}"

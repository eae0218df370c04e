# mypy: allow-subclassing-any
"""Conversations: the list, one of them as a chat, and what people do with it."""

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
from responses.admin.conversations.summaries import Facts, facts_of, lately_active, owners_of
from responses.admin.transcript.entries import Entry, entries, item_context
from responses.models import Response, ToolCall
from tenants.console.content_access import HIDDEN, audit_read, audit_team_reads, hidden_notice, may_read
from tenants.console.roles import CONTRIBUTORS, LEADS, OPERATORS, TeamScoped, everywhere, may, teams_of
from tenants.console.viewer import viewer

SHOWN_ITEMS = 50
_AROUND = 25
_SHOWN_RESPONSES = 10
_MOST_CALLS = 500
_MOST_SPOKEN = 2000
_ACTIVE = {"1h": ("in the last hour", timedelta(hours=1)), "24h": ("in the last 24 hours", timedelta(hours=24))}
FORKERS = CONTRIBUTORS | OPERATORS
DELETERS = LEADS | OPERATORS


class CreatedFilter(TimeFilter):
    """Bounds the list by creation, unless it is already bounded by what went on lately."""

    @override
    def _bounds(self, present: Any, *, is_search: bool) -> Any:
        asked = self.request.GET
        return super()._bounds(present, is_search=is_search or asked.get("active") in _ACTIVE or "end_user" in asked)


class ActiveFilter(admin.SimpleListFilter):
    """Those that were continued lately, however old they are; the query set itself is narrowed by the page."""

    title = "continued"
    parameter_name = "active"

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, title) for name, (title, _) in _ACTIVE.items()]

    @override
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class EndUserFilter(TextFilter):
    """Those in which somebody's end user spoke, by the index of responses: the latest of them."""

    title = "end user"
    parameter_name = "end_user"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not (wanted := (self.value() or "").strip()):
            return queryset
        spoken = Response.objects.filter(end_user=wanted, conversation_id__isnull=False).order_by("-created_at")
        return queryset.filter(pk__in=set(spoken.values_list("conversation_id", flat=True)[:_MOST_SPOKEN]))


class MetadataFilter(TextFilter):
    """`name=value` of the metadata, by its index."""

    title = "metadata name=value"
    parameter_name = "metadata"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name, equals, value = (self.value() or "").partition("=")
        return queryset.filter(metadata__contains={name.strip(): value.strip()}) if equals else queryset


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry of the chat; before the first one of a response stands what is known of that. `is_loose`: here begins
    what no response has brought, after something that one has."""

    entry: Entry
    response: Response | None
    is_loose: bool
    item_ids: Sequence[str]

    @property
    def last_id(self) -> str:
        """The last item of the entry: where a fork ends."""
        return self.item_ids[-1]

    @property
    def status(self) -> SafeString:
        """The badge of the response's status."""
        return cells.status(self.response) if self.response else SafeString()

    @property
    def took(self) -> SafeString:
        """How long it took."""
        return cells.took(self.response) if self.response else SafeString()


@register(Conversation)
class ConversationAdmin(LogAdmin, TeamScoped):
    """What was said in the teams, from beginning to end."""

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
    search_help_text = "An exact id: conv_…"
    ordering = ["-created_at", "-id"]
    sortable_by = ()

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        lately = self._lately(request)
        return rows if lately is None else rows.filter(pk__in=lately)

    def get_ordering(self, request: HttpRequest) -> Sequence[Any]:
        """Those continued lately by when that was, others by their age."""
        lately = self._lately(request)
        if lately is None:
            return self.ordering
        listed = Value(lately, output_field=ArrayField(TextField()))
        return [Func(listed, F("pk"), function="array_position", output_field=IntegerField()).asc()]

    def _lately(self, request: Any) -> list[str] | None:
        """The conversations that were continued lately, if those are asked for; looked up once for a page."""
        if (wanted := request.GET.get("active")) not in _ACTIVE:
            return None
        if not hasattr(request, "lately_active"):
            teams = None if everywhere(request, self.viewers) else teams_of(request, self.viewers)
            request.lately_active = lately_active(length=_ACTIVE[wanted][1], teams=teams)
        found: list[str] = request.lately_active
        return found

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        wanted = search_term.strip()
        return (queryset.filter(pk=wanted) if wanted else queryset), False

    @override
    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """The page with what is known of its rows, and with their first words where they may be read."""
        changelist = super().get_changelist_instance(request)
        rows = list(changelist.result_list)
        facts = facts_of(rows)
        readable = {row.team_id for row in rows if may_read(request, row.team_id)}
        for row in rows:
            row.facts = facts[row.pk]
            row.is_readable = row.team_id in readable
        audit_team_reads(viewer(request), {row.team_id for row in rows if row.is_readable and row.facts.preview})
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
        """The chat: the latest items, or those around the one that is asked for."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        conversation = self.visible(request, object_id)
        if conversation is None:
            raise Http404
        is_readable = may_read(request, conversation.team_id)
        facts = facts_of([conversation], with_previews=is_readable)[conversation.pk]
        latest = Response.objects.filter(conversation_id=conversation.pk, team_id=conversation.team_id)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": conversation,
            "title": conversation.pk,
            "is_fullwidth": "1",
            "id_link": copyable(conversation.pk),
            "facts": facts,
            "tokens": f"{facts.input_tokens:,} / {facts.output_tokens:,}",
            "cost": _money(facts),
            "created": when(conversation.created_at),
            "last_active": when(facts.last_active),
            "metadata": _metadata(conversation, is_readable=is_readable),
            "content_hidden": "" if is_readable else hidden_notice(request, conversation.team_id),
            "responses": list(latest.only("id", "status", "created_at").order_by("-created_at")[:_SHOWN_RESPONSES]),
            "may_delete": may(request, DELETERS, conversation),
            "is_readable": is_readable,
            **self._chat(request, conversation),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/conversations/conversation/detail.html", context)

    def items_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The items before a position, which the page asks for when somebody looks back."""
        conversation = self.visible(request, object_id)
        if conversation is None:
            raise Http404
        context = self._chat(request, conversation)
        return TemplateResponse(request, "admin/conversations/conversation/items.html", context)

    def visible(self, request: HttpRequest, object_id: str) -> Conversation | None:
        """The conversation, if it is there for the user."""
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        found: Conversation | None = rows.filter(pk=unquote(object_id)).first() if "\x00" not in object_id else None
        return found if found is not None and self.has_view_permission(request, found) else None

    def _for_one(self, view: Any) -> Any:
        """A view of one conversation; 404 for one that is not there for the user."""

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
        # Fetched, not joined: behind row-level security a join may read the whole conversation.
        newest = list(placed.prefetch_related("item").order_by("-position")[: SHOWN_ITEMS + 1])
        placements = newest[:SHOWN_ITEMS][::-1]
        is_readable = may_read(request, conversation.team_id)
        if is_readable:
            audit_read(request, conversation, team_id=conversation.team_id)
        rows, first_owner, last_owner = _rows(conversation, placements, is_readable=is_readable)
        return {
            "original": conversation,
            "rows": rows,
            "at": placements[0].position if placements else 0,
            "has_earlier": len(newest) > SHOWN_ITEMS,
            "has_later": before is not None and before < conversation.next_position,
            "first_owner": first_owner,
            # The page that asks begins with the same response: it need not say so twice.
            "doubled_at": before if last_owner and last_owner == request.GET.get("of") else None,
            "may_fork": may(request, FORKERS, conversation),
            "may_delete": may(request, DELETERS, conversation),
        }

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Last activity")
    def active(self, row: Any) -> Any:
        return when(row.facts.last_active)

    @display(description="Conversation")
    def conversation(self, row: Any) -> SafeString:
        preview = row.facts.preview if row.is_readable else HIDDEN
        link = copyable(row.pk, href=reverse("admin:conversations_conversation_change", args=[row.pk]))
        held = row.facts.held_by
        lock = badge("locked", "info", f"continued by {held} right now") if held else ""
        told = '<span class="c-preview">{}<span title="{}">{}</span><small>{}</small></span>'
        return format_html(told, link, preview, preview, lock)

    @display(description="Team and key")
    def owner(self, row: Any) -> SafeString:
        return two_lines(row.team.name, cells.key(row) if row.api_key else "")

    @display(description="End user")
    def user(self, row: Any) -> str:
        return row.facts.end_user or "–"

    @display(description="Items")
    def items(self, row: Any) -> str:
        return f"{row.facts.items:,}{'+' if row.facts.more_items else ''}"

    @display(description="Responses")
    def runs(self, row: Any) -> SafeString:
        number = f"{row.facts.responses:,}{'+' if row.facts.more_responses else ''}"
        turns = f"{row.facts.turns:,} turn{'' if row.facts.turns == 1 else 's'}"
        return two_lines(number, turns if row.facts.turns else "")

    @display(description="Tools")
    def tools(self, row: Any) -> str:
        return f"{row.facts.tools:,}" if row.facts.tools else "–"

    @display(description="Tokens in / out")
    def tokens(self, row: Any) -> SafeString:
        return two_lines(f"{row.facts.input_tokens:,} / {row.facts.output_tokens:,}", _money(row.facts))

    @display(description="Errors")
    def errors(self, row: Any) -> SafeString | str:
        return badge(f"{row.facts.errors:,}", "danger") if row.facts.errors else "–"


# -- what the page of one tells ----------------------------------------------------------------------------------------


def _before(request: HttpRequest, conversation: Conversation) -> int | None:
    """Behind which position nothing is shown: what the address says, or a little behind the item that it names."""
    given = request.GET.get("before", "")
    if given.isascii() and given.isdigit() and len(given) < 10:
        return int(given)
    if item_id := request.GET.get("item"):
        place = selectors.find_placement(conversation=conversation, item_id=item_id)
        if place is not None:
            return place.position + _AROUND
    return None


def _rows(
    conversation: Conversation, placements: Sequence[Placement], *, is_readable: bool
) -> tuple[list[Row], str, str]:
    """The entries with their responses, and the ids of the first and the last of these."""
    owners, responses = owners_of(conversation, placements)
    calls = ToolCall.objects.filter(response_id__in=responses, team_id=conversation.team_id).order_by("id")
    known = item_context(placements, list(calls[:_MOST_CALLS]), team_id=conversation.team_id, owners=owners)
    by_key = {str(key): owner for key, owner in owners.items()}
    rows, last = [], ""
    for entry in entries(placements, known, is_readable=is_readable):
        owner = by_key.get(entry.key, "")
        response = responses.get(owner) if owner != last else None
        rows.append(Row(entry=entry, response=response, is_loose=bool(last) > bool(owner), item_ids=list(_ids(entry))))
        last = owner
    first = by_key.get(rows[0].entry.key, "") if rows else ""
    return rows, first, last


def _ids(entry: Entry) -> Iterator[str]:
    """The items in an entry: a call and its answer are two."""
    yield entry.id
    if (answer := getattr(entry, "answer", None)) is not None:
        yield answer.id


def _metadata(conversation: Conversation, *, is_readable: bool) -> dict[str, str]:
    return {name: value if is_readable else HIDDEN for name, value in conversation.metadata.items()}


def _money(facts: Facts) -> str:
    return "" if facts.cost is None else f"${facts.cost:,.4f}"

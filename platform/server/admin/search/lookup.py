"""Lookup of admin pages by id and by name: the table of id prefixes, a finder for each of them, and `/admin/go/<id>`.

A finder uses the query set of the admin page, so it finds exactly the objects that the page shows to the user; an
object that the user may not see is reported like an unknown id. Every lookup uses an index; where the index begins with
the team, staff search all teams with one `IN` condition.

The command palette (Ctrl-K) also finds pages, teams, keys, models and users by name. It replaces Unfold's search at the
same URL and renders the same fragment. Unfold's search caches results for five minutes, so a user could still see
objects after losing access, and it lower-cases the term, which breaks ids.
"""

import re
import time
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from typing import Any, NamedTuple
from urllib.parse import quote

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import Model as Row
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from unfold.dataclasses import SearchResult

from containers.models import Container, ContainerFile
from conversations.models import Conversation, File, Item, Placement, Section, Upload
from core.ids import created_near
from responses.models import HAS_WAITED, ChatCompletion, Decision, PromptTemplate, Response, ToolCall
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreBatch
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from server import navigation
from skills.models import Skill, SkillVersion
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import may_open, page, render
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import ApiKey, AuditEvent, Connector, Model, SearchEngine, Team, Upstream, UsageRecord

_MAX_ID = 255
_VISIBLE_KEY_PREFIX = 12
# Ids of items and calls are not unique. At most this many rows with the same id are considered.
_MAX_DUPLICATES = 20
_KEY = re.compile(r"(sk-[A-Za-z0-9]+)(?:-[A-Za-z0-9]+|…([A-Za-z0-9]{4}))?")
_SECTIONS = (Section.OUTPUT.value, Section.INPUT.value, Section.ITEMS.value)

Finder = Callable[[HttpRequest, str], str | None]


class IdKind(NamedTuple):
    """Kind of id: its prefixes, the name of the object with its article, and the finder of its page."""

    prefixes: tuple[str, ...]
    name: str
    find: Finder


def id_kind_of(public_id: str) -> IdKind | None:
    """Return the kind of an id by its prefix, or None for an unknown prefix."""
    return next((kind for kind in ID_KINDS if public_id.startswith(kind.prefixes)), None)


def page_of(request: HttpRequest, public_id: str) -> str | None:
    """Return the URL of the page that shows the id, or None if the user can see no such object."""
    if not public_id or len(public_id) > _MAX_ID or "\0" in public_id:
        return None
    kind = id_kind_of(public_id)
    url = kind.find(request, public_id) if kind is not None else None
    # Clients choose the ids of items, and upstreams choose the ids of calls, so any text may be an id.
    return url or _item(request, public_id) or _call(request, public_id)


def rows_of(request: HttpRequest, model: type[Row]) -> QuerySet[Any]:
    """Return the rows that the admin shows to the user; an empty query set without permission."""
    if not admin.site.is_registered(model) or not admin.site.get_model_admin(model).has_view_permission(request):
        return model._default_manager.none()
    return admin.site.get_model_admin(model).get_queryset(request).prefetch_related(None).order_by()


def url_of(model: type[Row], row_pk: Any) -> str:
    """Return the URL of the admin page of a row."""
    meta = model._meta  # noqa: SLF001 - Django's documented API for models
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row_pk])


def url_of_place(placement: Placement, item_id: str) -> str:
    """Return the URL of an item on the page of its response or conversation."""
    # A conversation may be too long for one page: `item` makes it open at the item.
    if placement.section == Section.ITEMS:
        named = quote(item_id, safe="")
        return f"{url_of(Conversation, placement.owner)}?item={named}#{named}"
    return f"{url_of(Response, placement.owner)}#{quote(item_id, safe='')}"


# -- redirects ---------------------------------------------------------------------------------------------------------


@page("go/", name="go_form", viewers=EVERY_ROLE)
def form(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the form, or redirect to the page of the id that was submitted."""
    public_id = request.GET.get("id", "").strip()
    if public_id:
        return HttpResponseRedirect(reverse("console:go", args=[public_id]))
    return render(request, "console/go.html", title="Open by ID", is_fullwidth=False, public_id="")


@page("go/<path:public_id>", name="go", viewers=EVERY_ROLE)
def go(request: HttpRequest, viewer: Viewer, public_id: str) -> HttpResponse:
    """Redirect to the page of an id, or render a 404 page that names the kind of the id."""
    # Django appends a slash to the URL, and pasted ids often have spaces around them.
    public_id = public_id.strip().rstrip("/")
    url = page_of(request, public_id)
    if url is not None:
        return HttpResponseRedirect(url)
    kind = id_kind_of(public_id)
    # The user may have pasted a complete API key. The page shows only the prefix, which is not secret.
    is_key = public_id.startswith("sk-") and len(public_id) > _VISIBLE_KEY_PREFIX
    shown = f"{public_id[:_VISIBLE_KEY_PREFIX]}…" if is_key else public_id[:_MAX_ID]
    looks_like = kind.name if kind else ""
    page_404 = render(
        request, "console/go.html", title="Not found", is_fullwidth=False, public_id=shown, looks_like=looks_like
    )
    page_404.status_code = 404
    return page_404


# -- finders -----------------------------------------------------------------------------------------------------------


def _first(request: HttpRequest, model: type[Row], *conditions: Q, **lookups: Any) -> str | None:
    """Return the URL of the page of the first row that matches and that the user may see, or None."""
    for row_pk in rows_of(request, model).filter(*conditions, **lookups).values_list("pk", flat=True)[:1]:
        return url_of(model, row_pk)
    return None


def _by_pk(model: type[Row]) -> Finder:
    return lambda request, public_id: _first(request, model, pk=public_id)


def _by_owner(model: type[Row], column: str, owner: type[Row]) -> Finder:
    """Return a finder for objects without a page of their own. It returns the URL of their owner's page."""

    def find(request: HttpRequest, public_id: str) -> str | None:
        rows = model._default_manager.filter(pk=public_id)
        for owner_pk in rows.values_list(column, flat=True)[:1]:
            return _first(request, owner, pk=owner_pk)
        return None

    return find


def _teams(request: HttpRequest) -> list[str]:
    return list(viewer_of(request).teams().order_by().values_list("pk", flat=True))


def _item(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of the response or conversation that contains an item."""
    teams = _teams(request)
    items = Item.objects.filter(team_id__in=teams, id=public_id).order_by()[:_MAX_DUPLICATES]
    latest = sorted(items, key=lambda item: item.created_at, reverse=True)
    placements = Placement.objects.filter(item__in=latest, team_id__in=teams).order_by("-id")[:_MAX_DUPLICATES]
    for placement in sorted(placements, key=lambda placement: _SECTIONS.index(placement.section)):
        if _first(request, Conversation if placement.section == Section.ITEMS else Response, pk=placement.owner):
            return url_of_place(placement, public_id)
    return None


def _call(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of the latest response that contains a tool call with this id."""
    calls = ToolCall.objects.filter(team_id__in=_teams(request), call_id=public_id).order_by()
    known = calls.values_list("started_at", "response_id")[:_MAX_DUPLICATES]
    for _, response_id in sorted(known, reverse=True):
        if url := _first(request, Response, pk=response_id):
            return f"{url}#{quote(public_id, safe='')}"
    return None


def _request(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of the first object that a request created."""
    # Request ids have no index, but the time stamp they contain limits the search to a range of the time index.
    if (near := created_near(public_id)) is None:
        return None
    made = {"team_id__in": _teams(request), "request_id": public_id}
    for model in (Response, ChatCompletion, Batch):
        if url := _first(request, model, **made, created_at__range=near):
            return url
    billed = _first(request, UsageRecord, **made, occurred_at__range=near)
    return billed or _first(request, AuditEvent, **made, occurred_at__range=near)


def _event(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of a delivery of an event, found in the time range of the event id."""
    if (near := created_near(public_id)) is None:
        return None
    teams = _teams(request)
    return _first(request, WebhookDelivery, team_id__in=teams, created_at__range=near, event_id=public_id)


def _approval(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of an approval for which a response waits or has waited."""
    # The other approvals have no page, and their request is found as an item.
    rows = Decision.objects.filter(HAS_WAITED, pk=public_id, team_id__in=_teams(request))
    return reverse("console:approval", args=[public_id]) if rows.exists() else None


def _key(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of an API key, found by the visible part or the complete key."""
    match = _KEY.fullmatch(public_id.replace("...", "…"))
    if match is None:
        return None
    return _first(request, ApiKey, Q(prefix=match[1]), Q(last_four=match[2]) if match[2] else Q())


def _completion(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of a chat completion if it was stored, otherwise of its usage record."""
    if url := _first(request, ChatCompletion, pk=public_id):
        return url
    if (near := created_near(public_id.replace("-", "_", 1))) is None:
        return None
    return _first(request, UsageRecord, occurred_at__range=near, team_id__in=_teams(request), object_id=public_id)


# The first match counts, so a prefix comes before any shorter prefix that it starts with.
ID_KINDS = (
    IdKind(("resp_",), "a response", _by_pk(Response)),
    IdKind(("conv_",), "a conversation", _by_pk(Conversation)),
    IdKind(("req_",), "a request", _request),
    IdKind(("call_",), "a tool call", _call),
    IdKind(("mcpr_",), "an approval", _approval),
    IdKind(("evt_",), "a webhook event", _event),
    IdKind(("we_",), "a webhook endpoint", _by_pk(WebhookEndpoint)),
    IdKind(("key_",), "an API key", _by_pk(ApiKey)),
    IdKind(("sk-",), "an API key", _key),
    IdKind(("team_",), "a team", _by_pk(Team)),
    IdKind(("file-",), "a file", _by_pk(File)),
    IdKind(("upload_",), "an upload", _by_owner(Upload, "file_id", File)),
    IdKind(("batch_req_",), "a batch request", _by_owner(BatchLine, "batch_id", Batch)),
    IdKind(("batch_",), "a batch", _by_pk(Batch)),
    IdKind(("vsfb_",), "a file batch", _by_owner(VectorStoreBatch, "store_id", VectorStore)),
    IdKind(("vs_",), "a vector store", _by_pk(VectorStore)),
    IdKind(("cntr_",), "a container", _by_pk(Container)),
    IdKind(("cfile_",), "a container file", _by_owner(ContainerFile, "container_id", Container)),
    IdKind(("skill_",), "a skill", _by_pk(Skill)),
    IdKind(("skillver_",), "a skill version", _by_owner(SkillVersion, "skill_id", Skill)),
    IdKind(("pmpt_",), "a prompt", _by_pk(PromptTemplate)),
    IdKind(("chatcmpl",), "a chat completion", _completion),
    IdKind(("upst_",), "an upstream", _by_pk(Upstream)),
    IdKind(("cnct_",), "a connector", _by_pk(Connector)),
    IdKind(("sengine_",), "a search engine", _by_pk(SearchEngine)),
    IdKind(("msg_", "fc_", "rs_", "fco_", "ws_", "ci_", "mcp_", "fs_"), "an item", _item),
)


MAX_RESULTS = 5
# Minimum length of a search term, because one letter matches nearly every name.
_MIN_TERM = 2
_MAX_TERM = 200
_FRAGMENT = "unfold/helpers/command_results.html"

# Searched models: model, searched columns, description, icon.
_SEARCHED_MODELS: tuple[tuple[type[Row], tuple[str, ...], str, str], ...] = (
    (Team, ("name",), "Team", "groups"),
    (ApiKey, ("name", "prefix", "last_four"), "API key", "key"),
    (Model, ("name", "upstream_model"), "Model", "neurology"),
    (Upstream, ("name",), "Upstream", "dns"),
    (PromptTemplate, ("name",), "Prompt", "edit_note"),
    (WebhookEndpoint, ("name",), "Webhook", "webhook"),
    (VectorStore, ("name",), "Vector store", "database"),
    (User, ("username", "email"), "User", "person"),
)


@page("search/", name="palette", viewers=EVERY_ROLE)
def palette(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Render the results for the typed term."""
    began = time.monotonic()
    term = request.GET.get("s", "").strip()[:_MAX_TERM].replace("\0", "")
    if not term:
        return HttpResponse()
    results = Paginator([*_results(request, term)], per_page=100)
    # The names that Unfold's fragment reads; it expects a page of a paginator.
    context = {
        "page_obj": results,
        "results": results.page(1),
        "page_counter": 0,
        "execution_time": time.monotonic() - began,
        "command_show_history": False,
    }
    return TemplateResponse(request, _FRAGMENT, context, headers={"HX-Trigger": "search"})


def _results(request: HttpRequest, term: str) -> Iterator[SearchResult]:
    kind = id_kind_of(term)
    if (kind or len(term) >= 4) and " " not in term and (link := page_of(request, term)):
        name = kind.name.partition(" ")[2] if kind else "item"
        yield SearchResult(term if not term.startswith("sk-") else term[:12], f"Open {name}", link, "arrow_outward")
    # The pages that match the term and that the user may open.
    folded = term.casefold()
    for group, tab, url in navigation.pages(request):
        area = group or "Console"
        if folded in tab.title.casefold() or folded == area.casefold():
            yield SearchResult(tab.title, area, url, tab.icon)
    for model, columns, label, icon in _SEARCHED_MODELS if len(term) >= _MIN_TERM else ():
        conditions = reduce(or_, (Q(**{f"{column}__icontains": term}) for column in columns))
        rows = rows_of(request, model).filter(conditions).order_by(columns[0], "pk")
        for row_pk, name, hint in rows.values_list("pk", columns[0], columns[-1])[:MAX_RESULTS]:
            # The last column of a key is its last four characters, which say little without the prefix.
            description = f"{label}, {hint}" if hint and hint != name and model is not ApiKey else label
            yield SearchResult(name, description, url_of(model, row_pk), icon)
    if may_open(viewer_of(request), "search"):
        link = f"{reverse('console:search')}?{urlencode({'q': term})}"
        yield SearchResult(f"“{term}”", "Search message content", link, "manage_search")

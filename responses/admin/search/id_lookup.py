"""Lookup of admin pages by id: the table of id prefixes and a finder for each of them.

A finder uses the query set of the admin page, so it finds exactly the objects that the page shows to the user. Every
lookup uses an index; where the index begins with the team, staff search all teams with one `IN` condition.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse

from console.widgets import created_at_of
from conversations.models import Conversation, File, Item, Placement, Section, Upload
from responses.containers.models import Container, ContainerFile
from responses.models import ChatCompletion, PromptTemplate, Response, ToolCall
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreBatch
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from tenants.console.roles import teams_for
from tenants.models import ApiKey, AuditEvent, Connector, SearchEngine, Team, Upstream, UsageRecord

MAX_ID = 255
# Ids of items and calls are not unique. At most this many rows with the same id are considered.
_MAX_DUPLICATES = 20
# The request id is created when the headers arrive, the objects after the body was read; uploads may be slow.
_BEFORE, _UPLOAD = timedelta(minutes=1), timedelta(hours=1)
_KEY = re.compile(r"(sk-[A-Za-z0-9]+)(?:-[A-Za-z0-9]+|…([A-Za-z0-9]{4}))?")
_SECTIONS = (Section.OUTPUT.value, Section.INPUT.value, Section.ITEMS.value)

Finder = Callable[[HttpRequest, str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdKind:
    """Kind of id: its prefixes, the name of the object with its article, and the finder of its page."""

    prefixes: tuple[str, ...]
    name: str
    find: Finder


def id_kind_of(public_id: str) -> IdKind | None:
    """Return the kind of an id by its prefix, or None for an unknown prefix."""
    return next((kind for kind in ID_KINDS if public_id.startswith(kind.prefixes)), None)


def page_of(request: HttpRequest, public_id: str) -> str | None:
    """Return the URL of the page that shows the id, or None if the user can see no such object."""
    if not public_id or len(public_id) > MAX_ID or "\0" in public_id:
        return None
    kind = id_kind_of(public_id)
    url = kind.find(request, public_id) if kind is not None else None
    # Clients choose ids of items freely and upstreams those of calls, so any text may be one.
    return url or _item(request, public_id) or _call(request, public_id)


def rows_of(request: HttpRequest, model: type[Model]) -> QuerySet[Any]:
    """Return the rows that the admin shows to the user; an empty query set without permission."""
    if not admin.site.is_registered(model):
        return model._default_manager.none()
    page = admin.site.get_model_admin(model)
    if not page.has_view_permission(request):
        return model._default_manager.none()
    return page.get_queryset(request).prefetch_related(None).order_by()


def url_of(model: type[Model], row_pk: Any) -> str:
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


# -- finders -----------------------------------------------------------------------------------------------------------


def _by_pk(model: type[Model]) -> Finder:
    return lambda request, public_id: _first_url(model, rows_of(request, model).filter(pk=public_id))


def _first_url(model: type[Model], rows: QuerySet[Any]) -> str | None:
    for row_pk in rows.values_list("pk", flat=True)[:1]:
        return url_of(model, row_pk)
    return None


def _teams(request: HttpRequest) -> list[str]:
    return list(teams_for(request).order_by().values_list("pk", flat=True))


def _item(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of the response or conversation that contains an item."""
    teams = _teams(request)
    items = Item.objects.filter(team_id__in=teams, id=public_id).order_by()[:_MAX_DUPLICATES]
    latest = sorted(items, key=lambda item: item.created_at, reverse=True)
    placements = Placement.objects.filter(item__in=latest, team_id__in=teams).order_by("-id")[:_MAX_DUPLICATES]
    for placement in sorted(placements, key=lambda placement: _SECTIONS.index(placement.section)):
        owner = Conversation if placement.section == Section.ITEMS else Response
        if _by_pk(owner)(request, placement.owner):
            return url_of_place(placement, public_id)
    return None


def _call(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of the response that made a tool call, the latest of several."""
    calls = ToolCall.objects.filter(team_id__in=_teams(request), call_id=public_id).order_by()
    known = calls.values_list("started_at", "response_id")[:_MAX_DUPLICATES]
    for _, response_id in sorted(known, reverse=True):
        if page := _by_pk(Response)(request, response_id):
            return f"{page}#{quote(public_id, safe='')}"
    return None


def _request(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of the first object that a request created."""
    # Request ids have no index, but the time stamp they contain limits the search to a range of the time index.
    moment = created_at_of(public_id)
    if moment is None:
        return None
    time_range = (moment - _BEFORE, moment + _UPLOAD)
    conditions = {"team_id__in": _teams(request), "request_id": public_id}
    for model, column in _MADE_BY_REQUESTS:
        rows = rows_of(request, model).filter(**conditions, **{f"{column}__range": time_range})
        if page := _first_url(model, rows):
            return page
    return None


_MADE_BY_REQUESTS: tuple[tuple[type[Model], str], ...] = (
    (Response, "created_at"),
    (ChatCompletion, "created_at"),
    (Batch, "created_at"),
    (UsageRecord, "occurred_at"),
    (AuditEvent, "occurred_at"),
)


def _event(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of a delivery of an event, found in the time range of the event id."""
    moment = created_at_of(public_id)
    if moment is None:
        return None
    time_range = (moment - _BEFORE, moment + _UPLOAD)
    conditions = {"team_id__in": _teams(request), "created_at__range": time_range, "event_id": public_id}
    return _first_url(WebhookDelivery, rows_of(request, WebhookDelivery).filter(**conditions))


def _key(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of an API key, found by the visible part or the complete key."""
    match = _KEY.fullmatch(public_id.replace("...", "…"))
    if match is None:
        return None
    conditions = Q(prefix=match[1])
    if match[2]:
        conditions &= Q(last_four=match[2])
    return _first_url(ApiKey, rows_of(request, ApiKey).filter(conditions))


def _by_owner(model: type[Model], column: str, owner: type[Model]) -> Finder:
    """Return a finder for objects without an own page: it finds the page of their owner."""

    def find(request: HttpRequest, public_id: str) -> str | None:
        rows = model._default_manager.filter(pk=public_id)
        for owner_pk in rows.values_list(column, flat=True)[:1]:
            return _by_pk(owner)(request, owner_pk)
        return None

    return find


def _id_kinds() -> Iterator[IdKind]:
    # The first match counts: a longer prefix comes before a shorter one that it begins with.
    yield IdKind(prefixes=("resp_",), name="a response", find=_by_pk(Response))
    yield IdKind(prefixes=("conv_",), name="a conversation", find=_by_pk(Conversation))
    yield IdKind(prefixes=("req_",), name="a request", find=_request)
    yield IdKind(prefixes=("call_",), name="a tool call", find=_call)
    yield IdKind(prefixes=("evt_",), name="a webhook event", find=_event)
    yield IdKind(prefixes=("we_",), name="a webhook endpoint", find=_by_pk(WebhookEndpoint))
    yield IdKind(prefixes=("key_",), name="an API key", find=_by_pk(ApiKey))
    yield IdKind(prefixes=("sk-",), name="an API key", find=_key)
    yield IdKind(prefixes=("team_",), name="a team", find=_by_pk(Team))
    yield IdKind(prefixes=("file-",), name="a file", find=_by_pk(File))
    yield IdKind(prefixes=("upload_",), name="an upload", find=_by_owner(Upload, "file_id", File))
    yield IdKind(prefixes=("batch_req_",), name="a batch request", find=_by_owner(BatchLine, "batch_id", Batch))
    yield IdKind(prefixes=("batch_",), name="a batch", find=_by_pk(Batch))
    yield IdKind(prefixes=("vsfb_",), name="a file batch", find=_by_owner(VectorStoreBatch, "store_id", VectorStore))
    yield IdKind(prefixes=("vs_",), name="a vector store", find=_by_pk(VectorStore))
    yield IdKind(prefixes=("cntr_",), name="a container", find=_by_pk(Container))
    yield IdKind(
        prefixes=("cfile_",), name="a container file", find=_by_owner(ContainerFile, "container_id", Container)
    )
    yield IdKind(prefixes=("pmpt_",), name="a prompt", find=_by_pk(PromptTemplate))
    yield IdKind(prefixes=("chatcmpl",), name="a chat completion", find=_completion)
    yield IdKind(prefixes=("upst_",), name="an upstream", find=_by_pk(Upstream))
    yield IdKind(prefixes=("cnct_",), name="a connector", find=_by_pk(Connector))
    yield IdKind(prefixes=("sengine_",), name="a search engine", find=_by_pk(SearchEngine))
    yield IdKind(prefixes=("msg_", "fc_", "rs_", "fco_", "ws_", "ci_", "mcp_", "fs_"), name="an item", find=_item)


def _completion(request: HttpRequest, public_id: str) -> str | None:
    """Return the page of a chat completion if it was stored, otherwise of its usage record."""
    if page := _by_pk(ChatCompletion)(request, public_id):
        return page
    moment = created_at_of(public_id.replace("-", "_", 1))
    if moment is None:
        return None
    conditions = {"team_id__in": _teams(request), "object_id": public_id}
    time_range = (moment - _BEFORE, moment + _UPLOAD)
    return _first_url(UsageRecord, rows_of(request, UsageRecord).filter(occurred_at__range=time_range, **conditions))


ID_KINDS = (*_id_kinds(),)

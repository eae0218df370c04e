"""Which page shows an id: the one table of the kinds of ids, and a finder for each of them.

A finder asks the page's own query set, so that it finds what that page would show to this user and nothing else, and it
asks by an index: for staff, those that begin with the team are asked for every team at once.
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

from console.widgets import made_at
from conversations.models import Conversation, File, Item, Placement, Section, Upload
from responses.containers.models import Container, ContainerFile
from responses.models import ChatCompletion, PromptTemplate, Response, ToolCall
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreBatch
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from tenants.console.roles import teams_for
from tenants.models import ApiKey, AuditEvent, Connector, SearchEngine, Team, Upstream, UsageRecord

MAX_ID = 255
_SAME_ID = 20
# A request's id is made when its head arrives, what it makes when its body was read.
_BEFORE, _UPLOAD = timedelta(minutes=1), timedelta(hours=1)
_KEY = re.compile(r"(sk-[A-Za-z0-9]+)(?:-[A-Za-z0-9]+|…([A-Za-z0-9]{4}))?")
_SECTIONS = (Section.OUTPUT.value, Section.INPUT.value, Section.ITEMS.value)

Finder = Callable[[HttpRequest, str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of ids: how they begin, what such a thing is called, and where one is shown."""

    prefixes: tuple[str, ...]
    name: str
    find: Finder


def kind_of(wanted: str) -> Kind | None:
    """The kind of an id, by how it begins; None for one that nothing of ours has."""
    return next((kind for kind in KINDS if wanted.startswith(kind.prefixes)), None)


def page_of(request: HttpRequest, wanted: str) -> str | None:
    """The address of the page that shows this id to the user; None where there is nothing to be seen."""
    if not wanted or len(wanted) > MAX_ID or "\0" in wanted:
        return None
    kind = kind_of(wanted)
    found = kind.find(request, wanted) if kind is not None else None
    # Clients may give any id to an item, and upstreams to a call.
    return found or _item(request, wanted) or _call(request, wanted)


def rows_of(request: HttpRequest, model: type[Model]) -> QuerySet[Any]:
    """The rows that the admin's page of a model has for this user; none where there is no such page for them."""
    if not admin.site.is_registered(model):
        return model._default_manager.none()
    page = admin.site.get_model_admin(model)
    if not page.has_view_permission(request):
        return model._default_manager.none()
    return page.get_queryset(request).prefetch_related(None).order_by()


def url_of(model: type[Model], row_pk: Any) -> str:
    """The address of the page of a row."""
    meta = model._meta  # noqa: SLF001 - Django's documented API for models
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row_pk])


def url_of_place(place: Placement, item_id: str) -> str:
    """The address of an item at one of its places. A conversation opens around it, as it may be long."""
    if place.section == Section.ITEMS:
        named = quote(item_id, safe="")
        return f"{url_of(Conversation, place.owner)}?item={named}#{named}"
    return f"{url_of(Response, place.owner)}#{quote(item_id, safe='')}"


# -- finders -----------------------------------------------------------------------------------------------------------


def _row(model: type[Model]) -> Finder:
    """Found by its primary key."""
    return lambda request, wanted: _first(model, rows_of(request, model).filter(pk=wanted))


def _first(model: type[Model], rows: QuerySet[Any]) -> str | None:
    """The page of one of these rows."""
    for row_pk in rows.values_list("pk", flat=True)[:1]:
        return url_of(model, row_pk)
    return None


def _teams(request: HttpRequest) -> list[str]:
    return list(teams_for(request).order_by().values_list("pk", flat=True))


def _item(request: HttpRequest, wanted: str) -> str | None:
    """The page of a response or conversation in which an item stands, at its place."""
    teams = _teams(request)
    items = Item.objects.filter(team_id__in=teams, id=wanted).order_by()[:_SAME_ID]
    latest = sorted(items, key=lambda item: item.created_at, reverse=True)
    places = Placement.objects.filter(item__in=latest, team_id__in=teams).order_by("-id")[:_SAME_ID]
    for place in sorted(places, key=lambda place: _SECTIONS.index(place.section)):
        owner = Conversation if place.section == Section.ITEMS else Response
        if _row(owner)(request, place.owner):
            return url_of_place(place, wanted)
    return None


def _call(request: HttpRequest, wanted: str) -> str | None:
    """The response that made a tool call of this id; of several, one of the latest."""
    calls = ToolCall.objects.filter(team_id__in=_teams(request), call_id=wanted).order_by()
    known = calls.values_list("started_at", "response_id")[:_SAME_ID]
    for _, response_id in sorted(known, reverse=True):
        if page := _row(Response)(request, response_id):
            return f"{page}#{quote(wanted, safe='')}"
    return None


def _request(request: HttpRequest, wanted: str) -> str | None:
    """What a request has made. Request ids have no index, but tell their time, which has one."""
    moment = made_at(wanted)
    if moment is None:
        return None
    around = (moment - _BEFORE, moment + _UPLOAD)
    narrow = {"team_id__in": _teams(request), "request_id": wanted}
    for model, column in _MADE_BY_REQUESTS:
        rows = rows_of(request, model).filter(**narrow, **{f"{column}__range": around})
        if page := _first(model, rows):
            return page
    return None


_MADE_BY_REQUESTS: tuple[tuple[type[Model], str], ...] = (
    (Response, "created_at"),
    (ChatCompletion, "created_at"),
    (Batch, "created_at"),
    (UsageRecord, "occurred_at"),
    (AuditEvent, "occurred_at"),
)


def _event(request: HttpRequest, wanted: str) -> str | None:
    """A delivery of an event to an endpoint; the event's id tells about when it was made."""
    moment = made_at(wanted)
    if moment is None:
        return None
    around = (moment - _BEFORE, moment + _UPLOAD)
    narrow = {"team_id__in": _teams(request), "created_at__range": around, "event_id": wanted}
    return _first(WebhookDelivery, rows_of(request, WebhookDelivery).filter(**narrow))


def _key(request: HttpRequest, wanted: str) -> str | None:
    """A key by what is shown of it, or by the whole secret."""
    read = _KEY.fullmatch(wanted.replace("...", "…"))
    if read is None:
        return None
    narrow = Q(prefix=read[1])
    if read[2]:
        narrow &= Q(last_four=read[2])
    return _first(ApiKey, rows_of(request, ApiKey).filter(narrow))


def _owned(model: type[Model], column: str, owner: type[Model]) -> Finder:
    """What has no page of its own: that of its owner."""

    def find(request: HttpRequest, wanted: str) -> str | None:
        rows = model._default_manager.filter(pk=wanted)
        for owner_pk in rows.values_list(column, flat=True)[:1]:
            return _row(owner)(request, owner_pk)
        return None

    return find


def _kinds() -> Iterator[Kind]:
    """In the order in which they are tried: of two beginnings, the longer one first."""
    yield Kind(prefixes=("resp_",), name="a response", find=_row(Response))
    yield Kind(prefixes=("conv_",), name="a conversation", find=_row(Conversation))
    yield Kind(prefixes=("req_",), name="a request", find=_request)
    yield Kind(prefixes=("call_",), name="a tool call", find=_call)
    yield Kind(prefixes=("evt_",), name="an event for webhooks", find=_event)
    yield Kind(prefixes=("we_",), name="a webhook endpoint", find=_row(WebhookEndpoint))
    yield Kind(prefixes=("key_",), name="an API key", find=_row(ApiKey))
    yield Kind(prefixes=("sk-",), name="an API key", find=_key)
    yield Kind(prefixes=("team_",), name="a team", find=_row(Team))
    yield Kind(prefixes=("file-",), name="a file", find=_row(File))
    yield Kind(prefixes=("upload_",), name="an upload", find=_owned(Upload, "file_id", File))
    yield Kind(prefixes=("batch_req_",), name="a line of a batch", find=_owned(BatchLine, "batch_id", Batch))
    yield Kind(prefixes=("batch_",), name="a batch", find=_row(Batch))
    yield Kind(prefixes=("vsfb_",), name="a batch of files", find=_owned(VectorStoreBatch, "store_id", VectorStore))
    yield Kind(prefixes=("vs_",), name="a vector store", find=_row(VectorStore))
    yield Kind(prefixes=("cntr_",), name="a container", find=_row(Container))
    yield Kind(
        prefixes=("cfile_",), name="a file in a container", find=_owned(ContainerFile, "container_id", Container)
    )
    yield Kind(prefixes=("pmpt_",), name="a prompt", find=_row(PromptTemplate))
    yield Kind(prefixes=("chatcmpl",), name="a chat completion", find=_completion)
    yield Kind(prefixes=("upst_",), name="an upstream", find=_row(Upstream))
    yield Kind(prefixes=("cnct_",), name="a connector", find=_row(Connector))
    yield Kind(prefixes=("sengine_",), name="a search engine", find=_row(SearchEngine))
    yield Kind(prefixes=("msg_", "fc_", "rs_", "fco_", "ws_", "ci_", "mcp_", "fs_"), name="an item", find=_item)


def _completion(request: HttpRequest, wanted: str) -> str | None:
    """Its page if it was stored, else its row in the ledger; an id tells about when it was made."""
    if page := _row(ChatCompletion)(request, wanted):
        return page
    moment = made_at(wanted.replace("-", "_", 1))
    if moment is None:
        return None
    narrow = {"team_id__in": _teams(request), "object_id": wanted}
    around = (moment - _BEFORE, moment + _UPLOAD)
    return _first(UsageRecord, rows_of(request, UsageRecord).filter(occurred_at__range=around, **narrow))


KINDS = (*_kinds(),)

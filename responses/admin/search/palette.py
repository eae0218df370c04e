"""The command palette (Ctrl-K): an id leads to its page, a word to pages, teams, keys, models and people.

It answers in the place of Unfold's own search at the same address, with the same fragment: that one keeps for five
minutes what somebody might see, in lower case.
"""

import time
from collections.abc import Iterator

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import Model as Row
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from unfold.dataclasses import SearchResult

from responses.admin.search.id_lookup import kind_of, page_of, rows_of, url_of
from responses.models import PromptTemplate
from responses.models.vector_stores import VectorStore
from responses.webhooks.models import WebhookEndpoint
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import may_open, page
from tenants.models import ApiKey, Model, Team, Upstream

MOST = 5
_SHORTEST = 2
_LONGEST = 200
_FRAGMENT = "unfold/helpers/command_results.html"

# What is found by a word: the model, the columns that are looked through, what it is called, its icon.
_BY_NAME: tuple[tuple[type[Row], tuple[str, ...], str, str], ...] = (
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
def palette(request: HttpRequest) -> HttpResponse:
    """What the palette shows for what was typed."""
    began = time.monotonic()
    term = request.GET.get("s", "").strip()[:_LONGEST].replace("\0", "")
    if not term:
        return HttpResponse()
    found = Paginator([*_found(request, term)], per_page=100)
    context = {
        "page_obj": found,
        "results": found.page(1),
        "page_counter": 0,
        "execution_time": time.monotonic() - began,
        "command_show_history": False,
    }
    return TemplateResponse(request, _FRAGMENT, context, headers={"HX-Trigger": "search"})


def _found(request: HttpRequest, term: str) -> Iterator[SearchResult]:
    yield from _by_id(request, term)
    yield from _pages(request, term)
    if len(term) >= _SHORTEST:
        yield from _named(request, term)
    if may_open(request, "search"):
        link = f"{reverse('console:search')}?{urlencode({'q': term})}"
        yield _result(f"“{term}”", "Search in what was said", link, "manage_search")


def _by_id(request: HttpRequest, term: str) -> Iterator[SearchResult]:
    kind = kind_of(term)
    if (kind or len(term) >= 4) and " " not in term and (link := page_of(request, term)):
        name = kind.name.partition(" ")[2] if kind else "item"
        yield _result(term if not term.startswith("sk-") else term[:12], f"Open this {name}", link, "arrow_outward")


def _pages(request: HttpRequest, term: str) -> Iterator[SearchResult]:
    """Pages of the console, as the sidebar has them for this user."""
    wanted = term.casefold()
    for group in admin.site.get_sidebar_list(request):  # type: ignore[attr-defined]  # Unfold's site has it
        area = str(group.get("title") or "Console")
        for entry in group["items"]:
            title = str(entry["title"])
            if entry.get("has_permission", True) and (wanted in title.casefold() or wanted == area.casefold()):
                yield _result(title, area, str(entry["link"]), entry.get("icon") or "web")


def _named(request: HttpRequest, term: str) -> Iterator[SearchResult]:
    for model, columns, what, icon in _BY_NAME:
        if not _has_page(request, model):
            continue
        narrow = Q()
        for column in columns:
            narrow |= Q(**{f"{column}__icontains": term})
        rows = rows_of(request, model).filter(narrow).order_by(columns[0], "pk")
        for row_pk, name, hint in rows.values_list("pk", columns[0], columns[-1])[:MOST]:
            aside = f"{what}, {hint}" if hint and hint != name and model is not ApiKey else what
            yield _result(name, aside, url_of(model, row_pk), icon)


def _has_page(request: HttpRequest, model: type[Row]) -> bool:
    return admin.site.is_registered(model) and admin.site.get_model_admin(model).has_view_permission(request)


def _result(title: str, description: str, link: str, icon: str) -> SearchResult:
    return SearchResult(title=title, description=description, link=link, icon=icon)

"""Command palette (Ctrl-K): opens ids, and finds pages, teams, keys, models and users by name.

It replaces Unfold's search at the same URL and renders the same fragment. Unfold's search caches results for five
minutes, so a user could still see objects after losing access, and it lower-cases the term, which breaks ids.
"""

import time
from collections.abc import Iterator
from functools import reduce
from operator import or_

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

from responses.admin.search.id_lookup import id_kind_of, page_of, rows_of, url_of
from responses.models import PromptTemplate
from responses.models.vector_stores import VectorStore
from responses.webhooks.models import WebhookEndpoint
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import may_open, page
from tenants.models import ApiKey, Model, Team, Upstream

MAX_RESULTS = 5
# One letter matches nearly every name.
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
def palette(request: HttpRequest) -> HttpResponse:
    """Render the results for the typed term."""
    began = time.monotonic()
    term = request.GET.get("s", "").strip()[:_MAX_TERM].replace("\0", "")
    if not term:
        return HttpResponse()
    results = Paginator([*_results(request, term)], per_page=100)
    # The names are those of Unfold's fragment, which expects a page of a paginator.
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
    # The pages of the sidebar that match the term and that the user may open.
    folded = term.casefold()
    for group in admin.site.get_sidebar_list(request):  # type: ignore[attr-defined]  # Unfold's site has it
        area = str(group.get("title") or "Console")
        for entry in group["items"]:
            title = str(entry["title"])
            if entry.get("has_permission", True) and (folded in title.casefold() or folded == area.casefold()):
                yield SearchResult(title, area, str(entry["link"]), entry.get("icon") or "web")
    for model, columns, label, icon in _SEARCHED_MODELS if len(term) >= _MIN_TERM else ():
        conditions = reduce(or_, (Q(**{f"{column}__icontains": term}) for column in columns))
        rows = rows_of(request, model).filter(conditions).order_by(columns[0], "pk")
        for row_pk, name, hint in rows.values_list("pk", columns[0], columns[-1])[:MAX_RESULTS]:
            # The last column of a key is its last four characters, which say little without the prefix.
            description = f"{label}, {hint}" if hint and hint != name and model is not ApiKey else label
            yield SearchResult(name, description, url_of(model, row_pk), icon)
    if may_open(request, "search"):
        link = f"{reverse('console:search')}?{urlencode({'q': term})}"
        yield SearchResult(f"“{term}”", "Search message content", link, "manage_search")

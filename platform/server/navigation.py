"""Navigation of the console: at most 16 entries in the sidebar, each with related pages as tabs.

An entry shows the tabs that the user may open. The first of them is the entry itself, so that a team lead without
access to models finds the guardrails in their place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from tenants.console.site import may_open
from tenants.console.viewer import viewer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A page of the console. `key` opens it after the key g; `badge` names a function that returns a count.

    `other_pages` is the path of pages that belong to it although their addresses do not begin with its own.
    """

    title: str
    icon: str
    url: Callable[[], str]
    may_see: Callable[[HttpRequest], bool]
    key: str = ""
    badge: str = ""
    other_pages: str = ""


Entry = tuple[Tab, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A part of the sidebar that can be collapsed, or entries that are always shown if it has no title."""

    title: str
    entries: tuple[Entry, ...]
    # On the home page, until the user closes it.
    is_open: bool = False


def _rows(title: str, icon: str, model: str, *, key: str = "", other_pages: str = "") -> Tab:
    """Return the list of a model."""

    def may_see(request: HttpRequest) -> bool:
        # Looked up on each call: Unfold replaces Django's admin site once the apps are loaded.
        return admin.site.get_model_admin(apps.get_model(model)).has_view_permission(request)

    name = f"admin:{model.lower().replace('.', '_')}_changelist"
    return Tab(title=title, icon=icon, url=lambda: reverse(name), may_see=may_see, key=key, other_pages=other_pages)


def _page(title: str, icon: str, name: str, *, key: str = "", badge: str = "") -> Tab:
    """Return a page registered in `tenants.console.site`."""
    return Tab(
        title=title,
        icon=icon,
        url=lambda: reverse(f"console:{name}"),
        may_see=lambda request: may_open(viewer_of(request), name),
        key=key,
        badge=badge,
    )


def _public(title: str, icon: str, url: Callable[[], str], *, key: str = "") -> Tab:
    """Return a page that every user may open."""
    return Tab(title=title, icon=icon, url=url, may_see=lambda _: True, key=key)


GROUPS = (
    Group("", ((_public("Home", "home", lambda: reverse("admin:index"), key="h"),),)),
    Group(
        "Activity",
        (
            (
                _rows("Responses", "swap_vert", "responses.Response", key="r", other_pages="/admin/compare/"),
                _page("Refused requests", "error", "refused"),
                _page("Rejected requests", "block", "rejections"),
                _page("Search", "manage_search", "search", key="s"),
                _rows("Batches", "stacks", "responses.Batch"),
                _rows("Chat completions", "chat", "responses.ChatCompletion"),
            ),
            (_rows("Conversations", "forum", "conversations.Conversation", key="c"),),
            (_rows("Tool calls", "construction", "responses.ToolCall", key="t"),),
            (_page("Running jobs", "play_circle", "live", key="l"),),
            (
                _page(
                    "Approvals",
                    "front_hand",
                    "approvals",
                    key="a",
                    badge="responses.admin.approvals.inbox.navigation_count",
                ),
            ),
            (
                _page("Usage", "bar_chart", "usage", key="u"),
                _page("Budgets", "savings", "budgets", key="b"),
                _rows("Usage records", "receipt_long", "tenants.UsageRecord"),
            ),
        ),
        is_open=True,
    ),
    Group(
        "Build",
        (
            (
                _page("Playground", "experiment", "playground", key="p"),
                _rows("Prompts", "edit_note", "responses.PromptTemplate"),
            ),
            (
                _rows("Files", "draft", "conversations.File", key="f"),
                _rows("Vector stores", "database", "responses.VectorStore"),
                _rows("Skills", "school", "skills.Skill"),
                _rows("Containers", "deployed_code", "containers.Container"),
            ),
        ),
    ),
    Group(
        "Access",
        (
            (
                _rows("API keys", "key", "tenants.ApiKey", key="k"),
                _rows("Admin keys", "admin_panel_settings", "tenants.AdminKey"),
            ),
            (
                _rows("Teams", "groups", "tenants.Team", key="e", other_pages="/admin/limits/"),
                _rows("Members", "badge", "tenants.Membership"),
                _rows("Invites", "outgoing_mail", "tenants.Invite"),
                _rows("Users", "person", "auth.User"),
            ),
            (
                _rows("Webhooks", "webhook", "responses.WebhookEndpoint", key="w"),
                _rows("Webhook deliveries", "outbox", "responses.WebhookDelivery"),
                _rows("Mail", "mail", "tenants.MailDelivery"),
            ),
        ),
    ),
    Group(
        "Platform",
        (
            (
                _rows("Models", "neurology", "tenants.Model", key="m"),
                _page("Model routes", "route", "model_routes"),
                _rows("Prices", "sell", "tenants.Price"),
                _rows("Guardrails", "shield", "tenants.Guardrail"),
                _rows("Guardrail decisions", "gavel", "tenants.GuardrailDecision"),
            ),
            (
                _rows("Upstreams", "dns", "tenants.Upstream", key="n", other_pages="/admin/upstreams/"),
                _rows("Connectors", "cable", "tenants.Connector"),
                _rows("Search engines", "travel_explore", "tenants.SearchEngine"),
            ),
            (
                _page("System", "monitor_heart", "system", key="y"),
                _rows("Audit log", "policy", "tenants.AuditEvent"),
            ),
            (_public("Documentation", "menu_book", lambda: "/docs/guide/", key="d"),),
        ),
    ),
)


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the groups and entries that the user may open, as Unfold's setting `SIDEBAR.navigation`."""
    home = reverse("admin:index")
    groups = [(group, [_item(request, tabs) for tabs in _visible(request, group)]) for group in GROUPS]
    return [
        {
            "title": group.title,
            "items": items,
            "is_current": any(item["active"] for item in items),
            "is_open": group.is_open and request.path == home,
        }
        for group, items in groups
    ]


def pages(request: HttpRequest) -> Iterator[tuple[str, Tab, str]]:
    """Yield all pages that the user may open, tabs as well, with the title of their group and their URL."""
    for group in GROUPS:
        for tabs in _visible(request, group):
            yield from ((group.title, tab, url) for tab, url in tabs)


def context(request: HttpRequest) -> dict[str, Any]:
    """Return the tabs of the open page for each template, as Unfold's setting `GLOBAL_CALLBACK`."""
    for group in GROUPS:
        for tabs in _visible(request, group):
            links = [(tab.title, url, url == request.path) for tab, url in tabs]
            if len(links) > 1 and any(is_open for _, _, is_open in links):
                return {"section_tabs": links}
    return {"section_tabs": []}


def _visible(request: HttpRequest, group: Group) -> Iterator[list[tuple[Tab, str]]]:
    for entry in group.entries:
        if tabs := [(tab, tab.url()) for tab in entry if tab.may_see(request)]:
            yield tabs


def _item(request: HttpRequest, tabs: list[tuple[Tab, str]]) -> dict[str, Any]:
    first, url = tabs[0]
    home = reverse("admin:index")
    is_open = any(
        request.path == link or (link != home and request.path.startswith((link, tab.other_pages or link)))
        for tab, link in tabs
    )
    badge = {"badge": first.badge} if first.badge else {}
    return {"title": first.title, "icon": first.icon, "link": url, "key": first.key, "active": is_open, **badge}

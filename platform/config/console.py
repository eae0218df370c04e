"""The frame of the admin: its name, colours, files and navigation, as Unfold's setting."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy

_FILES = Path(__file__).resolve().parent.parent.parent / "static" / "console"


def _static(name: str) -> Callable[[HttpRequest], str]:
    return lambda _: static(f"console/{name}")


def _files(kind: str) -> list[Callable[[HttpRequest], str]]:
    """All of our style sheets or scripts: the one that others lean on first, then by name."""
    names = sorted((path.name for path in _FILES.glob(f"*.{kind}")), key=lambda name: (name != f"console.{kind}", name))
    return [_static(name) for name in names]


def _rows(title: str, icon: str, model: str) -> dict[str, Any]:
    """An entry of the sidebar that leads to the list of a model, for those who may see it."""

    def may_see(request: HttpRequest) -> bool:
        # Unfold puts a site of its own in the place of Django's once the apps are loaded.
        return admin.site.get_model_admin(apps.get_model(model)).has_view_permission(request)

    name = model.lower().replace(".", "_")
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{name}_changelist"), "permission": may_see}


def _page(title: str, icon: str, name: str) -> dict[str, Any]:
    """An entry of the sidebar that leads to a page of our own (`tenants.console.site`)."""

    def may_see(request: HttpRequest) -> bool:
        from tenants.console.site import may_open

        return may_open(request, name)

    return {"title": title, "icon": icon, "link": reverse_lazy(f"console:{name}"), "permission": may_see}


_COLORS = {
    "primary": {
        "50": "oklch(96.2% .018 272.3)",
        "100": "oklch(93% .034 272.8)",
        "200": "oklch(87% .065 274)",
        "300": "oklch(78.5% .115 274.7)",
        "400": "oklch(67.3% .182 276.9)",
        "500": "oklch(58.5% .233 277.1)",
        "600": "oklch(51.1% .262 277)",
        "700": "oklch(45.7% .24 277)",
        "800": "oklch(39.8% .195 277.4)",
        "900": "oklch(35.9% .144 278.7)",
        "950": "oklch(25.7% .09 281.3)",
    },
}

_NAVIGATION = [
    {
        "items": [
            {"title": "Home", "icon": "home", "link": reverse_lazy("admin:index")},
            _rows("Responses", "swap_vert", "responses.Response"),
            _rows("Conversations", "forum", "conversations.Conversation"),
            _rows("Tool calls", "construction", "responses.ToolCall"),
            _page("Running jobs", "play_circle", "live"),
            _page("Usage", "bar_chart", "usage"),
            _page("Search", "manage_search", "search"),
            _page("Playground", "experiment", "playground"),
            _rows("Prompts", "edit_note", "responses.PromptTemplate"),
        ],
    },
    {
        "title": "Access",
        "separator": True,
        "items": [
            _rows("Teams", "groups", "tenants.Team"),
            _rows("API keys", "key", "tenants.ApiKey"),
            _rows("Members", "badge", "tenants.Membership"),
            _rows("Webhooks", "webhook", "responses.WebhookEndpoint"),
            _rows("Guardrails", "shield", "tenants.Guardrail"),
        ],
    },
    {
        "title": "Routing",
        "separator": True,
        "items": [
            _rows("Models", "neurology", "tenants.Model"),
            _rows("Upstreams", "dns", "tenants.Upstream"),
            _rows("Connectors", "cable", "tenants.Connector"),
            _rows("Search engines", "travel_explore", "tenants.SearchEngine"),
        ],
    },
    {
        "title": "Storage",
        "separator": True,
        "items": [
            _rows("Batches", "stacks", "responses.Batch"),
            _rows("Vector stores", "database", "responses.VectorStore"),
            _rows("Files", "draft", "conversations.File"),
            _rows("Containers", "deployed_code", "containers.Container"),
            _rows("Chat completions", "chat", "responses.ChatCompletion"),
        ],
    },
    {
        "title": "Records",
        "separator": True,
        "items": [
            _rows("Usage ledger", "receipt_long", "tenants.UsageRecord"),
            _rows("Webhook deliveries", "outbox", "responses.WebhookDelivery"),
            _rows("Guardrail decisions", "gavel", "tenants.GuardrailDecision"),
            _rows("Audit log", "policy", "tenants.AuditEvent"),
            _rows("Users", "person", "auth.User"),
            _page("System", "monitor_heart", "system"),
        ],
    },
]


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Responses Platform",
    "SITE_HEADER": "Responses Platform",
    "SITE_URL": None,
    "SITE_ICON": _static("mark.svg"),
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": _static("mark.svg")}],
    "STYLES": _files("css"),
    "SCRIPTS": _files("js"),
    "LOGIN": {"image": _static("login.svg")},
    "DASHBOARD_CALLBACK": "responses.admin.home.page.dashboard",
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_HISTORY": False,  # the audit log is the history
    "COLORS": _COLORS,
    "SIDEBAR": {"navigation": _NAVIGATION, "show_search": True, "command_search": True},
    "ACCOUNT": {
        "navigation": [
            {"title": "Passkeys and second factor", "link": reverse_lazy("mfa_index")},
            {"title": "Sessions", "link": reverse_lazy("usersessions_list")},
        ],
    },
}

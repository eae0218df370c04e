"""Frame of the admin (title, colours, static files, navigation) as the setting of django-unfold."""

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _static(name: str) -> Callable[[HttpRequest], str]:
    return lambda _: static(f"console/{name}")


def _model_list(title: str, icon: str, model: str) -> dict[str, Any]:
    """Return a sidebar entry for the list of a model, shown to users who have permission to view it."""

    def may_see(request: HttpRequest) -> bool:
        # Looked up on each call: Unfold replaces Django's admin site once the apps are loaded.
        return admin.site.get_model_admin(apps.get_model(model)).has_view_permission(request)

    name = model.lower().replace(".", "_")
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{name}_changelist"), "permission": may_see}


def _page(title: str, icon: str, name: str) -> dict[str, Any]:
    """Return a sidebar entry for a page registered in `tenants.console.site`."""

    def may_see(request: HttpRequest) -> bool:
        # Imported late: this module is part of the settings, which models cannot be imported from.
        from tenants.console.site import may_open
        from tenants.console.viewer import viewer_of

        return may_open(viewer_of(request), name)

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
            _model_list("Responses", "swap_vert", "responses.Response"),
            _model_list("Conversations", "forum", "conversations.Conversation"),
            _model_list("Tool calls", "construction", "responses.ToolCall"),
            _page("Running jobs", "play_circle", "live"),
            {
                **_page("Approvals", "front_hand", "approvals"),
                "badge": "responses.admin.approvals.inbox.navigation_count",
            },
            _page("Usage", "bar_chart", "usage"),
            _page("Budgets", "savings", "budgets"),
            _page("Rejected requests", "block", "rejections"),
            _page("Search", "manage_search", "search"),
            _page("Playground", "experiment", "playground"),
            _model_list("Prompts", "edit_note", "responses.PromptTemplate"),
        ],
    },
    {
        "title": "Access",
        "separator": True,
        "items": [
            _model_list("Teams", "groups", "tenants.Team"),
            _model_list("API keys", "key", "tenants.ApiKey"),
            _model_list("Members", "badge", "tenants.Membership"),
            _model_list("Webhooks", "webhook", "responses.WebhookEndpoint"),
            _model_list("Guardrails", "shield", "tenants.Guardrail"),
        ],
    },
    {
        "title": "Routing",
        "separator": True,
        "items": [
            _model_list("Models", "neurology", "tenants.Model"),
            _page("Model routes", "route", "model_routes"),
            _model_list("Prices", "sell", "tenants.Price"),
            _model_list("Upstreams", "dns", "tenants.Upstream"),
            _model_list("Connectors", "cable", "tenants.Connector"),
            _model_list("Search engines", "travel_explore", "tenants.SearchEngine"),
        ],
    },
    {
        "title": "Storage",
        "separator": True,
        "items": [
            _model_list("Batches", "stacks", "responses.Batch"),
            _model_list("Vector stores", "database", "responses.VectorStore"),
            _model_list("Files", "draft", "conversations.File"),
            _model_list("Skills", "school", "skills.Skill"),
            _model_list("Containers", "deployed_code", "containers.Container"),
            _model_list("Chat completions", "chat", "responses.ChatCompletion"),
        ],
    },
    {
        "title": "Records",
        "separator": True,
        "items": [
            _model_list("Usage records", "receipt_long", "tenants.UsageRecord"),
            _model_list("Webhook deliveries", "outbox", "responses.WebhookDelivery"),
            _model_list("Mail", "mail", "tenants.MailDelivery"),
            _model_list("Guardrail decisions", "gavel", "tenants.GuardrailDecision"),
            _model_list("Audit log", "policy", "tenants.AuditEvent"),
            _model_list("Users", "person", "auth.User"),
            _model_list("Invites", "mail", "tenants.Invite"),
            _model_list("Admin keys", "admin_panel_settings", "tenants.AdminKey"),
            _page("System", "monitor_heart", "system"),
        ],
    },
    {
        "title": "Help",
        "separator": True,
        "items": [
            {"title": "Documentation", "icon": "menu_book", "link": "/docs/guide/"},
            {"title": "API reference", "icon": "api", "link": reverse_lazy("docs")},
        ],
    },
]


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Responses Platform",
    "SITE_HEADER": "Responses Platform",
    "SITE_URL": None,
    "SITE_ICON": _static("mark.svg"),
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": _static("mark.svg")}],
    "LOGIN": {"image": _static("login.svg")},
    "DASHBOARD_CALLBACK": "server.admin.home.dashboard",
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_HISTORY": False,  # the audit log replaces Django's history
    "COLORS": _COLORS,
    "SIDEBAR": {"navigation": _NAVIGATION, "show_search": True, "command_search": True},
    "ACCOUNT": {
        "navigation": [
            {"title": "Notifications", "link": reverse_lazy("console:notifications")},
            {"title": "Passkeys and two-factor authentication", "link": reverse_lazy("mfa_index")},
            {"title": "Sessions", "link": reverse_lazy("usersessions_list")},
        ],
    },
}

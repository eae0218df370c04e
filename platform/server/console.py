"""Frame of the admin (title, colours, navigation) as the setting of django-unfold."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _static(name: str) -> Callable[[HttpRequest], str]:
    return lambda _: static(f"console/{name}")


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
    "SIDEBAR": {"navigation": "server.navigation.sidebar", "show_search": True, "command_search": True},
    "GLOBAL_CALLBACK": "server.navigation.context",
    "ACCOUNT": {
        "navigation": [
            {"title": "Notifications", "link": reverse_lazy("console:notifications")},
            {"title": "Passkeys and two-factor authentication", "link": reverse_lazy("mfa_index")},
            {"title": "Sessions", "link": reverse_lazy("usersessions_list")},
            {"title": "API reference", "link": reverse_lazy("docs")},
        ],
    },
}

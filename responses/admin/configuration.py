"""Configuration shown on the system page: a fixed list of settings, with secrets masked.

Only settings in the list below are shown. Masking depends on the name of a setting and not on the list, so a secret
that is added to the list by mistake is masked as well.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings

from core.egress_policy import AllowList

_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|PEPPER|CREDENTIAL", re.IGNORECASE)
_MASK = "•••"
_GROUPS: Mapping[str, Iterable[str]] = {
    "Web server": (
        "DEBUG",
        "PORT",
        "ALLOWED_HOSTS",
        "CSRF_TRUSTED_ORIGINS",
        "TRUSTED_PROXIES",
        "SECURE_TLS",
        "STATE_DIR",
        "MAX_BODY_BYTES",
        "MAX_UPLOAD_BYTES",
    ),
    "Upstreams and tools": (
        "UPSTREAM_BASE_URL",
        "UPSTREAM_API_KEY",
        "UPSTREAM_CONNECT_TIMEOUT",
        "UPSTREAM_IDLE_TIMEOUT",
        "UPSTREAM_ANSWER_TIMEOUT",
        "EMBEDDING_MODEL",
        "IMAGE_MODEL",
        "REASONING_SUMMARY_MODEL",
        "SEARXNG_URL",
        "SANDBOX_URL",
        "SANDBOX_TOKEN",
        "EGRESS_ALLOW",
    ),
    "Runs": (
        "LEASE_SECONDS",
        "BACKGROUND_ATTEMPTS",
        "WORKER_DRAIN_SECONDS",
        "BATCH_CONCURRENCY",
        "BATCH_RETRY_SECONDS",
    ),
    "Webhooks": ("WEBHOOK_CONCURRENCY", "WEBHOOK_TIMEOUT_SECONDS", "WEBHOOK_RETRY_SECONDS"),
    "Sign-in": (
        "OIDC_ISSUER",
        "OIDC_CLIENT_ID",
        "OIDC_CLIENT_SECRET",
        "OIDC_SIGNUP",
        "REQUIRE_SECOND_FACTOR",
        "SESSION_COOKIE_AGE",
    ),
    "Secrets": ("SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS"),
}


def groups() -> dict[str, list[tuple[str, str]]]:
    """Return the names and displayed values of the settings by section."""
    found = {
        title: [(name, display_value(name, getattr(settings, name, ""))) for name in names]
        for title, names in _GROUPS.items()
    }
    # Assembled from the parts: the URL itself contains the password.
    database = settings.DATABASES["default"]
    found["Databases and storage"] = [
        ("DATABASE_URL", f"{database['HOST']}:{database['PORT']}/{database['NAME']}"),
        ("Database user", str(database["USER"])),
        ("Connections per process", str(database["OPTIONS"]["pool"]["max_size"])),
        ("REDIS_URL", _without_credentials(settings.REDIS_URL)),
        ("FILES_STORAGE", settings.STORAGES["files"]["BACKEND"]),
    ]
    return found


def display_value(name: str, value: Any) -> str:
    """Return the value of a setting for display; secrets show only whether they are set."""
    if _SECRET.search(name):
        return f"{_MASK} set" if value else "not set"
    match value:
        case bool():
            return "on" if value else "off"
        case list() | tuple() | set() | frozenset():
            return ", ".join(_without_credentials(str(item)) for item in value) or "–"
        case AllowList():
            targets = ((str(entry.network or entry.name), entry.port) for entry in value.entries)
            return ", ".join(target if port is None else f"{target}:{port}" for target, port in targets) or "–"
    return _without_credentials(str(value)) or "–"


def _without_credentials(text: str) -> str:
    # URLs may contain a user name, a password or an API key in the query. Other values are returned unchanged.
    if "://" not in text:
        return text
    parts = urlsplit(text)
    _, has_userinfo, host = parts.netloc.rpartition("@")
    return urlunsplit(
        (parts.scheme, f"{_MASK}@{host}" if has_userinfo else host, parts.path, _MASK if parts.query else "", "")
    )

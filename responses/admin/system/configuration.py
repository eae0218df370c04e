"""The configuration as a page shows it: chosen settings and no others, and of secrets only whether they are set.

A setting is shown because it stands in the list here. It is masked because of its name, so that one which is added to
the list without a thought for that is masked all the same.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings

from kernel.egress_policy import AllowEntry, AllowList

_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|PEPPER|CREDENTIAL", re.IGNORECASE)
_MASK = "•••"
_SHOWN: Mapping[str, Iterable[str]] = {
    "Serving": (
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
        "EMBEDDING_MODEL",
        "IMAGE_MODEL",
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
    "Signing in": (
        "OIDC_ISSUER",
        "OIDC_CLIENT_ID",
        "OIDC_CLIENT_SECRET",
        "OIDC_SIGNUP",
        "REQUIRE_SECOND_FACTOR",
        "SESSION_COOKIE_AGE",
    ),
    "Secrets": ("SECRET_KEY", "API_KEY_PEPPER", "ENCRYPTION_KEYS"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting as it may be shown."""

    name: str
    value: str


def groups() -> dict[str, list[Setting]]:
    """The settings by what they are about."""
    found = {title: [_setting(name, getattr(settings, name, "")) for name in names] for title, names in _SHOWN.items()}
    return {**found, "Stores": _stores()}


def shown(name: str, value: Any) -> str:
    """A value as people may see it."""
    if _SECRET.search(name):
        return f"{_MASK} set" if value else "not set"
    match value:
        case bool():
            return "on" if value else "off"
        case list() | tuple() | set() | frozenset():
            return ", ".join(_safe(str(each)) for each in value) or "–"
        case AllowList():
            return ", ".join(map(_allowance, value.entries)) or "–"
    return _safe(str(value)) or "–"


def _allowance(entry: AllowEntry) -> str:
    where = str(entry.network) if entry.network is not None else str(entry.name)
    return where if entry.port is None else f"{where}:{entry.port}"


def _setting(name: str, value: Any) -> Setting:
    return Setting(name=name, value=shown(name, value))


def _stores() -> list[Setting]:
    database = settings.DATABASES["default"]
    return [
        Setting(name="DATABASE_URL", value=f"{database['HOST']}:{database['PORT']}/{database['NAME']}"),
        Setting(name="Role of the application", value=str(database["USER"])),
        Setting(name="Connections of a process", value=str(database["OPTIONS"]["pool"]["max_size"])),
        Setting(name="REDIS_URL", value=_safe(settings.REDIS_URL)),
        Setting(name="FILES_STORAGE", value=settings.STORAGES["files"]["BACKEND"]),
    ]


def _safe(text: str) -> str:
    """A URL without who signs in by it, and without its query; any other text as it is."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    _, found, host = parts.netloc.rpartition("@")
    return urlunsplit(
        (parts.scheme, f"{_MASK}@{host}" if found else host, parts.path, _MASK if parts.query else "", "")
    )

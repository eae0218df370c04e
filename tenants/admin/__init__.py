"""The admin's pages of the tenancy."""

from tenants.admin import auditlog, connectors, guardrails, keys, ledger, search, team_parts, teams, upstreams, users
from tenants.console import content_access

__all__ = [
    "auditlog",
    "connectors",
    "content_access",
    "guardrails",
    "keys",
    "ledger",
    "search",
    "team_parts",
    "teams",
    "upstreams",
    "users",
]

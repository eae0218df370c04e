"""The admin's pages of the tenancy."""

from tenants.admin import (
    auditlog,
    connectors,
    content,
    guardrails,
    keys,
    ledger,
    search,
    team_parts,
    teams,
    upstreams,
    users,
)

__all__ = [
    "auditlog",
    "connectors",
    "content",
    "guardrails",
    "keys",
    "ledger",
    "search",
    "team_parts",
    "teams",
    "upstreams",
    "users",
]

"""The admin's pages of the tenancy."""

from tenants.admin import auditlog, connectors, content, guardrails, keys, ledger, search, teams, upstreams, users

__all__ = ["auditlog", "connectors", "content", "guardrails", "keys", "ledger", "search", "teams", "upstreams", "users"]

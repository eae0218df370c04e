"""The admin's pages of the tenancy."""

from tenants.admin import connectors, content, guardrails, keys, ledger, search, teams, upstreams, users

__all__ = ["connectors", "content", "guardrails", "keys", "ledger", "search", "teams", "upstreams", "users"]

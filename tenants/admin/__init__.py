"""The admin's pages of the tenancy."""

from tenants.admin import connectors, guardrails, keys, ledger, search, teams, upstreams, users

__all__ = ["connectors", "guardrails", "keys", "ledger", "search", "teams", "upstreams", "users"]

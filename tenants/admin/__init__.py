"""The admin's pages of the tenancy."""

from tenants.admin import connectors, keys, ledger, search, teams, upstreams, users

__all__ = ["connectors", "keys", "ledger", "search", "teams", "upstreams", "users"]

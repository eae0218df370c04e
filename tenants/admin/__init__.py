"""The admin's pages of the tenancy."""

from tenants.admin import connectors, keys, ledger, teams, upstreams, users

__all__ = ["connectors", "keys", "ledger", "teams", "upstreams", "users"]

"""The admin's pages of the tenancy."""

from tenants.admin import keys, ledger, teams, upstreams, users

__all__ = ["keys", "ledger", "teams", "upstreams", "users"]

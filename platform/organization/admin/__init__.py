"""Console pages of teams, people, keys, limits, guardrails, hosted tools and the audit log."""

from organization.admin import admin_keys, audit_log, guardrails, hosted_tools, invites, keys, limits, teams, users
from tenants.console import content_access

# Importing these modules registers their pages with the admin site.
__all__ = [
    "admin_keys",
    "audit_log",
    "content_access",
    "guardrails",
    "hosted_tools",
    "invites",
    "keys",
    "limits",
    "teams",
    "users",
]

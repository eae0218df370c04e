"""Admin pages for teams, members, keys, limits, upstreams, models, usage records, notifications and the audit log."""

from tenants.admin import (
    admin_keys,
    audit_log,
    guardrails,
    hosted_tools,
    invites,
    keys,
    limits,
    notifications,
    prices,
    teams,
    upstreams,
    usage_records,
    users,
)
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
    "notifications",
    "prices",
    "teams",
    "upstreams",
    "usage_records",
    "users",
]

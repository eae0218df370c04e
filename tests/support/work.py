"""Requests with new work, which a process refuses under overload and during a shutdown, and requests that it serves."""

from server.api_urls import ENDPOINTS

SERVED = [
    "/batches/x/cancel",
    "/chat/completions/x",
    "/conversations/x",
    "/conversations/x/cancel",
    "/organization/invites",
    "/organization/projects",
    "/organization/projects/x",
    "/organization/projects/x/api_keys/x",
    "/organization/projects/x/archive",
    "/organization/projects/x/hosted_tool_permissions",
    "/organization/projects/x/model_permissions",
    "/organization/projects/x/rate_limits/x",
    "/organization/projects/x/service_accounts",
    "/organization/projects/x/service_accounts/x",
    "/organization/projects/x/service_accounts/x/api_keys",
    "/organization/projects/x/spend_alerts",
    "/organization/projects/x/spend_alerts/x",
    "/organization/projects/x/spend_limit",
    "/organization/projects/x/users",
    "/organization/projects/x/users/x",
    "/responses/x/approvals/x",
    "/responses/x/cancel",
    "/skills/x",
    "/uploads/x/cancel",
    "/vector_stores/x",
    "/vector_stores/x/file_batches/x/cancel",
    "/vector_stores/x/files/x",
    "/webhook_endpoints/x",
]
"""POST requests that are served."""


def paths_of_work() -> list[str]:
    """Return the paths of all other POST requests: a new endpoint is refused unless `SERVED` names it."""
    posts = [endpoint for endpoint in ENDPOINTS if endpoint.method == "POST"]
    paths = {endpoint.template.format(**dict.fromkeys(endpoint.ids, "x")) for endpoint in posts}
    assert paths >= {*SERVED}
    return sorted(paths - {*SERVED})

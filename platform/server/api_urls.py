"""URLs of the API, below /v1/, and the table of all endpoints. Both are derived from the views of these modules."""

from typing import Any

from django.urls import path

from billing import api as usage
from containers.api import views as containers
from conversations.api import conversations, files
from gateway import api as passthrough
from gateway.anthropic import api as messages
from gateway.audio import api as audio
from gateway.batches import api as batches
from gateway.chat import api as chat_completions
from organization.api import (
    admin_keys,
    audit_logs,
    invites,
    limits,
    permissions,
    project_keys,
    projects,
    service_accounts,
    users,
)
from responses.api import approvals, trace, views, webhooks
from responses.requests import conversation_items
from server import me
from skills.api import views as skills
from tenants.views import ApiView
from tools.vectors import api as vector_stores

MODULES = (
    views,
    trace,
    approvals,
    chat_completions,
    messages,
    conversations,
    files,
    vector_stores,
    batches,
    webhooks,
    containers,
    skills,
    passthrough,
    audio,
    projects,
    project_keys,
    service_accounts,
    users,
    permissions,
    limits,
    audit_logs,
    invites,
    admin_keys,
    usage,
    me,
)
VIEWS = [
    view
    for module in MODULES
    for view in vars(module).values()
    if isinstance(view, type) and issubclass(view, ApiView) and view.path
]
ENDPOINTS = [endpoint for view in VIEWS for endpoint in view.endpoints]
_OPTIONS: dict[type[ApiView], dict[str, Any]] = {
    conversations.ConversationsView: {"check_items": conversation_items.check},
    conversations.ConversationItemsView: {"check_items": conversation_items.check},
}
# Fixed names come before ids, because the pattern of an id also matches a name.
urlpatterns = [
    path(view.path, view.as_view(**_OPTIONS.get(view, {})))
    for view in sorted(VIEWS, key=lambda view: view.path.replace("<", "~"))
]

"""Tabs of a team's page. Each tab is a function, in this app or in apps that depend on it:

    @tab("webhooks", title="Webhooks", template="admin/responses/team/webhooks.html")
    def webhooks(viewer: Viewer, team: Team) -> dict[str, Any]: ...

A tab reads a bounded number of rows and links to the list with all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.urls import reverse

from console.widgets import badge, changelist_url, key_cell, link, two_lines, when
from organization.admin.audit_names import Names, named
from organization.admin.keys import state_of
from organization.admin.team_invites import invitations_of
from tenants import scope
from tenants.audit import lines_of
from tenants.console.roles import CONTRIBUTORS, EVERY_ROLE, LEADS, OPERATORS, STAFF, Roles
from tenants.console.viewer import Viewer
from tenants.models import (
    ApiKey,
    AuditEvent,
    Connector,
    KeySource,
    Membership,
    Model,
    Role,
    SearchEngine,
    Team,
    ToolKind,
)
from tenants.prices import NO_PRICE, Dimension, amount

Fill = Callable[[Viewer, Team], dict[str, Any]]
# A fixed order, as the order of registration depends on imports.
ORDER = ("overview", "members", "keys", "limits", "models", "webhooks", "usage", "audit", "settings", "danger")
SETTINGS = "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTab:
    """A tab and the roles that may see it. The tab without a template is the form of the team's settings."""

    name: str
    title: str
    template: str
    fill: Fill
    viewers: Roles


_tabs: dict[str, TeamTab] = {}


def tab(name: str, *, title: str, template: str, viewers: Roles = EVERY_ROLE) -> Callable[[Fill], Fill]:
    """Register a function that returns a tab's context. The tab is visible to these roles and to administrators."""

    def register(fill: Fill) -> Fill:
        _tabs[name] = TeamTab(name=name, title=title, template=template, fill=fill, viewers=viewers)
        return fill

    return register


def tabs_for(viewer: Viewer, team: Team) -> list[TeamTab]:
    """Return the tabs that the user may see, in display order."""
    found = [_tabs[name] for name in ORDER if name in _tabs]
    return [team_tab for team_tab in found if viewer.may(team_tab.viewers, team)]


@tab(SETTINGS, title="Settings", template="")
def _settings(viewer: Viewer, team: Team) -> dict[str, Any]:
    return {}


# -- the tabs ----------------------------------------------------------------------------------------------------------

MAX_ROWS = 50
_MAX_MODELS = 200
MAX_MEMBERS = 200
_TABLE = "admin/tenants/team/table.html"
CONTENT = (("", "Role default"), ("yes", "Always"), ("no", "After a reveal"))
READS: dict[str, bool | None] = {"": None, "yes": True, "no": False}


def tab_url(team: Team, name: str) -> str:
    """Return the URL of a tab of the team's page."""
    return f"{reverse('admin:tenants_team_change', args=[team.pk])}?tab={name}"


@tab("members", title="Members", template="admin/tenants/team/members.html")
def members_of(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the context of the members tab."""
    # One more than is shown, to know whether the list is cut.
    found = Membership.objects.filter(team=team).select_related("user").order_by("user__username")[: MAX_MEMBERS + 1]
    rows = list(found)
    content = {value: key for key, value in READS.items()}
    may_manage = viewer.may(LEADS, team)
    return {
        "rows": [{"member": row, "content": content[row.view_content]} for row in rows[:MAX_MEMBERS]],
        "is_cut": len(rows) > MAX_MEMBERS,
        "most": MAX_MEMBERS,
        "roles": Role.choices,
        "contents": CONTENT,
        "may_manage": may_manage,
        # The link of an invitation is a secret.
        "invitations": invitations_of(team) if may_manage else [],
    }


@tab("keys", title="Keys", template=_TABLE)
def keys_of(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the context of the keys tab."""
    keys = ApiKey.objects.filter(team=team, source=KeySource.PERSON).select_related("created_by", "team")
    rows = [
        [
            link(reverse("admin:tenants_apikey_change", args=[key.pk]), key.name),
            key_cell(key),
            state_of(key),
            key.created_by.get_username() if key.created_by else "–",
            when(key.last_used_at) if key.last_used_at else "never",
            when(key.expires_at) if key.expires_at else "never",
        ]
        for key in keys.order_by("-created_at", "-pk")[:MAX_ROWS]
    ]
    add = f"{reverse('admin:tenants_apikey_add')}?team={team.pk}"
    return {
        "table": {"headers": ["Name", "Key", "Status", "Created by", "Last used", "Expires"], "rows": rows},
        "empty": "No API keys",
        "all": (changelist_url("tenants_apikey", team__id__exact=team.pk), "All API keys"),
        "more": [(add, "Create API key")] if viewer.may(CONTRIBUTORS, team) else [],
    }


@tab("models", title="Models & tools", template="admin/tenants/team/models.html")
def models_of(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the context of the models and tools tab: everything that the team may use."""
    visible = Q(teams__isnull=True) | Q(teams=team.pk)
    # Row-level security for fewer teams would hide the rows that restrict an object to other teams, and it would look
    # as if every team could use it.
    with scope.every_team():
        found = Model.objects.filter(visible, enabled=True).select_related("upstream").defer("upstream__api_key")
        found = found.prefetch_related("price_entries")
        models = list(found.order_by("name", "pk").distinct()[:_MAX_MODELS])
        connectors = Connector.objects.filter(visible, enabled=True).order_by("name")
        connected = list(connectors.values_list("name", "title").distinct()[:MAX_ROWS])
        engines = SearchEngine.objects.filter(visible, enabled=True).order_by("name")
        searching = list(engines.values_list("name", flat=True).distinct()[:MAX_ROWS])
    allowed = [kind.label for kind in ToolKind if kind.value in team.tools]
    return {
        "table": {
            "headers": ["Model", "Upstream", "USD per million tokens", "Context window", "Images"],
            "rows": [_model_row(model) for model in models],
        },
        "facts": [
            ("Hosted tools", ", ".join(allowed) or "none"),
            ("Fallback models", "allowed" if team.allow_fallback_models else "not allowed"),
            ("Connectors", ", ".join(f"{name} ({title})" for name, title in connected) or "none"),
            ("Search engines", ", ".join(searching) or "server default"),
            ("Embedding model", team.embedding_model or "server default"),
            ("Image model", team.image_model or "server default"),
            ("Model for reasoning summaries", team.summary_model or "server default"),
        ],
    }


def _model_row(model: Model) -> list[Any]:
    prices = model.prices()
    read, written = (amount(prices.usual(dimension)) for dimension in (Dimension.INPUT, Dimension.OUTPUT))
    costs = two_lines(f"{read} in", f"{written} out") if prices else NO_PRICE
    name = "all other names" if model.name == "*" else model.name
    window = f"{model.context_window:,}" if model.context_window else "–"
    return [name, str(model.upstream), costs, window, "yes" if model.vision else "no"]


@tab("audit", title="Audit", template=_TABLE, viewers=STAFF | {Role.TEAM_LEAD, Role.AUDITOR})
def audit_of(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the context of the audit tab, with the latest lines."""
    events = list(AuditEvent.objects.filter(lines_of([team.pk])).order_by("-occurred_at", "-pk")[:MAX_ROWS])
    names = Names(events)
    rows = [
        [
            when(event.occurred_at),
            named(names.actor(event), event.actor),
            badge(event.action, "info"),
            named(names.target(event), event.target),
        ]
        for event in events
    ]
    return {
        "table": {"headers": ["Time", "Actor", "Action", "Target"], "rows": rows},
        "empty": "No audit events",
        "all": (changelist_url("tenants_auditevent", team__id__exact=team.pk), "Full audit log"),
    }


@tab("danger", title="Danger zone", template="admin/tenants/team/danger.html", viewers=OPERATORS)
def danger_of(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the context of the tab on which operators suspend or resume the team."""
    return {"url": reverse("admin:tenants_team_suspend", args=[team.pk])}

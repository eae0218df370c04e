"""Tabs of a team's page: API keys, models and tools, audit log, suspension."""

from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.widgets import badge, two_lines, when
from tenants import scope
from tenants.admin.keys import state_of
from tenants.admin.team_tabs import tab
from tenants.console.roles import CONTRIBUTORS, OPERATORS, STAFF, may
from tenants.models import ApiKey, AuditEvent, Connector, KeySource, Model, Role, SearchEngine, Team, ToolKind
from tenants.prices import amount

MAX_ROWS = 50
_MAX_MODELS = 200
_TABLE = "admin/tenants/team/table.html"


def linked(url: str, text: str) -> SafeString:
    """Return a link for a cell."""
    return format_html('<a class="c-link" href="{}">{}</a>', url, text)


def list_of(page: str, **query: str) -> str:
    """Return the URL of a change list with filters."""
    return f"{reverse(f'admin:{page}_changelist')}?{'&'.join(f'{name}={value}' for name, value in query.items())}"


@tab("keys", title="Keys", template=_TABLE)
def keys_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """Return the context of the keys tab."""
    keys = ApiKey.objects.filter(team=team, source=KeySource.PERSON).select_related("created_by", "team")
    rows = [_key_row(key) for key in keys.order_by("-created_at", "-pk")[:MAX_ROWS]]
    add = f"{reverse('admin:tenants_apikey_add')}?team={team.pk}"
    return {
        "table": {"headers": ["Name", "Key", "Status", "Created by", "Last used", "Expires"], "rows": rows},
        "empty": "No API keys",
        "all": (list_of("tenants_apikey", team__id__exact=team.pk), "All API keys"),
        "more": [(add, "Create API key")] if may(request, CONTRIBUTORS, team) else [],
    }


def _key_row(key: ApiKey) -> list[Any]:
    return [
        linked(reverse("admin:tenants_apikey_change", args=[key.pk]), key.name),
        format_html('<code class="c-code">{}…{}</code>', key.prefix, key.last_four),
        state_of(key),
        key.created_by.get_username() if key.created_by else "–",
        when(key.last_used_at) if key.last_used_at else "never",
        when(key.expires_at) if key.expires_at else "never",
    ]


@tab("models", title="Models & tools", template="admin/tenants/team/models.html")
def models_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """Return the context of the models and tools tab: everything that the team may use."""
    visible = Q(teams__isnull=True) | Q(teams=team.pk)
    # Row-level security for fewer teams would hide the rows that restrict an object to other teams, and it would look
    # as if every team could use it.
    with scope.every_team():
        found = Model.objects.filter(visible, enabled=True).select_related("upstream").defer("upstream__api_key")
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
            ("Connectors", ", ".join(f"{name} ({title})" for name, title in connected) or "none"),
            ("Search engines", ", ".join(searching) or "server default"),
            ("Embedding model", team.embedding_model or "server default"),
            ("Image model", team.image_model or "server default"),
        ],
    }


def _model_row(model: Model) -> list[Any]:
    prices = model.prices()
    costs = two_lines(f"{amount(prices.input_price)} in", f"{amount(prices.output_price)} out")
    name = "all other names" if model.name == "*" else model.name
    window = f"{model.context_window:,}" if model.context_window else "–"
    return [name, str(model.upstream), costs, window, "yes" if model.vision else "no"]


@tab("audit", title="Audit", template=_TABLE, viewers=STAFF | {Role.TEAM_LEAD, Role.AUDITOR})
def audit_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """Return the context of the audit tab, with the latest lines."""
    events = AuditEvent.objects.filter(team=team).order_by("-occurred_at", "-pk")[:MAX_ROWS]
    rows = [[when(event.occurred_at), event.actor, badge(event.action, "info"), event.target] for event in events]
    return {
        "table": {"headers": ["Time", "Actor", "Action", "Target"], "rows": rows},
        "empty": "No audit events",
        "all": (list_of("tenants_auditevent", team__id__exact=team.pk), "Full audit log"),
    }


@tab("danger", title="Danger zone", template="admin/tenants/team/danger.html", viewers=OPERATORS)
def danger_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """Return the context of the tab on which operators suspend or resume the team."""
    return {"url": reverse("admin:tenants_team_suspend", args=[team.pk])}

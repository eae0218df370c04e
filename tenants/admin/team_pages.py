"""Tabs of a team's page that show its keys, what it may use, and what was done to it."""

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

MOST = 50
_MOST_MODELS = 200
_TABLE = "admin/tenants/team/table.html"


def linked(url: str, words: str) -> SafeString:
    """A link in a cell."""
    return format_html('<a class="c-link" href="{}">{}</a>', url, words)


def list_of(page: str, **query: str) -> str:
    """The address of a list, narrowed."""
    return f"{reverse(f'admin:{page}_changelist')}?{'&'.join(f'{name}={value}' for name, value in query.items())}"


@tab("keys", title="Keys", template=_TABLE)
def keys_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """The newest keys."""
    keys = ApiKey.objects.filter(team=team, source=KeySource.PERSON).select_related("created_by", "team")
    rows = [_key_row(key) for key in keys.order_by("-created_at", "-pk")[:MOST]]
    add = f"{reverse('admin:tenants_apikey_add')}?team={team.pk}"
    return {
        "table": {"headers": ["Name", "Key", "Status", "Made by", "Last used", "Expires"], "rows": rows},
        "empty": "No key yet.",
        "all": (list_of("tenants_apikey", team__id__exact=team.pk), "All keys"),
        "more": [(add, "Create a key")] if may(request, CONTRIBUTORS, team) else [],
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
    """What the team's requests may name: models with their prices, tools, connectors, search engines."""
    visible = Q(teams__isnull=True) | Q(teams=team.pk)
    # With fewer teams in sight, what belongs to other teams would look like everybody's.
    with scope.every_team():
        found = Model.objects.filter(visible, enabled=True).select_related("upstream").defer("upstream__api_key")
        models = list(found.order_by("name", "pk").distinct()[:_MOST_MODELS])
        connectors = Connector.objects.filter(visible, enabled=True).order_by("name")
        connected = list(connectors.values_list("name", "title").distinct()[:MOST])
        engines = SearchEngine.objects.filter(visible, enabled=True).order_by("name")
        searching = list(engines.values_list("name", flat=True).distinct()[:MOST])
    allowed = [kind.label for kind in ToolKind if kind.value in team.tools]
    return {
        "table": {
            "headers": ["Model", "Answered by", "USD per million tokens", "Context", "Images"],
            "rows": [_model_row(model) for model in models],
        },
        "facts": [
            ("Tools of the server", ", ".join(allowed) or "none"),
            ("Connectors", ", ".join(f"{name} ({title})" for name, title in connected) or "none"),
            ("Search engines", ", ".join(searching) or "that of the configuration, if any"),
            ("Embeddings by", team.embedding_model or "the model of the configuration, if any"),
            ("Images by", team.image_model or "the model of the configuration, if any"),
        ],
    }


def _model_row(model: Model) -> list[Any]:
    prices = model.prices()
    costs = two_lines(f"{amount(prices.input_price)} in", f"{amount(prices.output_price)} out")
    name = "every other name" if model.name == "*" else model.name
    window = f"{model.context_window:,}" if model.context_window else "–"
    return [name, str(model.upstream), costs, window, "yes" if model.vision else "no"]


@tab("audit", title="Audit", template=_TABLE, viewers=STAFF | {Role.TEAM_LEAD, Role.AUDITOR})
def audit_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """The latest lines of the audit log."""
    events = AuditEvent.objects.filter(team=team).order_by("-occurred_at", "-pk")[:MOST]
    rows = [[when(event.occurred_at), event.actor, badge(event.action, "info"), event.target] for event in events]
    return {
        "table": {"headers": ["Time", "Actor", "Action", "Target"], "rows": rows},
        "empty": "Nothing yet.",
        "all": (list_of("tenants_auditevent", team__id__exact=team.pk), "The whole log"),
    }


@tab("danger", title="Danger", template="admin/tenants/team/danger.html", viewers=OPERATORS)
def danger_of(request: HttpRequest, team: Team) -> dict[str, Any]:
    """The switch of the whole team."""
    return {"url": reverse("admin:tenants_team_suspend", args=[team.pk])}

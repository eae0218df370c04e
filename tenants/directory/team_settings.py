"""Settings of teams: connectors, search engines, default models, prices of tools and guardrails."""

from dataclasses import dataclass, field

from django.conf import settings
from django.db.models import Q

from tenants import models, scope
from tenants.directory.cache import CachedLookup
from tenants.directory.routes import visible_to
from tenants.models import (
    Connector,
    Guardrail,
    SearchEngine,
    SearchKind,
    Team,
    UnknownUsage,
)
from tenants.prices import PriceList


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Address, credentials and settings of a connector. Address and credentials are secrets of the operator."""

    url: str = field(repr=False)
    authorization: str = field(repr=False)
    requires_approval: bool = False
    waits_for_approval: bool = False
    honours_effect_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEngineSettings:
    """Search engine of a team, including secrets of the operator. An empty `base_url` means the public service."""

    kind: str
    base_url: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailSettings:
    """Guardrail of a team. An empty checker means no check. URL and secret of the hook are secrets of the team."""

    input_checker: str
    input_action: str
    output_checker: str
    output_action: str
    model: str
    hook_url: str = field(repr=False)
    hook_secret: str = field(repr=False)
    fails_open: bool


@CachedLookup
def connector(team_id: str, name: str) -> McpServer | None:
    """Return the MCP server of a `connector_id`, or None if the team has no connector of that name."""
    # Not `scope.team`: row-level security would hide the rows that restrict an object to other teams.
    with scope.every_team():
        found = Connector.objects.filter(visible_to(team_id), name=name, enabled=True).first()
    if found is None:
        return None
    return McpServer(
        url=found.url,
        authorization=found.authorization,
        requires_approval=found.require_approval,
        waits_for_approval=found.wait_for_approval,
        honours_effect_ids=found.honours_effect_ids,
    )


@CachedLookup
def search_engine(team_id: str) -> SearchEngineSettings | None:
    """Return the search engine of a team, or None."""
    # Not `scope.team`: row-level security would hide the rows that restrict an object to other teams.
    with scope.every_team():
        found = SearchEngine.objects.filter(visible_to(team_id), enabled=True).annotate(for_team=Q(teams=team_id))
        # The team's own engine takes precedence over shared ones, and these over the server's configuration.
        best = max(found.order_by("-created_at"), key=lambda engine: bool(engine.for_team), default=None)
    if best is not None:
        return SearchEngineSettings(kind=best.kind, base_url=best.base_url, api_key=best.api_key)
    if settings.SEARXNG_URL:
        return SearchEngineSettings(kind=SearchKind.SEARXNG.value, base_url=settings.SEARXNG_URL)
    return None


@CachedLookup
def image_model(team_id: str) -> str:
    """Return the default image model of the team, else of the server's configuration, else an empty string."""
    with scope.every_team():
        own = Team.objects.values_list("image_model", flat=True).filter(pk=team_id).first()
    return own or settings.IMAGE_MODEL


@CachedLookup
def summary_model(team_id: str) -> str:
    """Return the reasoning summary model of the team, else of the server's configuration, else an empty string."""
    with scope.every_team():
        own = Team.objects.values_list("summary_model", flat=True).filter(pk=team_id).first()
    return own or settings.REASONING_SUMMARY_MODEL


@CachedLookup
def bills_estimates(team_id: str) -> bool:
    """Return true if a team is billed by an estimate for calls whose usage is unknown."""
    with scope.team(team_id):
        policy = Team.objects.values_list("unknown_usage", flat=True).filter(pk=team_id).first()
    return policy != UnknownUsage.FREE


@CachedLookup
def tool_prices() -> PriceList:
    """Return the platform's prices of hosted tools, which apply unless a model has its own price for a tool."""
    return PriceList(row.entry() for row in models.Price.objects.filter(model=None).order_by("pk"))


@CachedLookup
def guardrails(team_id: str) -> GuardrailSettings | None:
    """Return the guardrail of a team, or None."""
    with scope.every_team():
        found = Guardrail.objects.filter(pk=team_id).first()
    return guardrail_settings(found)


def guardrail_settings(found: Guardrail | None) -> GuardrailSettings | None:
    if found is None:
        return None
    return GuardrailSettings(
        input_checker=found.input_checker,
        input_action=found.input_action,
        output_checker=found.output_checker,
        output_action=found.output_action,
        model=found.model,
        hook_url=found.hook_url,
        hook_secret=found.hook_secret,
        fails_open=found.fails_open,
    )

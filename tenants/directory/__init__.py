"""Lookups of keys, model routes and team settings, cached for one to two seconds."""

from tenants.directory.cache import CachedLookup
from tenants.directory.keys import (
    aprincipal,
    aprincipal_by_id,
    awith_limits,
    end_user_limits,
    principal,
    principal_of_run,
    subject_limits,
)
from tenants.directory.routes import (
    Route,
    UpstreamEndpoint,
    Wildcard,
    aroute,
    list_models,
    planned_targets,
    route_of,
    route_of_run,
    run_route,
    upstream_of,
    upstreams,
    wildcard,
)
from tenants.directory.runs import look_up_runs
from tenants.directory.target_choice import with_affinity
from tenants.directory.target_limits import TargetLimits
from tenants.directory.target_load import TargetLoads, target_loads
from tenants.directory.team_settings import (
    GuardrailSettings,
    SearchEngineSettings,
    bills_estimates,
    connector,
    guardrails,
    image_model,
    search_engine,
    summary_model,
    tool_prices,
)

__all__ = [
    "CachedLookup",
    "GuardrailSettings",
    "Route",
    "SearchEngineSettings",
    "TargetLimits",
    "TargetLoads",
    "UpstreamEndpoint",
    "Wildcard",
    "aprincipal",
    "aprincipal_by_id",
    "aroute",
    "awith_limits",
    "bills_estimates",
    "connector",
    "end_user_limits",
    "guardrails",
    "image_model",
    "list_models",
    "look_up_runs",
    "planned_targets",
    "principal",
    "principal_of_run",
    "route_of",
    "route_of_run",
    "run_route",
    "search_engine",
    "subject_limits",
    "summary_model",
    "target_loads",
    "tool_prices",
    "upstream_of",
    "upstreams",
    "wildcard",
    "with_affinity",
]

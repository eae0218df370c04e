"""Lookups of many runs at once."""

import time
from collections.abc import Collection

from core.crypto import InvalidToken
from tenants import scope
from tenants.directory.keys import HAS_LIMITS, key_by_id, limits_of
from tenants.directory.routes import build_route, price_lists, run_route
from tenants.directory.team_settings import guardrail_settings, guardrails
from tenants.models import (
    ApiKey,
    Guardrail,
    Model,
)


def look_up_runs(runs: Collection[tuple[str, str, str, str, str]]) -> None:
    """Look up the keys, guardrails and routes that many runs are about to need, all at once.

    A run is a tuple of its key, team, model, upstream, and the upstream's name of the model. Executes at most five
    queries, or seven if a team has limits. Results of the last second are cached.
    """
    at = time.monotonic()
    keys = key_by_id.missing((key_id,) for key_id, *_ in runs)
    teams = guardrails.missing((team_id,) for _, team_id, *_ in runs)
    routes = run_route.missing(tuple(route) for _, *route in runs)
    if not (keys or teams or routes):
        return
    with scope.every_team():
        wanted = ApiKey.objects.select_related("team").annotate(has_limits=HAS_LIMITS)
        found_keys = wanted.in_bulk([key_id for (key_id,) in keys])
        limits = limits_of(found_keys.values())
        found_guardrails = Guardrail.objects.in_bulk([team_id for (team_id,) in teams])
        upstream_ids, names = {route[2] for route in routes}, {"*", *(route[1] for route in routes)}
        served = Model.objects.filter(upstream__in=upstream_ids, name__in=names, enabled=True)
        served = served.select_related("upstream").prefetch_related("teams")
        try:
            candidates = list(served) if routes else []
            prices = price_lists(candidates)
        except InvalidToken:
            # Each run then looks up its route itself, so that a key that cannot be decrypted fails only its own runs.
            candidates, routes, prices = [], set(), {}
    for (key_id,) in keys:
        key = found_keys.get(key_id)
        key_by_id.remember((key, limits) if key is not None else None, key_id, at=at)
    for (team_id,) in teams:
        guardrails.remember(guardrail_settings(found_guardrails.get(team_id)), team_id, at=at)
    visible = [(row, {team.pk for team in row.teams.all()}) for row in candidates]
    for team_id, model, upstream_id, upstream_model in routes:
        mine = [
            row
            for row, only in visible
            if row.upstream_id == upstream_id and row.name in {model, "*"} and (not only or team_id in only)
        ]
        best = max(mine, key=lambda row: row.name == model, default=None)
        route = build_route(best, model, upstream_model, prices) if best is not None else None
        run_route.remember(route, team_id, model, upstream_id, upstream_model, at=at)

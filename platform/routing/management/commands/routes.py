"""`manage.py routes`: list the models with the upstreams that serve them, in the order of use."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from math import ceil
from typing import Any

from django.core.management.base import BaseCommand
from typing_extensions import override

from core.clock import shared_now
from providers.targets.breaker.sharing import shared_states, target_key
from providers.targets.breaker.state import Snapshot, State
from tenants import scope
from tenants.models import Model, Serves

_LIMITS = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "concurrent_requests": "requests at once",
}


class Command(BaseCommand):
    """Lists every model with its targets."""

    help = "List the models with the upstreams that serve them, in the order in which they are tried."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        listed = _routes()
        if options["json"]:
            self.stdout.write(json.dumps(listed))
            return
        for route in listed:
            self.stdout.write(route["model"])
            for target in route["targets"]:
                self.stdout.write(f"  {_line(target)}")
            if route["fallback_models"]:
                self.stdout.write(f"  fallback: {', '.join(route['fallback_models'])}")


def _routes() -> list[dict[str, Any]]:
    """Return the models by name, each with its targets and the names of its fallback models."""
    states = shared_states()
    rows = Model.objects.select_related("upstream").defer("upstream__api_key").prefetch_related("teams", "keys")
    targets: dict[str, list[dict[str, Any]]] = {}
    # Without duplicates, in the order of the rows.
    fallbacks: dict[str, dict[str, None]] = {}
    with scope.every_team():
        # The order of `tenants.directory`.
        for row in rows.order_by("priority", "-upstream__is_default", "created_at"):
            target = {
                "upstream": row.upstream.name,
                "region": row.upstream.region,
                "upstream_model": row.upstream_model or row.name,
                "priority": row.priority,
                "weight": row.weight,
                "serves": row.serves,
                "requests_per_minute": row.requests_per_minute,
                "tokens_per_minute": row.tokens_per_minute,
                "concurrent_requests": row.concurrent_requests,
                "teams": sorted(team.name for team in row.teams.all()),
                "only_keys": sorted(key.pk for key in row.keys.all()),
                "only_metadata": row.only_metadata,
                "enabled": row.enabled,
                **_state(row, states),
            }
            targets.setdefault(row.name, []).append(target)
            if row.fallback_for and row.enabled:
                fallbacks.setdefault(row.fallback_for, {})[row.name] = None
    return [
        {"model": name, "targets": targets.get(name, []), "fallback_models": [*fallbacks.get(name, ())]}
        for name in sorted({*targets, *fallbacks})
    ]


def _state(row: Model, states: Mapping[str, Snapshot] | None) -> dict[str, Any]:
    """Return the state of a target's circuit breaker, and when it ends in Unix seconds; None if it is unknown."""
    upstream_model = row.upstream_model or row.name
    # A wildcard has a state for each name that it has served.
    if states is None or upstream_model == "*":
        return {"state": None, "open_until": None}
    shared = states.get(target_key(row.upstream_id, upstream_model), Snapshot())
    state = shared.state(shared_now().timestamp())
    return {"state": state.value, "open_until": ceil(shared.open_until) if state is State.OPEN else None}


def _line(target: dict[str, Any]) -> str:
    notes = [f"priority {target['priority']}", f"weight {target['weight']}"]
    if target["serves"] != Serves.ALL:
        notes.append(f"{target['serves']} requests only")
    if target["teams"]:
        notes.append(f"only for {', '.join(target['teams'])}")
    if target["only_keys"]:
        notes.append(f"only for {', '.join(target['only_keys'])}")
    if target["only_metadata"]:
        notes.append(f"only with metadata {json.dumps(target['only_metadata'])}")
    for name, text in _LIMITS.items():
        if target[name] is not None:
            notes.append(f"at most {target[name]} {text}")
    if target["region"]:
        notes.append(target["region"])
    if not target["enabled"]:
        notes.append("disabled")
    if target["state"] not in {None, State.CLOSED}:
        notes.append(target["state"].replace("_", "-"))
    return f"{target['upstream']} → {target['upstream_model']} ({', '.join(notes)})"

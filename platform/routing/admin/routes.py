"""Page of model routes: the targets of models with several targets, live, and the actions that drain and resume one."""

import json
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from console.widgets import changelist_url, duration, link, when
from core.clock import now, shared_now
from providers.targets.breaker.sharing import shared_states, target_key
from providers.targets.breaker.state import Snapshot, State
from providers.targets.shared_loads import shared_in_flight
from routing.admin.route_page import route_url
from routing.admin.target_activity import Key, TargetActivity, TargetError, activity, key_of, start_of_period
from routing.public_models import PublicModel, with_several_targets
from tenants import services
from tenants.console.roles import OPERATORS
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import Model
from tenants.prices import rounded_amount

MAX_SHOWN = 100
"""Maximum number of models on the page."""


@page("routes/", name="model_routes", viewers=OPERATORS)
def model_routes(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Serve the page."""
    return render(request, "console/routes/page.html", title="Model routes", **_current_routes())


@page("routes/now/", name="model_routes_now", viewers=OPERATORS)
def model_routes_now(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Serve the routes, refreshed every five seconds."""
    return TemplateResponse(request, "console/routes/now.html", _current_routes())


@page("routes/<int:model_id>/drain/", name="target_drain", viewers=OPERATORS)
def drain(request: HttpRequest, viewer: Viewer, model_id: int) -> HttpResponse:
    """Drain a target (POST)."""
    target = _target(model_id)
    if request.method == "POST" and services.drain_target(model_id=model_id, actor=viewer.actor):
        messages.success(request, f"{target} gets no new requests. Requests that have begun there continue.")
    return HttpResponseRedirect(reverse("console:model_routes"))


@page("routes/<int:model_id>/resume/", name="target_resume", viewers=OPERATORS)
def resume(request: HttpRequest, viewer: Viewer, model_id: int) -> HttpResponse:
    """Let a drained target take requests again (POST)."""
    target = _target(model_id)
    if request.method == "POST" and (weight := services.resume_target(model_id=model_id, actor=viewer.actor)):
        messages.success(request, f"{target} gets requests again, with weight {weight}.")
    return HttpResponseRedirect(reverse("console:model_routes"))


def _target(model_id: int) -> Model:
    # The key of the upstream is not read, as it may be impossible to decrypt.
    found = Model.objects.select_related("upstream").defer("upstream__api_key").filter(pk=model_id).first()
    if found is None:
        raise Http404
    return found


def _current_routes() -> dict[str, Any]:
    found, since = with_several_targets(), start_of_period()
    shown = found[:MAX_SHOWN]
    targets = {target.pk: target for public in shown for target in public.targets}
    current: Mapping[Key, TargetActivity] = activity(list(targets.values()), since=since) if targets else {}
    # None if Redis cannot be reached: the states of the processes are not known here.
    states = (shared_states() if targets else None) or {}
    in_flight = shared_in_flight() if targets else None
    return {
        "routes": [_route(public, current, states, in_flight) for public in shown],
        "hidden": len(found) - len(shown),
        "since": since,
        "at": now(),
    }


def _route(
    public: PublicModel,
    current: Mapping[Key, TargetActivity],
    states: Mapping[str, Snapshot],
    in_flight: Mapping[tuple[str, str], int] | None,
) -> dict[str, Any]:
    return {
        "name": public.name,
        "url": route_url(public.name),
        "groups": [
            {
                "number": number,
                "model": group.model,
                "is_fallback": group.is_fallback,
                "priority": group.priority,
                "targets": [
                    {
                        **_cells(target, current.get(key_of(target)) or TargetActivity()),
                        "in_flight": _in_flight(target, in_flight),
                        "state": _state(
                            states.get(target_key(target.upstream_id, target.upstream_model or target.name))
                        ),
                    }
                    for target in group.targets
                ],
            }
            for number, group in enumerate(public.groups, 1)
        ],
    }


def _cells(target: Model, found: TargetActivity) -> dict[str, Any]:
    return {
        "row": target,
        "upstream": link(reverse("admin:tenants_upstream_change", args=[target.upstream_id]), target.upstream.name),
        "model": link(reverse("admin:tenants_model_change", args=[target.pk]), target.upstream_model or target.name),
        "teams": ", ".join(sorted(team.name for team in target.teams.all())),
        "restrictions": _restrictions(target),
        "requests": f"{found.requests:,}",
        "error_rate": found.error_rate,
        "has_failed": found.failed > 0,
        "first_token": duration(found.first_token_ms),
        "duration": duration(found.duration_ms),
        "cost": "–" if found.cost is None else rounded_amount(found.cost),
        "errors": [_error(error) for error in found.errors],
    }


def _in_flight(target: Model, shared: Mapping[tuple[str, str], int] | None) -> str:
    """Return the number of requests in flight; a dash if Redis cannot be reached."""
    if shared is None:
        return "–"
    if target.name == "*" and not target.upstream_model:
        # It serves models under many names.
        return f"{sum(number for (upstream_id, _), number in shared.items() if upstream_id == target.upstream_id):,}"
    return f"{shared.get((target.upstream_id, target.upstream_model or target.name), 0):,}"


def _restrictions(target: Model) -> list[str]:
    """Return the restrictions and limits of a target in words."""
    texts = []
    if names := sorted(str(key) for key in target.keys.all()):
        texts.append(f"only for {', '.join(names)}")
    if target.only_metadata:
        texts.append(f"only with metadata {json.dumps(target.only_metadata, ensure_ascii=False)}")
    limits = [
        (target.requests_per_minute, "requests per minute"),
        (target.tokens_per_minute, "tokens per minute"),
        (target.concurrent_requests, "requests at once"),
    ]
    if named := [f"{limit:,} {text}" for limit, text in limits if limit is not None]:
        texts.append(f"at most {', '.join(named)}")
    return texts


def _state(snapshot: Snapshot | None) -> str:
    """Return why a target gets no requests at present; empty if it gets them."""
    at = shared_now().timestamp()
    state = State.CLOSED if snapshot is None else snapshot.state(at)
    if snapshot is None or snapshot.reason is None or state is State.CLOSED:
        return ""
    until = "being tested" if state is State.HALF_OPEN else f"tested in {max(1, round(snapshot.open_until - at))} s"
    return f"No requests, {until}: {snapshot.reason.message}"


def _error(error: TargetError) -> dict[str, Any]:
    return {
        "when": when(error.at),
        "text": error.text,
        # Other objects, such as chat completions, may have no page, but they have usage records.
        "object": link(
            reverse("admin:responses_response_change", args=[error.object_id])
            if error.is_response
            else changelist_url("tenants_usagerecord", object_id=error.object_id),
            error.object_id,
        ),
    }

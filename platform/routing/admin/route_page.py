"""Page of one route: its targets are edited in a form, tested as edited, and stored together."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode

from core.clock import now
from core.crypto import InvalidToken
from routing import price_updates
from routing.admin.route_draft import DraftTarget, RouteDraft
from routing.target_test import CHECK_SECONDS, MAX_TOKENS, Check, Result, check_targets
from routing.upstream_check import run_sync
from tenants import directory
from tenants.capabilities import Capabilities
from tenants.console.audited_admin import audit_row
from tenants.console.roles import OPERATORS
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import Model, Upstream
from tenants.prices import UNKNOWN
from tenants.route_changes import RouteChanged, fallback_candidates, read_route, save_route

_AUDITED_LENGTH = 120


def route_url(name: str) -> str:
    """Return the address of the page of a public model."""
    return f"{reverse('console:model_route')}?{urlencode({'model': name})}"


@page("routes/edit/", name="model_route", viewers=OPERATORS)
def model_route(request: HttpRequest, viewer: Viewer) -> HttpResponseBase:
    """Serve the page. The buttons of its form change the form, test the targets as edited, or save the route."""
    name = request.GET.get("model", "")
    if not name:
        return HttpResponseRedirect(reverse("console:model_routes"))
    if "\0" in name:
        raise Http404
    stored = read_route(name)
    if not stored.targets and not stored.fallback_models:
        raise Http404
    if request.method != "POST":
        return _shown(request, RouteDraft(stored))
    draft, action = RouteDraft(stored, request.POST.copy()), request.POST.get("action", "")
    if action == "save":
        if draft.is_valid and _save(draft, viewer):
            messages.success(request, f"The route of {name} was saved.")
            return HttpResponseRedirect(route_url(name))
    elif action == "test":
        if draft.is_valid:
            return _shown(request, draft, checks=_test(draft, viewer))
    else:
        # A drop is a button without a name of its own: the script fills in this field.
        draft.change(request.POST.get("move") or action)
    return _shown(request, draft)


def _save(draft: RouteDraft, viewer: Viewer) -> bool:
    """Store the route. Otherwise, note the reason in the draft."""
    name = draft.stored.name
    try:
        with transaction.atomic():
            added = save_route(
                name=name,
                version=draft.data.get("version", ""),
                targets=[target.values() for target in draft.targets],
                fallback_models=draft.fallbacks,
                actor=viewer.actor,
            )
            for row in added:
                price_updates.add_listed_prices(row, at=now(), actor=viewer.actor)
    except RouteChanged:
        draft.take_over(read_route(name))
        return False
    except ValidationError as error:
        draft.errors += error.messages
        return False
    return True


def _test(draft: RouteDraft, viewer: Viewer) -> Mapping[str, list[Check]]:
    """Return the checks of the targets by upstream. The requests may be billed, so they are audited."""
    routes, checks = {}, {}
    for target in draft.targets:
        try:
            routes[target.upstream.pk] = _route(draft.stored.name, target)
        except InvalidToken:
            text = "The API key of the upstream cannot be decrypted."
            checks[target.upstream.pk] = [Check(name="Connection", result=Result.FAILED, text=text)]
    checks |= dict(zip(routes, run_sync(check_targets([*routes.values()]), seconds=2 * CHECK_SECONDS), strict=True))
    failed = [
        upstream_id for upstream_id in checks if any(check.result is Result.FAILED for check in checks[upstream_id])
    ]
    name = draft.stored.name
    after = {"upstreams": [*checks], "failed": failed}
    audit_row(viewer, Model(name=name), "", action="route.tested", target=name[:_AUDITED_LENGTH], after=after)
    return checks


def _route(name: str, target: DraftTarget) -> directory.Route:
    """Return the route through a target as edited."""
    values, row = target.values(), target.row
    return directory.Route(
        model=name,
        upstream_model=values.upstream_model or name,
        # Read again with its key.
        upstream=directory.upstream_of(Upstream.objects.get(pk=target.upstream.pk)),
        capabilities=row.capabilities() if row else Capabilities(),
        prices=row.prices() if row else UNKNOWN,
    )


def _shown(
    request: HttpRequest, draft: RouteDraft, *, checks: Mapping[str, list[Check]] | None = None
) -> HttpResponseBase:
    name = draft.stored.name
    groups: list[dict[str, Any]] = []
    for number, group in enumerate(draft.groups, 1):
        targets = [{"target": target, "checks": (checks or {}).get(target.upstream.pk)} for target in group.targets]
        groups.append({"number": number, "group": group, "targets": targets})
    context = {
        "name": name,
        "draft": draft,
        "groups": groups,
        "fallbacks": _linked(draft.fallbacks),
        "fallback_for": _linked(sorted({row.fallback_for for row in draft.stored.targets if row.fallback_for})),
        "candidates": [model for model in fallback_candidates(name) if model not in draft.fallbacks],
        "preview": draft.preview(),
        "tested": None if checks is None else {"passed": sum(map(_has_passed, checks.values())), "all": len(checks)},
        "test_seconds": CHECK_SECONDS,
        "max_tokens": MAX_TOKENS,
        "here": request.get_full_path(),
        "back": reverse("console:model_routes"),
    }
    return render(request, "console/routes/edit.html", title=f"Route of {name}", **context)


def _has_passed(checks: Iterable[Check]) -> bool:
    return all(check.result is not Result.FAILED for check in checks)


def _linked(names: Iterable[str]) -> list[dict[str, str]]:
    return [{"name": name, "url": route_url(name)} for name in names]

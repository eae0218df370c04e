"""Pages that call an upstream: a test call to a model, and the list of models that the upstream offers."""

import time
from dataclasses import fields
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse

from conversations.items import plain_text
from conversations.items.messages import InputMessage
from core.clock import now
from engine.turn import Sampling, TurnRequest, Usage
from providers.upstream import UpstreamModel
from routing import price_updates
from routing.upstream_check import check_upstream, run_sync
from tenants import directory
from tenants.console.audited_admin import audit_row
from tenants.console.roles import OPERATORS
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.models import Model, Upstream
from tenants.prices import PriceList, Quantities, rounded_amount

# Enough for a greeting, so that a test costs next to nothing.
MAX_TOKENS = 16
MAX_LISTED = 500
_QUANTITIES = {field.name for field in fields(Usage)} & {field.name for field in fields(Quantities)}
_PROMPT = "Say hello in one word."


@page("models/<int:model_id>/test/", name="model_test", viewers=OPERATORS)
def test_call(request: HttpRequest, viewer: Viewer, model_id: int) -> HttpResponseBase:
    """Make one call to the model (POST). The upstream bills it, and it is recorded for no team."""
    model = Model.objects.select_related("upstream").filter(pk=model_id).first()
    if model is None:
        raise Http404
    back = reverse("admin:tenants_model_change", args=[model_id])
    if request.method != "POST":
        return HttpResponseRedirect(back)
    # The route `*` serves any model name, so the operator enters one.
    name = request.POST.get("name", "").strip()[:200] if model.name == "*" else model.name
    if not name:
        messages.error(request, "Enter a model name: this route accepts any name.")
        return HttpResponseRedirect(back)
    result = run_sync(_call_model(directory.route_of(model, name)))
    after = {"model": name, "error": result.get("error", ""), "took_ms": result["took_ms"]}
    audit_row(viewer, model, "tested", after=after)
    context = {"model": model, "name": name, "result": result, "back": back, "max_tokens": MAX_TOKENS}
    if request.headers.get("HX-Request"):
        return TemplateResponse(request, "admin/tenants/model/test_result.html", context)
    return render(request, "admin/tenants/model/test_call.html", title=f"Test call: {name}", **context)


@page("upstreams/<str:upstream_id>/models/", name="upstream_models", viewers=OPERATORS)
def upstream_models(request: HttpRequest, viewer: Viewer, upstream_id: str) -> HttpResponseBase:
    """List the models that the upstream offers; POST adds a route for one of them."""
    upstream = Upstream.objects.filter(pk=upstream_id).first()
    if upstream is None:
        raise Http404
    if request.method == "POST":
        name = request.POST.get("name", "").strip()[:200]
        if name:
            model, is_new = Model.objects.get_or_create(name=name, upstream=upstream)
            if is_new:
                audit_row(viewer, model, "created", after={"name": name, "upstream": upstream.pk})
                price_updates.add_listed_prices(model, at=now(), actor=viewer.actor)
            messages.success(request, f"{name} is routed to {upstream.name}." if is_new else f"{name} already exists.")
        return HttpResponseRedirect(request.get_full_path())
    check = run_sync(check_upstream(directory.upstream_of(upstream)))
    known = set(Model.objects.filter(upstream=upstream).values_list("name", flat=True))
    context = {
        "upstream": upstream,
        "rows": [(name, name in known) for name in check.models[:MAX_LISTED]],
        "is_cut": len(check.models) > MAX_LISTED,
        "error": check.error,
        "back": reverse("admin:tenants_upstream_change", args=[upstream_id]),
    }
    return render(request, "admin/tenants/upstream/models.html", title=f"Models of {upstream.name}", **context)


async def _call_model(route: directory.Route) -> dict[str, Any]:
    began = time.monotonic()

    def elapsed() -> int:
        return round((time.monotonic() - began) * 1000)

    message = InputMessage.model_validate({"type": "message", "role": "user", "content": _PROMPT})
    turn_request = TurnRequest(
        model=route.upstream_model,
        instructions=None,
        items=[message],
        sampling=Sampling(max_output_tokens=MAX_TOKENS),
        first_output_index=0,
    )
    began_at, stream, first = now(), UpstreamModel(route).open(turn_request), None
    try:
        # The stream is consumed as in a run, which also measures the time to the first token.
        async for events in stream.events():
            if first is None and events:
                first = elapsed()
        result = stream.result()
    except TimeoutError:
        return {"took_ms": elapsed(), "text": "", "error": "The upstream did not respond in time."}
    if result.failure is not None:
        error = result.failure.message
        return {"took_ms": elapsed(), "first_ms": first, "text": "", "error": error, "status": result.failure.status}
    return {
        "took_ms": elapsed(),
        "first_ms": first,
        "cost": _cost(result.usage, route.prices, at=began_at) if result.usage else "",
        "text": " ".join(filter(None, (plain_text(item) for item in result.items))),
        "status": 200,
        "tokens": (result.usage.input_tokens, result.usage.output_tokens) if result.usage else None,
    }


def _cost(usage: Usage, prices: PriceList, *, at: datetime) -> str:
    """Return the cost of a call; empty if it has no price."""
    quantities = Quantities(**{name: getattr(usage, name) for name in _QUANTITIES}, calls=1)
    cost = prices.cost(quantities, tier=usage.service_tier, at=at)
    return "" if cost is None else rounded_amount(cost.total)

"""Trying a model for real, and asking an upstream what it has: for operators, on the pages of models and upstreams."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse

from conversations.items import plain_text
from conversations.items.messages import InputMessage
from responses.engine.turn import Sampling, TurnRequest, TurnResult
from responses.providers.clients import client_for, close_clients, to_failure
from responses.providers.routing import model_for
from tenants import directory
from tenants.console.audited_admin import audit_row
from tenants.console.roles import OPERATORS
from tenants.console.site import page, render
from tenants.models import Model, Upstream

MOST_TOKENS = 16
MOST_LISTED = 500
_SECONDS = 30
_WORDS = "Say hello in one word."
_MASK = "•••"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of a call. `error` is the upstream's own, without its key; empty: it answered."""

    took_ms: int
    first_ms: int | None = None
    words: str = ""
    error: str = ""
    status: int | None = None
    tokens: tuple[int, int] | None = None


@page("models/<int:model_id>/test/", name="model_test", viewers=OPERATORS)
def test_call(request: HttpRequest, model_id: int) -> HttpResponseBase:
    """One small call of the model, on POST; it costs what it costs, and belongs to no team."""
    model = Model.objects.select_related("upstream").filter(pk=model_id).first()
    if model is None:
        raise Http404
    back = reverse("admin:tenants_model_change", args=[model_id])
    if request.method != "POST":
        return HttpResponseRedirect(back)
    name = request.POST.get("name", "").strip()[:200] if model.name == "*" else model.name
    if not name:
        messages.error(request, "Say which model to call: the row routes every name.")
        return HttpResponseRedirect(back)
    trial = _now(_try(directory.route_of(model, name)))
    after = {"model": name, "error": trial.error, "took_ms": trial.took_ms}
    audit_row(request, model, "tested", after=after)
    context = {"model": model, "name": name, "trial": trial, "back": back, "most": MOST_TOKENS}
    return render(request, "admin/tenants/model/trial.html", title=f"Test call of {name}", **context)


@page("upstreams/<str:upstream_id>/models/", name="upstream_models", viewers=OPERATORS)
def upstream_models(request: HttpRequest, upstream_id: str) -> HttpResponseBase:
    """What the upstream says it has, each with a button that adds it; POST adds one under its own name."""
    upstream = Upstream.objects.filter(pk=upstream_id).first()
    if upstream is None:
        raise Http404
    if request.method == "POST":
        name = request.POST.get("name", "").strip()[:200]
        if name:
            model, made = Model.objects.get_or_create(name=name, upstream=upstream)
            if made:
                audit_row(request, model, "created", after={"name": name, "upstream": upstream.pk})
            messages.success(request, f"{name} is routed to {upstream.name}." if made else f"{name} was there before.")
        return HttpResponseRedirect(request.get_full_path())
    listed, error = _now(_list(directory.upstream_of(upstream)))
    known = set(Model.objects.filter(upstream=upstream).values_list("name", flat=True))
    context = {
        "upstream": upstream,
        "rows": [(name, name in known) for name in listed[:MOST_LISTED]],
        "is_cut": len(listed) > MOST_LISTED,
        "error": error,
        "back": reverse("admin:tenants_upstream_change", args=[upstream_id]),
    }
    return render(request, "admin/tenants/upstream/models.html", title=f"Models of {upstream.name}", **context)


def _now(work: Coroutine[Any, Any, Found]) -> Found:
    """The result, from a loop of its own, whose connections end with it."""

    async def run() -> Found:
        try:
            return await asyncio.wait_for(work, _SECONDS)
        finally:
            await close_clients()

    return asyncio.run(run())


async def _try(route: directory.Route) -> Trial:
    began = time.monotonic()
    said = InputMessage.model_validate({"type": "message", "role": "user", "content": _WORDS})
    wanted = TurnRequest(
        model=route.upstream_model,
        instructions=None,
        items=[said],
        sampling=Sampling(max_output_tokens=MOST_TOKENS),
        first_output_index=0,
    )
    stream, first = model_for(route).open(wanted), None
    try:
        async for events in stream.events():
            if first is None and events:
                first = _since(began)
        result = stream.result()
    except TimeoutError:
        return Trial(took_ms=_since(began), error="It did not answer in time.")
    return _trial(result, route, took_ms=_since(began), first_ms=first)


def _trial(result: TurnResult, route: directory.Route, *, took_ms: int, first_ms: int | None) -> Trial:
    words = " ".join(filter(None, (plain_text(item) for item in result.items)))
    usage = (result.usage.input_tokens, result.usage.output_tokens) if result.usage else None
    if result.failure is not None:
        error = _redacted(result.failure.message, route.upstream.api_key)
        return Trial(took_ms=took_ms, first_ms=first_ms, error=error, status=result.failure.status)
    return Trial(took_ms=took_ms, first_ms=first_ms, words=words, status=200, tokens=usage)


async def _list(upstream: directory.UpstreamEndpoint) -> tuple[list[str], str]:
    """The names, sorted, or why there are none."""
    try:
        answer = await client_for(upstream).get("/models", cast_to=object)
    except openai.APIError as error:
        return [], _redacted(to_failure(error).message, upstream.api_key)
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        return [], "The upstream's answer is no list of models."
    return sorted({row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)}), ""


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _redacted(words: str, secret: str) -> str:
    return words.replace(secret, _MASK) if secret else words

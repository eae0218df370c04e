"""The guided page: test a server, choose its models, and save all of it at once.

What the models can do and what they cost is set before, or taken from the server and from published prices. The page is
one form. Each step sends the whole form and replaces a part of the page, so the key stays in its field of the browser:
it is in no answer, and nothing is stored before the last step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from routing.admin.guided.forms import (
    DETECT,
    MAX_CHOSEN,
    ChosenModelForm,
    ChosenModels,
    ServerForm,
    detected,
    existing_names,
    initial_of,
)
from routing.admin.guided.presets import PRESETS
from routing.api_detection import detect_api
from routing.connection import connect_upstream
from routing.detection import ModelDetails, Support
from routing.probes import MAX_MODELS, SECONDS, probe_models
from routing.upstream_check import UpstreamCheck, check_upstream, run_sync
from tenants import services
from tenants.console.roles import ADMINISTRATORS_ONLY, OPERATORS
from tenants.console.site import may_open, page, render
from tenants.console.viewer import Viewer
from tenants.directory import UpstreamEndpoint
from tenants.models import Model, Upstream, WireApi

MAX_LISTED = 1000
"""Maximum number of models that the page lists."""

_LONGEST_NAME = 200


@page("upstreams/connect/", name="upstream_connect", viewers=OPERATORS)
def connect(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Serve the page (GET) and its steps (POST), which answer with a part of the page."""
    may_enter_key = viewer.may(ADMINISTRATORS_ONLY)
    if request.method != "POST":
        form = ServerForm(may_enter_key=may_enter_key)
        return render(request, "console/connect/page.html", title="Add upstream", form=form, presets=PRESETS)
    server = ServerForm(request.POST, may_enter_key=may_enter_key)
    match request.POST.get("step"):
        case "test":
            return _test(request, server)
        case "choose":
            return _choose(request, server)
        case "detect":
            return _detect(request, server)
        case "connect":
            return _connect(request, server, actor=viewer.actor)
        case _:
            address = server.cleaned_data["address"] if server.endpoint() else ""
            chosen = ChosenModels(request.POST, base_url=address)
            return _save(request, server, chosen.bound(), actor=viewer.actor)


@page("upstreams/<str:upstream_id>/connected/", name="upstream_connected", viewers=OPERATORS)
def connected(request: HttpRequest, viewer: Viewer, upstream_id: str) -> HttpResponse:
    """Show a new upstream with a test request for each model, and the next steps."""
    upstream = Upstream.objects.defer("api_key").filter(pk=upstream_id).first()
    if upstream is None:
        raise Http404
    rows = list(Model.objects.filter(upstream=upstream).prefetch_related("price_entries").order_by("name"))
    context = {
        "upstream": upstream,
        "rows": rows,
        "model": next((row.name for row in rows if row.name != "*"), "model"),
        "api": request.build_absolute_uri("/v1"),
        "has_playground": may_open(viewer, "playground"),
    }
    return render(request, "console/connect/connected.html", title=f"Upstream {upstream.name} is connected", **context)


def _test(request: HttpRequest, server: ServerForm) -> HttpResponse:
    """Call the server and list its models. Nothing is saved."""
    endpoint = server.endpoint()
    if endpoint is None:
        return _problems(request, "models.html", server.problems(with_name=False))
    check, suggested = _checked(endpoint)
    api = server.cleaned_data["api"]
    if not check.error and api == DETECT:
        api = run_sync(detect_api(endpoint))
    taken = {*existing_names()}
    unused = [name for name in check.models if name not in taken]
    # More than can be added at once is the list of a provider, from which users choose.
    selected = {*unused} if len(unused) <= MAX_CHOSEN else set()
    context = {
        "check": check,
        "suggested": suggested,
        "api": WireApi(api).label if api != DETECT else "",
        "detected_api": api,
        "models": [
            (name, _summary(check.details[name], is_taken=name in taken), name in selected)
            for name in check.models[:MAX_LISTED]
        ],
        "selected": len(selected),
        "hidden": max(0, len(check.models) - MAX_LISTED),
    }
    return _part(request, "models.html", **context)


def _checked(endpoint: UpstreamEndpoint) -> tuple[UpstreamCheck, str]:
    """Return the check of a server, and the address below which it lists models, if that is another one."""
    check = _check(endpoint)
    if check.status != HTTPStatus.NOT_FOUND or endpoint.base_url.endswith("/v1"):
        return check, ""
    other = replace(endpoint, base_url=f"{endpoint.base_url}/v1")
    return check, other.base_url if not _check(other).error else ""


def _check(endpoint: UpstreamEndpoint) -> UpstreamCheck:
    try:
        return run_sync(check_upstream(endpoint))
    except TimeoutError:
        return UpstreamCheck(error="The server did not answer in time.")


def _choose(request: HttpRequest, server: ServerForm) -> HttpResponse:
    """Show the forms of the chosen models, with what the server says about them."""
    forms, problems = _selected(request, server)
    return _part(request, "chosen.html", forms=forms, problems=problems)


def _connect(request: HttpRequest, server: ServerForm, *, actor: str) -> HttpResponse:
    """Save the chosen models with what the server says about them, or show what has to be corrected."""
    forms, problems = _selected(request, server)
    if problems:
        return _problems(request, "chosen.html", problems)
    return _save(request, server, [form.submitted() for form in forms], actor=actor)


def _selected(request: HttpRequest, server: ServerForm) -> tuple[list[ChosenModelForm], list[str]]:
    """Return the forms of the chosen models, with what was entered or what the server says; or the problems."""
    endpoint = server.endpoint()
    if endpoint is None:
        return [], server.problems(with_name=False)
    others = (name.strip() for name in request.POST.get("others", "").split(","))
    names = list(dict.fromkeys(filter(None, [*request.POST.getlist("models"), *others])))
    if not names:
        return [], ["Select a model, or enter the name of one."]
    if len(names) > MAX_CHOSEN or any(len(name) > _LONGEST_NAME for name in names):
        return [], [f"Select at most {MAX_CHOSEN} models."]
    chosen = ChosenModels(request.POST, base_url=endpoint.base_url)
    entered = chosen.entered()
    details: Mapping[str, ModelDetails] = {}
    if any(name not in entered for name in names):
        details = _check(endpoint).details
    initial = [entered.get(name) or initial_of(name, details.get(name, ModelDetails())) for name in names]
    return chosen.unbound(initial), []


def _detect(request: HttpRequest, server: ServerForm) -> HttpResponse:
    """Make small calls to the chosen models and show what they have found. Other values stay as entered."""
    endpoint = server.endpoint()
    if endpoint is None:
        return _problems(request, "chosen.html", server.problems(with_name=False))
    endpoint = replace(endpoint, wire_api=_api(request, server))
    chosen = ChosenModels(request.POST, base_url=endpoint.base_url)
    entered = chosen.entered()
    names = [name for name in entered if name != "*"][:MAX_MODELS]
    # The calls have a limit of their own.
    probes = run_sync(probe_models(endpoint, names), seconds=2 * SECONDS)
    initial = [
        {**values, **(detected(probes[name].details) if name in probes else {})} for name, values in entered.items()
    ]
    forms = chosen.unbound(initial)
    for form, name in zip(forms, entered, strict=True):
        form.notes = dict(probes[name].notes) if name in probes else {"": "Not tested."}
    return _part(request, "chosen.html", forms=forms)


def _save(request: HttpRequest, server: ServerForm, forms: list[ChosenModelForm], *, actor: str) -> HttpResponse:
    """Save everything, and go to the page of the new upstream; or show what has to be corrected."""
    problems = server.problems()
    if not forms:
        problems.append("Select a model, or enter the name of one.")
    # Every form is validated, so that all errors are shown.
    if any([not form.is_valid() for form in forms]):  # noqa: C419
        problems.append("Correct the errors of the models below.")
    if problems:
        return _part(request, "chosen.html", forms=forms, problems=problems)
    given = server.cleaned_data
    try:
        upstream = connect_upstream(
            name=given["name"],
            base_url=given["address"],
            api_key=given["new_api_key"],
            wire_api=_api(request, server),
            models=[form.new_model() for form in forms],
            actor=actor,
        )
    except services.NameTaken:
        problems.append("Name: There is an upstream of this name.")
    except ValidationError as error:
        problems += error.messages
    if problems:
        return _part(request, "chosen.html", forms=forms, problems=problems)
    url = reverse("console:upstream_connected", args=[upstream.pk])
    return HttpResponse(headers={"HX-Redirect": url})


def _api(request: HttpRequest, server: ServerForm) -> str:
    """Return the chosen API, or the one that the last test has detected."""
    api = server.cleaned_data["api"]
    if api == DETECT:
        api = request.POST.get("detected_api", "")
    return api if api in WireApi.values else WireApi.CHAT_COMPLETIONS.value


def _summary(details: ModelDetails, *, is_taken: bool) -> str:
    """Return what is known about a model, in a few words."""
    window = f"{details.context_window:,} tokens" if details.context_window else ""
    supports = (("tools", details.tools), ("images", details.images), ("reasoning", details.reasoning))
    known = [name for name, support in supports if support in {Support.YES, Support.LIMITED}]
    exists = "name of an existing model" if is_taken else ""
    return ", ".join(filter(None, [window, *known, exists]))


def _problems(request: HttpRequest, template: str, problems: Sequence[str]) -> HttpResponse:
    return _part(request, template, problems=problems)


def _part(request: HttpRequest, template: str, **context: Any) -> HttpResponse:
    return TemplateResponse(request, f"console/connect/{template}", context)

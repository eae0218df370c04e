"""Page that compares two responses, and the page that suggests what to compare a response with."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from console.markdown import without_markup
from console.widgets import copyable, duration, when
from responses.admin import cells
from responses.admin.compare.items import compare_items
from responses.admin.compare.suggestions import suggestions
from responses.admin.compare.values import compare_facts, compare_figures, compare_parameters, compare_timelines
from responses.models import Response
from tenants.console.content_access import HIDDEN, read_allowed
from tenants.console.permissions import TeamScoped
from tenants.console.site import page, render
from tenants.console.viewer import Viewer

# The browser jumps to it.
FIRST_DIFFERENCE = "#first-difference"


def comparison_url(left: str, right: str = "") -> str:
    """Return the URL of the comparison of two responses, or of the choice of the second one."""
    query = urlencode({"a": left, "b": right} if right else {"a": left})
    return f"{reverse('console:compare')}?{query}{FIRST_DIFFERENCE if right else ''}"


@page("compare/", name="compare")
@require_safe
def compare(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Compare `?a=` with `?b=`, or suggest what to compare `?a=` with."""
    responses: Any = admin.site.get_model_admin(Response)
    first, second = (request.GET.get(name, "").strip() for name in "ab")
    if not first:
        return render(request, "admin/responses/compare/choose.html", title="Compare responses", original=None)
    left = responses.get_or_404(request, first)
    if not second:
        return _choose(request, viewer, left)
    right = responses.get_or_404(request, second)
    if left.pk == right.pk:
        return HttpResponseRedirect(comparison_url(left.pk))
    readable = [_is_readable(viewer, response) for response in (left, right)]
    sections = compare_items(left, right, is_readable=all(readable))
    lanes, work = compare_timelines(left, right)
    hidden = next((side.team_id for side, shown in zip((left, right), readable, strict=True) if not shown), "")
    return render(
        request,
        "admin/responses/compare/page.html",
        title="Compare responses",
        sides=[_side(name, side) for name, side in zip("AB", (left, right), strict=True)],
        swap_url=comparison_url(right.pk, left.pk),
        first_difference=next((row for section in sections for row in section.rows if row.number), None),
        differences=sum(section.count for section in sections),
        sections=sections,
        is_readable=all(readable),
        hidden_team=hidden if left.stored and right.stored else "",
        parameters=compare_parameters(left, right) if all(readable) else None,
        facts=compare_facts(left, right),
        figures=compare_figures(left, right),
        lanes=lanes,
        work=work,
    )


def _choose(request: HttpRequest, viewer: Viewer, response: Response) -> HttpResponse:
    can_read = viewer.may_read(response.team_id)
    if can_read:
        read_allowed(viewer, response)
    rows: Any = admin.site.get_model_admin(Response)
    found = suggestions(response, TeamScoped.get_queryset(rows, request), can_read=can_read)
    return render(
        request,
        "admin/responses/compare/choose.html",
        title="Compare with…",
        original=response,
        side=_side("A", response),
        suggestions=[
            {
                **_side("", suggestion.response),
                "reason": suggestion.reason,
                "url": comparison_url(response.pk, suggestion.response.pk),
                "preview": (without_markup(suggestion.response.input_preview) if can_read else HIDDEN) or "–",
            }
            for suggestion in found
        ],
    )


def _is_readable(viewer: Viewer, response: Response) -> bool:
    return response.stored and read_allowed(viewer, response)


def _side(name: str, response: Response) -> dict[str, Any]:
    return {
        "name": name,
        "response": response,
        "id_link": copyable(response.pk, href=cells.url(response.pk)),
        "status": cells.status(response),
        "created": when(response.created_at),
        "took": duration(response.duration_ms),
        "other_url": comparison_url(response.pk),
    }

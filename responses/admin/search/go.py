"""`/admin/go/<any id>` leads to the page that shows it. What a user may not see is as unknown as what is not there."""

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from responses.admin.search.id_lookup import MAX_ID, kind_of, page_of
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render

_SHOWN_OF_KEYS = 12


@page("go/", name="go_form", viewers=EVERY_ROLE)
def form(request: HttpRequest) -> HttpResponse:
    """Ask for an id; with one, go there."""
    wanted = request.GET.get("id", "").strip()
    if wanted:
        return HttpResponseRedirect(reverse("console:go", args=[wanted]))
    return render(request, "console/go.html", title="Go to an id", is_fullwidth=False, wanted="")


@page("go/<path:wanted>", name="go", viewers=EVERY_ROLE)
def go(request: HttpRequest, wanted: str) -> HttpResponse:
    """The page of an id, or 404 with what the id looks like."""
    wanted = wanted.strip().rstrip("/")
    found = page_of(request, wanted)
    if found is not None:
        return HttpResponseRedirect(found)
    kind = kind_of(wanted)
    answer = render(
        request,
        "console/go.html",
        title="Nothing has this id",
        is_fullwidth=False,
        wanted=_shown(wanted),
        looks_like=kind.name if kind else "",
    )
    answer.status_code = 404
    return answer


def _shown(wanted: str) -> str:
    """The id as the page repeats it: nobody's secret."""
    if wanted.startswith("sk-") and len(wanted) > _SHOWN_OF_KEYS:
        return f"{wanted[:_SHOWN_OF_KEYS]}…"
    return wanted[:MAX_ID]

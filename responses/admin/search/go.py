"""Redirect from `/admin/go/<id>` to the page that shows the object.

An object that the user may not see is reported like an unknown id.
"""

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from responses.admin.search.id_lookup import MAX_ID, id_kind_of, page_of
from tenants.console.roles import EVERY_ROLE
from tenants.console.site import page, render

_VISIBLE_KEY_PREFIX = 12


@page("go/", name="go_form", viewers=EVERY_ROLE)
def form(request: HttpRequest) -> HttpResponse:
    """Render the form, or redirect to the page of the id that was submitted."""
    public_id = request.GET.get("id", "").strip()
    if public_id:
        return HttpResponseRedirect(reverse("console:go", args=[public_id]))
    return render(request, "console/go.html", title="Open by ID", is_fullwidth=False, public_id="")


@page("go/<path:public_id>", name="go", viewers=EVERY_ROLE)
def go(request: HttpRequest, public_id: str) -> HttpResponse:
    """Redirect to the page of an id, or render a 404 page that names the kind of the id."""
    # Django appends a slash to the URL, and pasted ids often have spaces around them.
    public_id = public_id.strip().rstrip("/")
    url = page_of(request, public_id)
    if url is not None:
        return HttpResponseRedirect(url)
    kind = id_kind_of(public_id)
    page_404 = render(
        request,
        "console/go.html",
        title="Not found",
        is_fullwidth=False,
        public_id=_masked(public_id),
        looks_like=kind.name if kind else "",
    )
    page_404.status_code = 404
    return page_404


def _masked(public_id: str) -> str:
    # The user may have pasted a complete API key. The page shows only the prefix, which is not secret.
    if public_id.startswith("sk-") and len(public_id) > _VISIBLE_KEY_PREFIX:
        return f"{public_id[:_VISIBLE_KEY_PREFIX]}…"
    return public_id[:MAX_ID]

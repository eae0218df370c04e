# mypy: allow-subclassing-any
"""Read-only lists whose rows have pages and fragments of their own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from typing_extensions import override

from console.logs import LogAdmin
from tenants.console.permissions import TeamScoped
from tenants.console.viewer import viewer_of


def start_of(query: QueryDict) -> int:
    """Return `?from=`, the position at which a page of a long list or text starts; 0 if missing or not a number."""
    text = query.get("from", "")
    return int(text) if text.isdecimal() and len(text) <= 9 else 0


RowView = Callable[..., HttpResponseBase]


class RowPages(LogAdmin, TeamScoped):
    """List of rows that belong to teams.

    Each page of a row is a view function that takes the request, the viewer, the row and the URL parameters.
    """

    # Name of the URL, route below the page of the row, view.
    row_views: Sequence[tuple[str, str, RowView]] = ()

    @override
    def get_urls(self) -> list[URLPattern]:
        urls: list[URLPattern] = super().get_urls()
        return [
            path(
                f"<path:object_id>/{route}",
                self.admin_site.admin_view(partial(self._serve, view)),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{name}",
            )
            for name, route, view in self.row_views
        ] + urls

    def _serve(self, view: RowView, request: HttpRequest, object_id: str, **kwargs: str) -> HttpResponseBase:
        return view(request, viewer_of(request), self.get_or_404(request, object_id), **kwargs)

    @override
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        # The query set of the base class: the page of a row needs no annotations and filters of the list.
        rows = TeamScoped.get_queryset(self, request).select_related("team", "api_key")
        return rows.filter(pk=object_id.replace("\x00", "")).first()

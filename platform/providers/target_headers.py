"""Headers that name the upstream of an answer, if the setting `UPSTREAM_HEADERS` is on."""

from urllib.parse import quote

from django.conf import settings

from core.http import response_headers
from tenants.directory import Route


def add_target_headers(route: Route) -> None:
    """Add the headers to the answer of the current request. The target that answers last counts."""
    if settings.UPSTREAM_HEADERS:
        # Upstreams may have names in any language; headers are ASCII.
        headers = {"x-upstream": quote(route.upstream.name), "x-upstream-model": quote(route.upstream_model)}
        response_headers.add(headers)

"""Middleware of the site: static files, and the answer to methods that a page does not support."""

import gzip
from collections.abc import Callable
from functools import lru_cache

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from typing_extensions import override
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]

from core.errors import MethodNotAllowed
from core.http.rendering import accepts_gzip, error_response
from server.assets.bundles import CACHE_FOREVER, Bundle, bundle_at
from server.assets.storage import version_of

_COMPRESSIBLE = ("text/", "image/svg+xml", "application/javascript", "application/json")
# Smaller files fit into one packet anyway.
_MIN_BYTES = 1400


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise, with files compressed on their first request: there is no build step that could do it."""

    @override
    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if (bundle := bundle_at(request.path_info)) is not None:
            return _bundle_response(request, bundle)
        response: HttpResponseBase = super().__call__(request)
        file = self.files.get(request.path_info)
        if file is not None and request.META["QUERY_STRING"] == _version(request.path_info):
            response["Cache-Control"] = CACHE_FOREVER
        # Only static files: compressing a page with secrets and text of an attacker would reveal the secrets by size.
        if file is None or not response.get("Content-Type", "").startswith(_COMPRESSIBLE):
            return response
        patch_vary_headers(response, ["Accept-Encoding"])
        long = int(response.get("Content-Length", "0")) >= _MIN_BYTES
        if response.status_code != 200 or not long or not accepts_gzip(request.headers.get("Accept-Encoding", "")):
            return response
        body = _compressed(file.alternatives[0][1])
        headers = {**response.headers, "Content-Encoding": "gzip", "Content-Length": str(len(body))}
        response.close()
        return HttpResponse(b"" if request.method == "HEAD" else body, headers=headers)


@lru_cache(maxsize=256)
def _compressed(path: str) -> bytes:
    # Files do not change while the process runs. In debug mode WhiteNoise has no list of files, so nothing gets here.
    with open(path, "rb") as file:  # noqa: PTH123 - WhiteNoise has a string
        return gzip.compress(file.read(), mtime=0)


def _version(path: str) -> str:
    # An empty query is that of a URL without a version.
    return version_of(path.removeprefix(settings.STATIC_URL)) or "-"


def _bundle_response(request: HttpRequest, bundle: Bundle) -> HttpResponseBase:
    headers = {"Cache-Control": CACHE_FOREVER, "Vary": "Accept-Encoding"}
    body = bundle.content
    if accepts_gzip(request.headers.get("Accept-Encoding", "")):
        body, headers["Content-Encoding"] = bundle.compressed, "gzip"
    headers["Content-Length"] = str(len(body))
    return HttpResponse(b"" if request.method == "HEAD" else body, content_type=bundle.content_type, headers=headers)


class MethodNotAllowedMiddleware:
    """Adds a body to the empty 405 responses of Django's decorators: a page for browsers, else the API's JSON error."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not isinstance(response, HttpResponseNotAllowed) or response.content:
            return response
        error = MethodNotAllowed(request.method or "", request.path, allowed=response["Allow"].split(", "))
        if "text/html" not in request.headers.get("Accept", ""):
            return error_response(error)
        page = render(request, "405.html", {"message": error.message}, status=error.status)
        page["Allow"] = response["Allow"]
        return page

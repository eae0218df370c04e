# mypy: allow-subclassing-any
"""Compression of pages."""

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from typing_extensions import override

_COMPRESSED = ("text/html", "text/javascript")


class PageCompressionMiddleware(GZipMiddleware):
    """Compresses pages; streams and downloads stay as they are.

    An attacker who can add text to a page and measure its size could guess a secret on it (BREACH). Django masks CSRF
    tokens anew in each page and adds a random number of bytes; pages that show a new secret are
    not compressed.
    """

    @override
    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_page = isinstance(response, HttpResponse) and response.get("Content-Type", "").startswith(_COMPRESSED)
        if not is_page or getattr(response, "shows_secret", False):
            return response
        return super().process_response(request, response)

"""`/favicon.ico`, which browsers request for pages without an icon of their own, such as JSON."""

from functools import cache

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import cache_control


@cache_control(public=True, max_age=86_400)
def view(_: HttpRequest) -> HttpResponse:
    """Respond with the icon in the format of old browsers; pages refer to the SVG file."""
    return HttpResponse(_icon(), content_type="image/x-icon")


@cache
def _icon() -> bytes:
    content: bytes = (settings.BASE_DIR / "static" / "favicon.ico").read_bytes()
    return content

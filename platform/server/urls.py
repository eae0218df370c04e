"""URLs of the site and of the API. Requests that run models do not get here: `server.asgi` calls their apps."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from django.views.generic import RedirectView

from deliveries.notifications.views import unsubscribe
from guide import views as guide
from server.web import favicon, health
from server.web.openapi_file import openapi_json
from tenants import sign_in
from tenants.console.site import page_urls


def public(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let a view that everyone may read answer other methods with 405; a check of CSRF tokens would answer 403."""
    return csrf_exempt(require_safe(view))


# Here and not in the settings: only processes that serve URLs need the pages.
admin.autodiscover()

handler400 = "server.web.error_pages.bad_request"
handler500 = "server.web.error_pages.server_error"
urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
    path("account/unsubscribe/<str:token>/", unsubscribe, name="unsubscribe"),
    path("account/", include("tenants.sign_in_urls")),
    path("admin/login/", sign_in.redirect_to_login, name="enter"),
    path("admin/", include((page_urls(), "console"))),
    path("admin/", admin.site.urls),
    path("livez", public(health.livez), name="livez"),
    path("readyz", public(health.readyz), name="readyz"),
    path("version", public(health.version), name="version"),
    path("metrics", public(health.metrics), name="metrics"),
    path("openapi.json", public(openapi_json), name="openapi"),
    # The API reference.
    path("docs", public(RedirectView.as_view(url="/docs/guide/reference/api/index.html")), name="docs"),
    path("favicon.ico", public(favicon.view), name="favicon"),
    path("docs/guide", RedirectView.as_view(url="/docs/guide/"), name="guide_home"),
    path("docs/guide/", public(guide.page), {"path": "index.html"}),
    path("docs/guide/<path:path>", public(guide.page), name="guide"),
    path("llms.txt", public(guide.page), {"path": "llms.txt"}, name="llms"),
    path("v1/", include("server.api_urls")),
]

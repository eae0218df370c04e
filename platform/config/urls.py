"""URLs of the site and of the API. Requests for streams never get here: `config.asgi` dispatches them to consumers."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView, TemplateView

from config import health
from guide import views as guide
from responses.api import openapi
from tenants import sign_in
from tenants.console.site import page_urls

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
    path("account/", include("tenants.sign_in_urls")),
    path("admin/login/", sign_in.redirect_to_login, name="enter"),
    path("admin/", include((page_urls(), "console"))),
    path("admin/", admin.site.urls),
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("version", health.version, name="version"),
    path("metrics", health.metrics, name="metrics"),
    path("openapi.json", openapi.view, name="openapi"),
    # The API reference, rendered by Redoc.
    path("docs", TemplateView.as_view(template_name="docs.html"), name="docs"),
    path("docs/guide", RedirectView.as_view(url="/docs/guide/"), name="guide_home"),
    path("docs/guide/", guide.page, {"path": "index.html"}),
    path("docs/guide/<path:path>", guide.page, name="guide"),
    path("llms.txt", guide.page, {"path": "llms.txt"}, name="llms"),
    path("v1/", include("responses.api.urls")),
]

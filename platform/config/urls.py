"""URLs of the site and of the API. Requests for streams never get here: `config.asgi` dispatches them to consumers."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from config import health
from conversations.api import urls as conversation_urls
from responses.api import docs
from responses.requests import conversation_items
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
    path("openapi.json", docs.openapi, name="openapi"),
    path("docs", docs.page, name="docs"),
    path("v1/", include(conversation_urls.urlpatterns(check_items=conversation_items.check))),
    path("v1/", include("responses.containers.api.urls")),
    path("v1/", include("responses.api.urls")),
]

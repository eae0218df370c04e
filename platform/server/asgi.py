"""ASGI application: the API under /v1 (`server.web.api`), the sockets, and the site for everything else."""

import os
from collections.abc import Awaitable
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
# Before the imports below: they import models, which need the app registry.
django.setup()

from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.core.asgi import get_asgi_application
from django.http import HttpResponse, parse_cookie
from django.template.loader import render_to_string

from core.admission.request_bodies import FREE_BYTES, BodyGuard, BodyRule
from core.db.db_threads import in_db_thread
from core.db.wait_limit import limit_waits
from core.errors import ApiError, RequestTooLarge
from core.http.asgi import (
    App,
    Receive,
    Scope,
    Send,
    header,
    send_response,
    with_request_id,
)
from core.http.rendering import error_response
from core.load.draining import draining
from core.telemetry.metrics import OTHER
from gateway.anthropic.api import with_anthropic_clients
from limits import refused_requests
from responses.admin.live.follow import FollowSocket
from responses.admin.live.socket import LiveSocket
from responses.api.websocket import ResponseSocket
from server.api_urls import ENDPOINTS
from server.web import health
from server.web.api import PACE, ApiApplication
from server.web.cors import with_cors

limit_waits(settings.DATABASE_TIMEOUT_SECONDS)
_site = get_asgi_application()
_api = ApiApplication(ENDPOINTS)


async def _admit_session(scope: Scope) -> str:
    # Called only for bodies larger than any form of a signed-out visitor, so the query for the session is rare.
    cookies = parse_cookie(header(scope, b"cookie"))
    user_id = await in_db_thread(lambda: SessionStore(cookies.get(settings.SESSION_COOKIE_NAME)).get(SESSION_KEY))
    if user_id is None:
        raise RequestTooLarge(f"The request body is too large: the limit is {FREE_BYTES // 1024} KiB.")
    return f"user {user_id}"


def _page_rule(_: Scope) -> BodyRule:
    return BodyRule(max_bytes=settings.MAX_PAGE_BODY_BYTES, admit=_admit_session)


def _page_error(scope: Scope, error: ApiError) -> HttpResponse:
    if "text/html" not in header(scope, b"accept"):
        return error_response(error)
    return HttpResponse(render_to_string("refused.html", {"error": error}), status=error.status)


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    # Django's handler starts a thread for each request. A probe must neither wait for a thread nor cost as much as one.
    if scope["path"] == "/livez" and scope["method"] in {"GET", "HEAD"}:
        await send_response(health.livez(), send)
    elif scope["path"] == "/readyz" and scope["method"] in {"GET", "HEAD"}:
        # Probes send an address as the host, which the site would refuse with a line in the log.
        await send_response(await health.async_readyz(), send)
    else:
        await _site(scope, receive, send)


_guarded_site: App = BodyGuard(_page, rule=_page_rule, pace=PACE, render=_page_error)


# `_http` and `_protocol` return the awaitable of the app they call: a coroutine of their own would live as long as the
# stream.
def _http(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    return (_api if _api.is_for(scope["path"]) else _guarded_site)(scope, receive, send)


_clients = with_anthropic_clients(_http)
_page_sockets: dict[str, App] = {
    "/admin/live/socket": LiveSocket.as_asgi(),
    "/admin/live/follow": FollowSocket.as_asgi(),
}
_response_socket: App = ResponseSocket.as_asgi()


async def _websocket(scope: Scope, receive: Receive, send: Send) -> None:
    # Sockets of the admin authenticate with the session cookie, which browsers also send from pages of other sites:
    # these need a check of the Origin header. Sockets of the API authenticate with a key.
    if scope["path"].startswith("/admin/"):
        await _checked_page_socket(scope, receive, send)
    else:
        await _response_socket(scope, receive, send)


async def _page_socket(scope: Scope, receive: Receive, send: Send) -> None:
    draining.note_page()
    await _page_sockets.get(scope["path"], _denied)(scope, receive, send)


_denied: App = WebsocketDenier.as_asgi()
_checked_page_socket: App = AllowedHostsOriginValidator(_page_socket)
_allows_origins = settings.CORS_ALLOW_ALL_ORIGINS or settings.CORS_ALLOWED_ORIGINS
_checked_http: App = with_cors(_clients) if _allows_origins else _clients


_PAGES = frozenset(
    {"/", "/livez", "/readyz", "/version", "/metrics", "/openapi.json", "/docs", "/favicon.ico", "/llms.txt"}
)
_SECTIONS = ("/admin/", "/account/", "/static/", "/docs/guide/")


def _route_of(scope: Scope) -> str:
    """Return the template of a request's path for the metrics; any other path is "other"."""
    path: str = scope["path"]
    if path in _PAGES:
        return path
    if path.startswith("/v1/"):
        return _api.template_of(path)
    return next((section for section in _SECTIONS if path.startswith(section)), OTHER)


def _protocol(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    # Not a `ProtocolTypeRouter` of channels, which is a coroutine.
    return (_websocket if scope["type"] == "websocket" else _checked_http)(scope, receive, send)


# Any: libraries declare the types of ASGI in different ways.
application: Any = with_request_id(
    _protocol, route_of=_route_of, trusted_proxies=settings.TRUSTED_PROXIES, on_refused=refused_requests.record
)

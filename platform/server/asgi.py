"""ASGI application: the API with its streams and views under /v1, and the site for everything else.

Endpoints that run models are plain ASGI apps (`responses.api.endpoint_app`); the others are views.
"""

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

from core.admission.open_requests import with_bound
from core.admission.overload import counted, with_refusal
from core.admission.request_bodies import FREE_BYTES, BodyGuard, BodyRule, Pace
from core.db.db_threads import in_db_thread
from core.db.wait_limit import limit_waits
from core.errors import ApiError, NotFound, RequestTooLarge
from core.http.asgi import (
    ApiHandler,
    ApiShell,
    App,
    Receive,
    Scope,
    Send,
    header,
    send_response,
    with_api_headers,
    with_request_id,
)
from core.http.endpoints import Endpoint, EndpointIndex
from core.http.rendering import error_response
from core.load.draining import draining
from core.telemetry.metrics import OTHER
from gateway.anthropic.api import with_anthropic_clients
from responses.admin.live.follow import FollowSocket
from responses.admin.live.socket import LiveSocket
from responses.api.endpoint_app import EndpointApp
from responses.api.websocket import ResponseSocket
from server.api_urls import ENDPOINTS
from server.web import health
from server.web.cors import with_cors
from tenants.authentication import authenticate

limit_waits(settings.DATABASE_TIMEOUT_SECONDS)
_site = get_asgi_application()
_endpoints = EndpointIndex(ENDPOINTS)


def _unknown_url(method: str, path: str) -> NotFound:
    """Return the error for a path without an endpoint; it explains a wrong base URL."""
    advice = ""
    if _endpoints.at(f"/v1{path}"):
        advice = ": the base URL of the API ends with /v1."
    elif _endpoints.at(path.removeprefix("/v1")):
        advice = ": the base URL of the API ends with one /v1."
    return NotFound(f"Invalid URL ({method} {path}){advice}")


_views: App = ApiHandler(unknown=_unknown_url)
# By method and path.
_streams: dict[tuple[str, str], App] = {
    (endpoint.method, endpoint.path): counted(EndpointApp(endpoint)) if endpoint.calls_model else EndpointApp(endpoint)
    for endpoint in ENDPOINTS
    if endpoint.served_by is not None
}
_counted_views = counted(_views)


# `_api` and `_http` return the awaitable of the app they call: a coroutine of their own would live as long as the
# stream.
def _api(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    app = _views
    # A POST request asks for a stream in its body.
    if (scope["method"] == "POST" or _is_stream(scope)) and (endpoint := _endpoint_of(scope)) is not None:
        app = _streams.get((endpoint.method, endpoint.path), _counted_views if endpoint.calls_model else _views)
    return app(scope, receive, send)


def _endpoint_of(scope: Scope) -> Endpoint | None:
    return _endpoints.find(scope["method"], scope["path"])


def _is_stream(scope: Scope) -> bool:
    return scope["method"] == "GET" and b"stream=true" in scope["query_string"].split(b"&")


def _is_upload(scope: Scope) -> bool:
    # The bodies of these requests are written to disk instead of memory.
    endpoint = _endpoint_of(scope)
    return endpoint is not None and endpoint.spooled


def _is_work(scope: Scope) -> bool:
    endpoint = _endpoint_of(scope)
    return endpoint is not None and endpoint.is_work


async def _admit_key(scope: Scope) -> str:
    return (await authenticate(header(scope, b"authorization"))).team_id


async def _admit_session(scope: Scope) -> str:
    # Called only for bodies larger than any form of a signed-out visitor, so the query for the session is rare.
    cookies = parse_cookie(header(scope, b"cookie"))
    user_id = await in_db_thread(lambda: SessionStore(cookies.get(settings.SESSION_COOKIE_NAME)).get(SESSION_KEY))
    if user_id is None:
        raise RequestTooLarge(f"The request body is too large: the limit is {FREE_BYTES // 1024} KiB.")
    return f"user {user_id}"


def _api_rule(scope: Scope) -> BodyRule:
    method, path = scope["method"], scope["path"]
    if not _endpoints.at(path):
        raise _unknown_url(method, path)
    largest, endpoint = FREE_BYTES, _endpoint_of(scope)
    if endpoint is not None and endpoint.spooled:
        largest = settings.MAX_UPLOAD_BODY_BYTES
    elif endpoint is not None and endpoint.reads_body:
        largest = settings.MAX_BODY_BYTES
    return BodyRule(max_bytes=largest, admit=_admit_key)


def _page_rule(_: Scope) -> BodyRule:
    return BodyRule(max_bytes=settings.MAX_PAGE_BODY_BYTES, admit=_admit_session)


def _page_error(scope: Scope, error: ApiError) -> HttpResponse:
    if "text/html" not in header(scope, b"accept"):
        return error_response(error)
    return HttpResponse(render_to_string("refused.html", {"error": error}), status=error.status)


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    # Django's handler starts a thread for each request. A probe must not wait for one, nor cost as much.
    if scope["path"] == "/livez" and scope["method"] in {"GET", "HEAD"}:
        await send_response(health.livez(), send)
    elif scope["path"] == "/readyz" and scope["method"] in {"GET", "HEAD"}:
        # Probes send an address as the host, which the site would refuse with a line in the log.
        await send_response(await health.async_readyz(), send)
    else:
        await _site(scope, receive, send)


_pace = Pace(seconds=settings.BODY_WINDOW_SECONDS, bytes_per_second=settings.BODY_MIN_BYTES_PER_SECOND)
_bounded_api = BodyGuard(ApiShell(_api, is_upload=_is_upload), rule=_api_rule, pace=_pace)
_guarded_api: App = with_api_headers(with_refusal(with_bound(_bounded_api), is_work=_is_work, is_stream=_is_stream))
_guarded_site: App = BodyGuard(_page, rule=_page_rule, pace=_pace, render=_page_error)


def _http(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    # Clients with a wrong base URL request "/v1" itself, or a path without it. They can read only JSON errors.
    path: str = scope["path"]
    is_api = path == "/v1" or path.startswith("/v1/") or bool(_endpoints.at(f"/v1{path}"))
    return (_guarded_api if is_api else _guarded_site)(scope, receive, send)


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
        return next((f"/v1{endpoint.template}" for endpoint in _endpoints.at(path)), OTHER)
    return next((section for section in _SECTIONS if path.startswith(section)), OTHER)


def _protocol(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    # Not a `ProtocolTypeRouter` of channels, whose coroutine would live as long as the stream.
    return (_websocket if scope["type"] == "websocket" else _checked_http)(scope, receive, send)


# Any: libraries declare the types of ASGI in different ways.
application: Any = with_request_id(_protocol, route_of=_route_of, trusted_proxies=settings.TRUSTED_PROXIES)

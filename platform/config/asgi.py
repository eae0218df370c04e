"""The ASGI application: the API's shell with its streams and views, and the site for everything else.

The same URL answers as JSON or as a stream, whatever `stream` in its body says; the switch is here, in one place.
"""

import os
import re

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

import orjson
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.conf import settings
from django.core.asgi import get_asgi_application

from conversations.api.uploads import brings_part
from kernel.asgi import ApiHandler, ApiShell, App, Receive, Scope, Send, header, with_request_id
from responses.admin.live.follow import FollowSocket
from responses.admin.live.socket import LiveSocket
from responses.api.consumers import ChatStream, ResponseReplay, ResponseStream
from responses.api.websocket import ResponseSocket
from tenants.authentication import authenticate

_site = get_asgi_application()
_views: App = ApiHandler()
_created: dict[str, App] = {
    "/v1/responses": ResponseStream.as_asgi(),
    "/v1/chat/completions": ChatStream.as_asgi(),
}
_replayed: App = ResponseReplay.as_asgi()
_ONE_RESPONSE = re.compile(r"/v1/responses/[^/]+")


async def _api(scope: Scope, receive: Receive, send: Send) -> None:
    await (_stream(scope) or _views)(scope, receive, send)


def _stream(scope: Scope) -> App | None:
    """The consumer of a request that asks for a stream."""
    path = scope["path"]
    match scope["method"]:
        case "POST" if path in _created and _wants_stream(scope["body"]):
            return _created[path]
        case "GET" if b"stream=true" in scope["query_string"].split(b"&") and _ONE_RESPONSE.fullmatch(path):
            return _replayed
    return None


def _wants_stream(body: bytes) -> bool:
    """Broken bodies go to the views, which say what is wrong with them."""
    if b'"stream"' not in body:
        return False
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and parsed.get("stream") is True


def is_upload(scope: Scope) -> bool:
    """Whether a request brings a file: it goes to disk, never whole into memory."""
    return (scope["method"], scope["path"]) == ("POST", "/v1/files") or brings_part(scope)


async def _admit(scope: Scope) -> None:
    await authenticate(header(scope, b"authorization"))


_shell = ApiShell(
    _api,
    admit=_admit,
    max_body_bytes=settings.MAX_BODY_BYTES,
    max_upload_bytes=settings.MAX_UPLOAD_BODY_BYTES,
    is_upload=is_upload,
)


async def _http(scope: Scope, receive: Receive, send: Send) -> None:
    await (_shell if scope["path"].startswith("/v1/") else _site)(scope, receive, send)


_live: dict[str, App] = {"/admin/live/socket": LiveSocket.as_asgi(), "/admin/live/follow": FollowSocket.as_asgi()}
_responses: App = ResponseSocket.as_asgi()


async def _websocket(scope: Scope, receive: Receive, send: Send) -> None:
    # Those of pages come with the cookie of a session, which a page of somebody else's could send along.
    if scope["path"].startswith("/admin/"):
        await _pages(scope, receive, send)
    else:
        await _responses(scope, receive, send)


async def _page_socket(scope: Scope, receive: Receive, send: Send) -> None:
    await _live.get(scope["path"], _NOWHERE)(scope, receive, send)


_NOWHERE: App = WebsocketDenier.as_asgi()
_pages: App = AllowedHostsOriginValidator(_page_socket)
_proxies = settings.TRUSTED_PROXIES
application = ProtocolTypeRouter(
    {
        "http": with_request_id(_http, trusted_proxies=_proxies),
        "websocket": with_request_id(_websocket, trusted_proxies=_proxies),
    }
)

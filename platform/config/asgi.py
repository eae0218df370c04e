"""The ASGI application: the API's shell with its streams and views, and the site for everything else.

The same URL answers as JSON or as a stream, whatever `stream` in its body says; the switch is here, in one place.
"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

import orjson
from channels.routing import ProtocolTypeRouter
from django.conf import settings
from django.core.asgi import get_asgi_application

from kernel.asgi import ApiHandler, ApiShell, App, Receive, Scope, Send, identified
from responses.api.consumers import ChatStream, ResponseStream

_site = get_asgi_application()
_views: App = ApiHandler()
_streams: dict[str, App] = {
    "/v1/responses": ResponseStream.as_asgi(),
    "/v1/chat/completions": ChatStream.as_asgi(),
}


async def _api(scope: Scope, receive: Receive, send: Send) -> None:
    stream = _streams.get(scope["path"]) if scope["method"] == "POST" else None
    app = stream if stream is not None and _wants_stream(scope["body"]) else _views
    await app(scope, receive, send)


def _wants_stream(body: bytes) -> bool:
    """Broken bodies go to the views, which say what is wrong with them."""
    if b'"stream"' not in body:
        return False
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and parsed.get("stream") is True


_shell = ApiShell(_api, max_body_bytes=settings.MAX_BODY_BYTES)


async def _http(scope: Scope, receive: Receive, send: Send) -> None:
    await (_shell if scope["path"].startswith("/v1/") else _site)(scope, receive, send)


application = ProtocolTypeRouter({"http": identified(_http)})

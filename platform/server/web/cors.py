"""CORS headers for pages of other origins that call the API from a browser; off by default."""

from io import BytesIO

from corsheaders.middleware import CorsMiddleware
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse

from core.http.asgi import App, Receive, Scope, Send, adding_headers, headers_of, send_response


def with_cors(app: App) -> App:
    """Wrap an app so that it answers preflight requests and sends CORS headers, as the settings `CORS_*` allow."""
    # As middleware of Django it would not see requests to the API, which bypass middleware, nor those to plain
    # ASGI apps. Here it decides about all of them.
    middleware = CorsMiddleware(lambda _: HttpResponse())

    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        request = ASGIRequest(scope, BytesIO())
        if not middleware.is_enabled(request):
            await app(scope, receive, send)
            return
        if (preflight := middleware.check_preflight(request)) is not None:
            await send_response(middleware.add_response_headers(request, preflight), send)
            return
        decided = middleware.add_response_headers(request, HttpResponse(content_type=""))
        del decided["Content-Type"]
        await app(scope, receive, adding_headers(send, lambda: headers_of(decided)))

    return with_headers

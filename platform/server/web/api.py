"""The API as an ASGI application: every request is served as the declaration of its endpoint says."""

from collections.abc import Awaitable, Sequence

from django.conf import settings

from core.admission.open_requests import with_bound
from core.admission.overload import counted, with_refusal
from core.admission.request_bodies import FREE_BYTES, BodyGuard, BodyRule, Pace
from core.errors import NotFound
from core.http.asgi import ApiHandler, ApiShell, App, Receive, Scope, Send, header, with_api_headers
from core.http.endpoints import ENDPOINT, Endpoint, EndpointIndex, asks_for_stream, endpoint_in
from core.telemetry.metrics import OTHER
from idempotency.http import IdempotencyLayer
from responses.api.endpoint_app import EndpointApp
from responses.api.restoration import RESTORATION
from tenants.authentication import authenticate

PACE = Pace(seconds=settings.BODY_WINDOW_SECONDS, bytes_per_second=settings.BODY_MIN_BYTES_PER_SECOND)


class ApiApplication:
    """The endpoints under /v1. The endpoint of a request is looked up once and stored in its ASGI scope.

    A request passes these steps in this order: it is refused if the process is overloaded or shuts down, or if its key
    has too many open requests; its body is read, up to a limit; the ASGI app or the view of its endpoint answers it.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._index = EndpointIndex(endpoints)
        self._views: App = ApiHandler(unknown=self._unknown_url)
        self._counted_views = counted(self._views)
        # Endpoints that run models are plain ASGI apps; the others are views. By method and path.
        self._apps: dict[tuple[str, str], App] = {}
        for endpoint in endpoints:
            if endpoint.served_by is not None:
                app = EndpointApp(endpoint)
                self._apps[endpoint.method, endpoint.path] = counted(app) if endpoint.calls_model else app
        guard = BodyGuard(ApiShell(IdempotencyLayer(self._serve, RESTORATION)), rule=self._body_rule, pace=PACE)
        self._guarded = with_api_headers(with_refusal(with_bound(guard)))

    # Not a coroutine, which would live as long as the stream.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope[ENDPOINT] = self._index.find(scope["method"], scope["path"])
        return self._guarded(scope, receive, send)

    def is_for(self, path: str) -> bool:
        """Return whether the API answers this path.

        The paths include those that clients with a wrong base URL request: "/v1", and paths without "/v1".
        """
        # Clients with a wrong base URL can read only JSON errors.
        return path == "/v1" or path.startswith("/v1/") or bool(self._index.at(f"/v1{path}"))

    def template_of(self, path: str) -> str:
        """Return the template of a path under /v1 for the metrics."""
        return next((f"/v1{endpoint.template}" for endpoint in self._index.at(path)), OTHER)

    def _serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        app, endpoint = self._views, endpoint_in(scope)
        # A POST request asks for a stream in its body.
        if endpoint is not None and (endpoint.method == "POST" or asks_for_stream(scope)):
            views = self._counted_views if endpoint.calls_model else self._views
            app = self._apps.get((endpoint.method, endpoint.path), views)
        return app(scope, receive, send)

    def _body_rule(self, scope: Scope) -> BodyRule:
        if not self._index.at(scope["path"]):
            raise self._unknown_url(scope["method"], scope["path"])
        largest, endpoint = FREE_BYTES, endpoint_in(scope)
        if endpoint is not None and endpoint.spooled:
            largest = settings.MAX_UPLOAD_BODY_BYTES
        elif endpoint is not None and endpoint.reads_body:
            largest = settings.MAX_BODY_BYTES
        return BodyRule(max_bytes=largest, admit=_admit_key)

    def _unknown_url(self, method: str, path: str) -> NotFound:
        """Return the error for a path without an endpoint; it explains a wrong base URL."""
        advice = ""
        if self._index.at(f"/v1{path}"):
            advice = ": the base URL of the API ends with /v1."
        elif self._index.at(path.removeprefix("/v1")):
            advice = ": the base URL of the API ends with one /v1."
        return NotFound(f"Invalid URL ({method} {path}){advice}")


async def _admit_key(scope: Scope) -> str:
    return (await authenticate(header(scope, b"authorization"))).team_id

"""Base class of the API's views."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

from asgiref.sync import iscoroutinefunction
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView
from typing_extensions import override

from core.admission.overload import admission
from core.db.db_threads import in_db_thread, in_view_thread
from core.errors import MethodNotAllowed
from core.http.asgi import Scope as AsgiScope
from core.http.endpoints import Endpoint
from tenants.authentication import HasScope, authenticate
from tenants.principal import Principal
from tenants.throttling import AsyncThrottle


class ApiRequest(Request):
    """Authenticated request."""

    @property
    def principal(self) -> Principal:
        """The caller, which DRF stores as the user of the request."""
        return cast("Principal", self.user)

    @property
    def asgi(self) -> AsgiScope:
        """The ASGI scope of the request."""
        return cast("AsgiScope", cast("Any", self._request).scope)

    @property
    def request_id(self) -> str:
        """The id that the ASGI application has assigned."""
        return cast("str", self.asgi["request_id"])


class ApiView(APIView):
    """View of one path below /v1/, whose handlers are declared with `Endpoint`; each may be asynchronous.

    There is no content negotiation: every client gets JSON, whatever `Accept` or `?format=` says.
    """

    # Without OPTIONS, which DRF would answer with a description of the view.
    http_method_names = ["get", "post", "delete", "head"]
    path = ""
    endpoints: tuple[Endpoint, ...] = ()
    view_is_async = False

    @override
    def __init_subclass__(cls, *, path: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        # An endpoint without a handler is served by an app of its own (`responses.api.endpoint_app`), not by the view.
        declared = {
            name: value if isinstance(value, Endpoint) else value.endpoint
            for name, value in vars(cls).items()
            if isinstance(value, Endpoint) or hasattr(value, "endpoint")
        }
        if bare := {*cls.http_method_names} & vars(cls).keys() - declared.keys():
            # A handler without a declared endpoint would be served without a check of its scope.
            raise TypeError(f"{cls.__name__}: declare {', '.join(bare)} with Endpoint")
        cls.path = path
        cls.endpoints = tuple(replace(endpoint, method=name.upper(), path=path) for name, endpoint in declared.items())
        handlers = [vars(cls)[name] for name in declared]
        cls.view_is_async = any(isinstance(handler, Endpoint) or iscoroutinefunction(handler) for handler in handlers)

    @override
    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> ApiRequest:
        return ApiRequest(
            request,
            parsers=self.get_parsers(),
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
            parser_context=self.get_parser_context(request),
        )

    @override
    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        # DRF would answer 406 or 404 to clients that send an unusual `Accept` or `format`; OpenAI's API does not.
        renderer = self.get_renderers()[0]
        return renderer, renderer.media_type

    @override
    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        raise MethodNotAllowed(request.method, request.path, allowed=self.allowed_methods)

    @override
    def get_throttles(self) -> list[Any]:
        # Asynchronous views await the others (`_dispatch_async`).
        throttles = super().get_throttles()
        if not iscoroutinefunction(self._handler(self.request)):
            return throttles
        return [throttle for throttle in throttles if not isinstance(throttle, AsyncThrottle)]

    @override
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if iscoroutinefunction(self._handler(request)):
            return self._dispatch_async(request, *args, **kwargs)
        if self.view_is_async:
            synchronous: Any = super().dispatch
            # Rendered in the thread as well: JSON of a long list would block the event loop.
            authorization = request.headers.get("Authorization", "")
            return in_view_thread(lambda: synchronous(request, *args, **kwargs).render(), authorization=authorization)
        return super().dispatch(request, *args, **kwargs)

    async def _dispatch_async(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # DRF's own dispatch, with authentication and handler awaited.
        self.args, self.kwargs = args, kwargs
        self.request = wrapped = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        throttles = [throttle for throttle in super().get_throttles() if isinstance(throttle, AsyncThrottle)]
        try:
            authorization = request.headers.get("Authorization", "")
            request.principal = principal = await authenticate(authorization)
            await admission.turn(team_id=principal.team_id, weight=principal.weight, authorization=authorization)
            initial = partial(self.initial, wrapped, *args, **kwargs)
            # Other permissions and throttles may query a database or a cache, which would block the event loop.
            if self.permission_classes != [HasScope] or self.get_throttles():
                await in_db_thread(initial)
            else:
                initial()
            for throttle in throttles:
                await throttle.allow_request_async(wrapped, self)
            response = await self._handler(request)(wrapped, *args, **kwargs)
        except Exception as error:  # converted by `core.http.rendering.exception_handler`
            for throttle in throttles:
                await throttle.add_headers(getattr(request, "principal", None))
            response = self.handle_exception(error)
        self.response = self.finalize_response(wrapped, response, *args, **kwargs)
        return self.response

    def _handler(self, request: Any) -> Any:
        name = (request.method or "").lower()
        return getattr(self, name, None) if name in self.http_method_names else None

"""Views of the API: permissions and throttles of Django REST framework apply to both kinds of handlers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from asgiref.sync import iscoroutinefunction
from django.http.response import HttpResponseBase
from django.test import AsyncRequestFactory
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from typing_extensions import override

from core.http.endpoints import ApiObject, Endpoint
from tenants.authentication import HasScope
from tenants.models import ApiKey, Scope
from tenants.views import ApiRequest, ApiView
from tests.support.api import Caller, MakeCaller

pytestmark = pytest.mark.usefixtures("database")
THING = ApiObject.of("Thing", {})


class Sync(ApiView):
    """A view with a synchronous handler."""

    @Endpoint(Scope.FILES_READ, "Get a thing", query=None, returns=THING)
    def get(self, request: ApiRequest) -> Response:
        return Response({"team": request.principal.team_id})


class Async(ApiView):
    """A view with an asynchronous handler."""

    @Endpoint(Scope.FILES_READ, "Get a thing", query=None, returns=THING)
    async def get(self, request: ApiRequest) -> Response:
        return Response({"team": request.principal.team_id})


class Mixed(ApiView):
    """A view with both."""

    @Endpoint(Scope.FILES_READ, "Get a thing", query=None, returns=THING)
    def get(self, request: ApiRequest) -> Response:
        return Response({"team": request.principal.team_id})

    @Endpoint(Scope.FILES_WRITE, "Change a thing", query=None, returns=THING)
    async def post(self, request: ApiRequest) -> Response:
        return Response({"team": request.principal.team_id})


def on_the_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Throttle(BaseThrottle):
    """Refuses everything for 2.5 seconds."""

    @override
    def allow_request(self, request: Request, view: APIView) -> bool:
        assert not on_the_event_loop(), "throttles query a cache"
        return False

    @override
    def wait(self) -> float:
        return 2.5


class Forbidden(BasePermission):
    """Reads the database and refuses everything."""

    message = "Not today."

    @override
    def has_permission(self, request: Request, view: APIView) -> bool:
        assert not ApiKey.objects.filter(pk="nothing").exists()
        return False


def respond(
    view: type[ApiView],
    caller: Caller | None,
    method: str = "GET",
    path: str = "/v1/things",
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[HttpResponseBase, Any]:
    """Return the response of a view with these `options` of `as_view`, and its body."""
    headers = {**(headers or {}), **({"Authorization": f"Bearer {caller.secret}"} if caller is not None else {})}
    request = AsyncRequestFactory().generic(method, path, headers=headers)
    handler: Any = view.as_view(**options)
    response = asyncio.run(handler(request)) if iscoroutinefunction(handler) else handler(request)
    return response, orjson.loads(response.rendered_content)


VIEWS = pytest.mark.parametrize("view", [Sync, Async, Mixed])


@VIEWS
def test_a_handler_gets_an_authenticated_request(view: type[ApiView], caller: Caller) -> None:
    response, body = respond(view, caller)
    assert (response.status_code, body) == (200, {"team": caller.team.pk})


@VIEWS
def test_a_view_requires_a_key(view: type[ApiView]) -> None:
    assert respond(view, None)[0].status_code == 401


@VIEWS
def test_the_declared_scope_is_required(view: type[ApiView], make_caller: MakeCaller) -> None:
    response, body = respond(view, make_caller(scopes=["models.read"]))
    assert (response.status_code, body["error"]["code"]) == (403, "insufficient_scope")


def test_each_handler_has_its_own_scope(make_caller: MakeCaller) -> None:
    writer = make_caller(scopes=["files.write"])
    statuses = [respond(Mixed, writer, method)[0].status_code for method in ("GET", "HEAD", "POST")]
    assert statuses == [403, 403, 200]


@VIEWS
def test_a_throttle_of_a_view_is_applied(view: type[ApiView], caller: Caller) -> None:
    response, body = respond(view, caller, throttle_classes=[Throttle])
    assert (response.status_code, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert response.headers["Retry-After"] == "3"


@VIEWS
def test_a_permission_of_a_view_is_applied(view: type[ApiView], caller: Caller) -> None:
    response, body = respond(view, caller, permission_classes=[HasScope, Forbidden])
    assert (response.status_code, body["error"]["message"]) == (403, "Not today.")


@VIEWS
@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "TRACE"])
def test_other_methods_get_405_with_the_allowed_methods(view: type[ApiView], caller: Caller, method: str) -> None:
    response, body = respond(view, caller, method)
    assert (response.status_code, body["error"]["code"]) == (405, "method_not_supported")
    assert response.headers["Allow"] == ("GET, POST, HEAD" if view is Mixed else "GET, HEAD")
    assert response.headers["Allow"] in body["error"]["message"]


@VIEWS
def test_every_client_gets_json_errors(view: type[ApiView], caller: Caller) -> None:
    response, body = respond(view, caller, path="/v1/things?format=xml", headers={"Accept": "text/html"})
    assert (response.status_code, body) == (200, {"team": caller.team.pk})
    assert response.headers["Content-Type"] == "application/json"

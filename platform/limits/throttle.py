"""The throttle of views, and the headers `x-ratelimit-*` of requests that reserve nothing."""

from typing import TYPE_CHECKING, Any

from rest_framework.request import Request
from typing_extensions import override

from core.errors import LimitsUnavailable
from core.http import response_headers
from core.http.endpoints import Endpoint, endpoint_of
from core.ids import new_id
from limits import guard
from limits.values import Demand
from tenants.principal import Principal
from tenants.throttling import AsyncThrottle

if TYPE_CHECKING:
    from rest_framework.views import APIView


def is_limited(principal: object) -> bool:
    """Return whether any limit applies to a principal."""
    return isinstance(principal, Principal) and principal.is_limited


class LimitThrottle(AsyncThrottle):
    """Throttle class of DRF; raises the error of the limit that refuses a request."""

    @override
    def allow_request(self, request: Request, view: "APIView") -> bool:
        principal: Any = request.user
        if not is_limited(principal):
            return True
        endpoint = endpoint_of(view, request)
        if counts(endpoint, request):
            grant = guard.reserve_sync(principal, _demand(endpoint), reservation_id=new_id("call"))
            response_headers.add(grant.headers)
        else:
            add_headers_sync(principal)
        return True

    @override
    async def allow_request_async(self, request: Request, view: Any) -> None:
        principal: Any = request.user
        if not is_limited(principal):
            return
        endpoint = endpoint_of(view, request)
        if counts(endpoint, request):
            grant = await guard.reserve(principal, _demand(endpoint), reservation_id=new_id("call"))
            response_headers.add(grant.headers)
        elif endpoint is None or not endpoint.calls_model:
            await add_headers(principal)

    @override
    async def add_headers(self, principal: object) -> None:
        await add_headers(principal)


def counts(endpoint: Endpoint | None, request: Any) -> bool:
    """Return whether the throttle charges one request to the rate limits.

    It charges requests that create something. Requests that call a model reserve more, later, when their body is known.
    Reading, deleting and cancelling are free: a client that polls must not lock itself out.
    """
    return endpoint is not None and request.method == "POST" and endpoint.reads_body and not endpoint.calls_model


async def add_headers(principal: object, end_user: str = "") -> None:
    """Add the headers with the remaining limits, unless they are set already. Without Redis, add none."""
    if isinstance(principal, Principal) and is_limited(principal) and not _are_known():
        try:
            response_headers.add((await guard.status(principal, end_user)).headers)
        except LimitsUnavailable:
            return


def add_headers_sync(principal: Principal) -> None:
    """Like `add_headers`, for code without an event loop."""
    try:
        response_headers.add(guard.status_sync(principal).headers)
    except LimitsUnavailable:
        return


def _are_known() -> bool:
    return any(name.startswith("x-ratelimit-") for name in response_headers.added())


def _demand(endpoint: Endpoint | None) -> Demand:
    return Demand(endpoint=endpoint.path if endpoint is not None else "")

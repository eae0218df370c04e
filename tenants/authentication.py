"""Authentication by API key (`Authorization: Bearer sk-…`) for views, plain ASGI apps and sockets."""

from typing import TYPE_CHECKING, cast

from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from typing_extensions import override

from core.errors import MissingKey
from tenants import directory
from tenants.models import AdminScope, Scope
from tenants.principal import Principal

if TYPE_CHECKING:
    from rest_framework.views import APIView

# OpenAI's wording.
_MISSING = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)


def bearer(header: str) -> str:
    """Return the key from an Authorization header. Raises `Unauthorized` without one."""
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise MissingKey(_MISSING)
    return key.strip()


class BearerAuthentication(BaseAuthentication):
    """Authentication class of DRF; `request.user` becomes the `Principal`."""

    @override
    def authenticate(self, request: Request) -> tuple[Principal, None]:
        # Asynchronous views have awaited it already (`tenants.views`).
        known: Principal | None = getattr(request._request, "principal", None)  # noqa: SLF001 - Django's request
        return known or directory.principal(bearer(request.headers.get("Authorization", ""))), None

    @override
    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class HasScope(BasePermission):
    """Permission class of DRF that requires the API key to have the scope of the endpoint."""

    @override
    def has_permission(self, request: Request, view: "APIView") -> bool:
        handler = getattr(view, (request.method or "").lower(), None)
        # An endpoint with an empty scope accepts any key.
        if (declared := getattr(handler, "endpoint", None)) is not None and declared.scope:
            kind = Scope if declared.scope in Scope else AdminScope
            cast("Principal", request.user).require(kind(declared.scope))
        return True


async def authenticate(header: str) -> Principal:
    """Return the caller, for code on the event loop. Raises `Unauthorized` or `Forbidden`."""
    return await directory.aprincipal(bearer(header))

"""`Authorization: Bearer sk-…` → `Principal`, for DRF views, asynchronous views and consumers alike."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from typing_extensions import override

from kernel.errors import Unauthorized
from tenants import directory
from tenants.principal import Principal

_MISSING = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)


def bearer(header: str) -> str:
    """The key in an Authorization header; 401 when there is none."""
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        error = Unauthorized(_MISSING)
        error.code = None
        raise error
    return key.strip()


class BearerAuthentication(BaseAuthentication):
    """DRF's door: `request.user` becomes the `Principal`."""

    @override
    def authenticate(self, request: Request) -> tuple[Principal, None]:
        return directory.principal(bearer(request.headers.get("Authorization", ""))), None

    @override
    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


async def authenticate(header: str) -> Principal:
    """The same door for code on the event loop."""
    return await directory.aprincipal(bearer(header))

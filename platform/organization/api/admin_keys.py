"""Endpoints of `/v1/organization/admin_api_keys`: admin keys are listed and revoked, but not created here.

A leaked admin key could otherwise make itself another one that outlives it.
"""

from typing import Any

from rest_framework.response import Response

from core.clock import unix
from core.errors import NotFound
from core.http.endpoints import NULLABLE_INTEGER, STRING, UNIX_TIME, ApiObject, Endpoint
from core.http.pagination import Order, PageRequest, keyset, page_argument
from tenants import services
from tenants.members import user_id
from tenants.models import AdminKey, AdminScope
from tenants.views import ApiRequest, ApiView

_OWNER = ApiObject.of(
    "AdminApiKeyOwner",
    {
        "type": {"enum": ["user", None]},
        "object": {"enum": ["organization.user", None]},
        "id": {"type": ["string", "null"]},
        "name": {"type": ["string", "null"]},
        "created_at": NULLABLE_INTEGER,
        "role": {"enum": ["owner", None]},
    },
)
_KEY = ApiObject.of(
    "AdminApiKey",
    {
        "id": STRING,
        "object": {"const": "organization.admin_api_key"},
        "name": STRING,
        "redacted_value": STRING,
        "created_at": UNIX_TIME,
        "expires_at": NULLABLE_INTEGER,
        "last_used_at": NULLABLE_INTEGER,
        "owner": _OWNER,
    },
)


def public_admin_key(key: AdminKey) -> dict[str, Any]:
    """Return the `organization.admin_api_key` object of the API."""
    person = key.created_by
    # Keys of commands have no owner.
    owner: dict[str, Any] = dict.fromkeys(["type", "object", "id", "name", "created_at", "role"])
    if person is not None:
        owner = {
            "type": "user",
            "object": "organization.user",
            "id": user_id(person),
            "name": person.get_full_name() or person.get_username(),
            "created_at": unix(person.date_joined),
            "role": "owner",
        }
    return {
        "id": key.pk,
        "object": "organization.admin_api_key",
        "name": key.name,
        "redacted_value": f"{key.prefix}…{key.last_four}",
        "created_at": unix(key.created_at),
        "expires_at": unix(key.expires_at) if key.expires_at else None,
        "last_used_at": unix(key.last_used_at) if key.last_used_at else None,
        "owner": owner,
    }


class AdminKeysView(ApiView, path="organization/admin_api_keys"):
    """Admin keys of the platform."""

    @Endpoint(
        AdminScope.ADMIN_KEYS_READ,
        "List admin API keys",
        query=(page_argument(before=False, order=Order.DESC),),
        returns=_KEY.page(),
        note="without revoked keys",
    )
    def get(self, request: ApiRequest, page: PageRequest) -> Response:
        rows = AdminKey.objects.filter(revoked_at=None).select_related("created_by")
        found = keyset(rows, page=page, find=lambda cursor: _find(cursor, param="after"), unknown=NotFound)
        return Response(found.as_list(present=public_admin_key))


class AdminKeyView(ApiView, path="organization/admin_api_keys/<key_id>"):
    """One admin key."""

    @Endpoint(AdminScope.ADMIN_KEYS_READ, "Retrieve an admin API key", query=(), returns=_KEY)
    def get(self, request: ApiRequest, key_id: str) -> Response:
        return Response(public_admin_key(_find(key_id)))

    @Endpoint(
        AdminScope.ADMIN_KEYS_WRITE,
        "Delete an admin API key",
        query=(),
        returns=ApiObject.deleted("AdminApiKey", "organization.admin_api_key.deleted"),
        note="revokes it; a key may revoke itself",
    )
    def delete(self, request: ApiRequest, key_id: str) -> Response:
        services.revoke_admin_key(key=_find(key_id), actor=request.principal.actor)
        return Response({"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True})


def _find(key_id: str, *, param: str | None = None) -> AdminKey:
    key = AdminKey.objects.filter(pk=key_id, revoked_at=None).select_related("created_by").first()
    if key is None:
        raise NotFound(f"No such admin API key: {key_id}", param=param)
    return key

"""Endpoints of `/v1/organization/admin_api_keys`: admin keys are listed and revoked, but not created here.

Otherwise a leaked admin key could create another key, which would still work after the leaked one is revoked.
"""

from core.clock import unix
from core.errors import NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import Order, PageRequest, keyset, page_argument
from organization.api import objects
from tenants import services
from tenants.members import user_id
from tenants.models import AdminKey, AdminScope
from tenants.views import ApiRequest, ApiView


def public_admin_key(key: AdminKey) -> objects.AdminApiKey:
    """Return the `organization.admin_api_key` object of the API."""
    person = key.created_by
    # Keys that were created on the command line have no owner.
    owner: objects.AdminApiKeyOwner = {
        "type": None,
        "object": None,
        "id": None,
        "name": None,
        "created_at": None,
        "role": None,
    }
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
        note="without revoked keys",
    )
    def get(self, request: ApiRequest, page: PageRequest) -> ListPage[objects.AdminApiKey]:
        rows = AdminKey.objects.filter(revoked_at=None).select_related("created_by")
        found = keyset(rows, page=page, find=lambda cursor: _find(cursor, param="after"), unknown=NotFound)
        return found.as_list(present=public_admin_key)


class AdminKeyView(ApiView, path="organization/admin_api_keys/<key_id>"):
    """One admin key."""

    @Endpoint(AdminScope.ADMIN_KEYS_READ, "Retrieve an admin API key")
    def get(self, request: ApiRequest, key_id: str) -> objects.AdminApiKey:
        return public_admin_key(_find(key_id))

    @Endpoint(AdminScope.ADMIN_KEYS_WRITE, "Delete an admin API key", note="revokes it; a key may revoke itself")
    def delete(self, request: ApiRequest, key_id: str) -> objects.DeletedAdminApiKey:
        services.revoke_admin_key(key=_find(key_id), actor=request.principal.actor)
        return {"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True}


def _find(key_id: str, *, param: str | None = None) -> AdminKey:
    key = AdminKey.objects.filter(pk=key_id, revoked_at=None).select_related("created_by").first()
    if key is None:
        raise NotFound(f"No such admin API key: {key_id}", param=param)
    return key

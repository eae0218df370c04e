"""Endpoints of `/v1/organization/projects/{project_id}/api_keys`. Secrets are never returned."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import QueryDict

from core.clock import shared_now, unix
from core.errors import Conflict, InvalidValue, NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, keyset, page_argument
from core.http.query import QueryArgument, choice, parameter
from core.http.wire import Wire
from organization.api import objects
from organization.api.bodies import ExpiresInSeconds
from organization.api.lookup import get_key, get_project
from tenants import scope, services
from tenants.members import public_role, user_id
from tenants.models import AdminScope, ApiKey, Membership, Scope, Team
from tenants.views import ApiRequest, ApiView

_ACCESS = ("active", "inactive", "any")
_READ_ONLY = "api.all.read"


class UpdateProjectKey(Wire):
    """Body of a request to change an API key. `scopes` replaces the previous list; an empty one allows everything."""

    scopes: list[str] | None = None
    expires_in_seconds: ExpiresInSeconds | None = None


def checked_scopes(names: list[str]) -> list[str]:
    """Convert the scopes of a request to scopes of a team's key; raises `InvalidValue`."""
    chosen: dict[str, None] = {}
    for index, name in enumerate(names):
        if name == _READ_ONLY:
            chosen |= dict.fromkeys(choice.value for choice in Scope if choice.value.endswith(".read"))
        elif name in Scope.values:
            chosen[name] = None
        else:
            raise InvalidValue.unsupported(name, [*Scope.values, _READ_ONLY], param=f"scopes[{index}]")
    return [Scope.ALL.value] if not chosen or Scope.ALL.value in chosen else [*chosen]


def _owned_keys(team: Team) -> QuerySet[Any]:
    """Return the keys of a team with their owners. `has_active_owner`: the owner may still act for the team."""
    is_member = Exists(Membership.objects.filter(team=OuterRef("team_id"), user=OuterRef("created_by_id")))
    is_active = Q(created_by=None) | Q(service_account__isnull=False)
    is_active |= Q(created_by__is_active=True) & (Q(created_by__is_superuser=True) | Q(is_member))
    keys = ApiKey.objects.filter(team=team, revoked_at=None).select_related("created_by", "service_account")
    return keys.annotate(has_active_owner=is_active)


def public_key(key: Any, *, role: str | None) -> objects.ProjectApiKey:
    """Return the `organization.project.api_key` object of a key from `_owned_keys`; `role` is the role of its owner."""
    account, person = key.service_account, key.created_by
    owner: objects.ProjectApiKeyOwner = {"type": None, "user": None, "service_account": None}
    if account is not None:
        owner["type"] = "service_account"
        owner["service_account"] = {
            "id": account.pk,
            "name": account.name,
            "created_at": unix(account.created_at),
            "role": account.role,
        }
    elif person is not None:
        owner["type"] = "user"
        owner["user"] = _public_owner(person, role)
    return {
        "id": key.pk,
        "object": "organization.project.api_key",
        "name": key.name,
        "redacted_value": f"{key.prefix}…{key.last_four}",
        "created_at": unix(key.created_at),
        "expires_at": unix(key.expires_at) if key.expires_at else None,
        "last_used_at": unix(key.last_used_at) if key.last_used_at else None,
        "owner": owner,
        "owner_project_access": "active" if key.has_active_owner else "inactive",
    }


def _public_owner(person: User, role: str | None) -> objects.KeyUser:
    return {
        "id": user_id(person),
        "name": person.get_full_name() or person.get_username(),
        "email": person.email,
        "created_at": unix(person.date_joined),
        # A person who has left the team has no role in it any more.
        "role": role or "none",
    }


def _roles(keys: Iterable[ApiKey], team: Team) -> dict[int | None, str]:
    people = {key.created_by_id for key in keys}
    members = Membership.objects.filter(team=team, user__in=people - {None})
    return {member.user_id: public_role(member.role) for member in members}


def _access_argument() -> QueryArgument:
    def read(query: QueryDict) -> str:
        return choice(query, "owner_project_access", _ACCESS) or "any"

    schema = {"enum": list(_ACCESS), "default": "any"}
    return QueryArgument("owner_project_access", [parameter("owner_project_access", schema)], read)


class ProjectKeysView(ApiView, path="organization/projects/<project_id>/api_keys"):
    """API keys of a project."""

    @Endpoint(
        AdminScope.KEYS_READ,
        "List the API keys of a project",
        query=(page_argument(before=False), _access_argument()),
        note="without revoked keys",
    )
    def get(
        self, request: ApiRequest, project_id: str, page: PageRequest, owner_project_access: str
    ) -> ListPage[objects.ProjectApiKey]:
        team = get_project(project_id)
        with scope.team(team.pk):
            rows = _owned_keys(team)
            if owner_project_access != "any":
                rows = rows.filter(has_active_owner=owner_project_access == "active")
            found = keyset(rows, page=page, find=lambda cursor: get_key(team, cursor, param="after"), unknown=NotFound)
            roles = _roles(found.rows, team)
        return found.as_list(present=lambda key: public_key(key, role=roles.get(key.created_by_id)))


class ProjectKeyView(ApiView, path="organization/projects/<project_id>/api_keys/<api_key_id>"):
    """One API key of a project."""

    @Endpoint(AdminScope.KEYS_READ, "Retrieve an API key")
    def get(self, request: ApiRequest, project_id: str, api_key_id: str) -> objects.ProjectApiKey:
        return self._present(get_project(project_id), api_key_id)

    @Endpoint(
        AdminScope.KEYS_WRITE,
        "Change an API key",
        body=UpdateProjectKey,
        errors=(400, 401, 403, 404, 409, 413),
        note="scopes of this server, or `api.all.read`",
    )
    def post(
        self, request: ApiRequest, project_id: str, api_key_id: str, body: UpdateProjectKey
    ) -> objects.ProjectApiKey:
        team = get_project(project_id)
        with scope.team(team.pk):
            key = get_key(team, api_key_id)
            try:
                services.update_key(
                    key=key,
                    scopes=None if body.scopes is None else checked_scopes(body.scopes),
                    expires_at=shared_now() + timedelta(seconds=body.expires_in_seconds)
                    if body.expires_in_seconds
                    else None,
                    actor=request.principal.actor,
                )
            except ValueError as error:
                raise Conflict("The API key has expired. Expired keys cannot be changed.") from error
        return self._present(team, api_key_id)

    @Endpoint(AdminScope.KEYS_WRITE, "Delete an API key", note="revokes it; its usage and audit records are kept")
    def delete(self, request: ApiRequest, project_id: str, api_key_id: str) -> objects.DeletedProjectApiKey:
        team = get_project(project_id)
        with scope.team(team.pk):
            services.revoke_key(key=get_key(team, api_key_id), actor=request.principal.actor)
        return {"id": api_key_id, "object": "organization.project.api_key.deleted", "deleted": True}

    @staticmethod
    def _present(team: Team, key_id: str) -> objects.ProjectApiKey:
        with scope.team(team.pk):
            get_key(team, key_id)
            key = _owned_keys(team).get(pk=key_id)
            return public_key(key, role=_roles([key], team).get(key.created_by_id))

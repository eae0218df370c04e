"""Endpoints of `/v1/organization/projects/{project_id}/service_accounts` and the keys of service accounts."""

from datetime import datetime, timedelta
from typing import Literal

from core.clock import shared_now, unix
from core.errors import Conflict, MutuallyExclusive, NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, keyset, page_argument
from core.http.wire import Wire
from organization.api import objects
from organization.api.bodies import ExpiresInSeconds, Name
from organization.api.lookup import get_project, get_service_account
from organization.api.project_keys import checked_scopes
from tenants import scope, services
from tenants.models import AdminScope, Scope, ServiceAccount
from tenants.views import ApiRequest, ApiView

_PATH = "organization/projects/<project_id>/service_accounts"


class CreateServiceAccount(Wire):
    """Body of a request to create a service account."""

    name: Name
    create_service_account_only: bool | None = None
    expires_in_seconds: ExpiresInSeconds | None = None


class UpdateServiceAccount(Wire):
    """Body of a request to change a service account."""

    name: Name | None = None
    role: Literal["member"] | None = None


class CreateServiceAccountKey(Wire):
    """Body of a request to create a key of a service account."""

    name: Name = "Secret Key"
    scopes: list[str] | None = None
    expires_in_seconds: ExpiresInSeconds | None = None


def public_account(account: ServiceAccount) -> objects.ServiceAccount:
    """Return the `organization.project.service_account` object of the API."""
    return {
        "id": account.pk,
        "object": "organization.project.service_account",
        "name": account.name,
        "role": account.role,
        "created_at": unix(account.created_at),
    }


def _with_secret(new: services.NewKey) -> objects.ServiceAccountApiKey:
    return {
        "id": new.key.pk,
        "object": "organization.project.service_account.api_key",
        "name": new.key.name,
        "value": new.secret,
        "created_at": unix(new.key.created_at),
        "expires_at": unix(new.key.expires_at) if new.key.expires_at else None,
    }


def _expires_at(seconds: int | None) -> datetime | None:
    return shared_now() + timedelta(seconds=seconds) if seconds else None


class ServiceAccountsView(ApiView, path=_PATH):
    """Service accounts of a project."""

    @Endpoint(
        AdminScope.KEYS_WRITE,
        "Create a service account",
        body=CreateServiceAccount,
        note="with an API key, unless `create_service_account_only` is true",
    )
    def post(self, request: ApiRequest, project_id: str, body: CreateServiceAccount) -> objects.ServiceAccountWithKey:
        if body.create_service_account_only and body.expires_in_seconds:
            raise MutuallyExclusive("create_service_account_only", "expires_in_seconds")
        account, key = services.create_service_account(
            team=get_project(project_id),
            name=body.name,
            with_key=not body.create_service_account_only,
            expires_at=_expires_at(body.expires_in_seconds),
            actor=request.principal.actor,
        )
        return {**public_account(account), "api_key": _with_secret(key) if key else None}

    @Endpoint(AdminScope.KEYS_READ, "List the service accounts of a project", query=(page_argument(before=False),))
    def get(self, request: ApiRequest, project_id: str, page: PageRequest) -> ListPage[objects.ServiceAccount]:
        team = get_project(project_id)
        with scope.team(team.pk):
            found = keyset(
                ServiceAccount.objects.filter(team=team, deleted_at=None),
                page=page,
                find=lambda cursor: get_service_account(team, cursor, param="after"),
                unknown=NotFound,
            )
        return found.as_list(present=public_account)


class ServiceAccountView(ApiView, path=f"{_PATH}/<service_account_id>"):
    """One service account of a project."""

    @Endpoint(AdminScope.KEYS_READ, "Retrieve a service account")
    def get(self, request: ApiRequest, project_id: str, service_account_id: str) -> objects.ServiceAccount:
        return public_account(_find(project_id, service_account_id))

    @Endpoint(
        AdminScope.KEYS_WRITE,
        "Change a service account",
        body=UpdateServiceAccount,
        note="the only role is `member`: the scopes of its keys determine the permissions of a service account",
    )
    def post(
        self, request: ApiRequest, project_id: str, service_account_id: str, body: UpdateServiceAccount
    ) -> objects.ServiceAccount:
        changed = services.update_service_account(
            account=_find(project_id, service_account_id),
            name=body.name,
            role=body.role,
            actor=request.principal.actor,
        )
        return public_account(changed)

    @Endpoint(AdminScope.KEYS_WRITE, "Delete a service account", note="revokes its keys")
    def delete(self, request: ApiRequest, project_id: str, service_account_id: str) -> objects.DeletedServiceAccount:
        account = _find(project_id, service_account_id)
        services.delete_service_account(account=account, actor=request.principal.actor)
        return {"id": service_account_id, "object": "organization.project.service_account.deleted", "deleted": True}


class ServiceAccountKeysView(ApiView, path=f"{_PATH}/<service_account_id>/api_keys"):
    """Keys of a service account. They are listed, changed and deleted as keys of the project."""

    @Endpoint(
        AdminScope.KEYS_WRITE,
        "Create an API key of a service account",
        body=CreateServiceAccountKey,
        errors=(400, 401, 403, 404, 409, 413),
        note="only this answer contains the secret",
    )
    def post(
        self, request: ApiRequest, project_id: str, service_account_id: str, body: CreateServiceAccountKey
    ) -> objects.ServiceAccountApiKey:
        account = _find(project_id, service_account_id)
        if account.role == "none":
            raise Conflict("The service account has the role 'none'. Change it to 'member' to create keys.")
        spec = services.KeySpec(
            name=body.name,
            scopes=[Scope.ALL.value] if body.scopes is None else checked_scopes(body.scopes),
            expires_at=_expires_at(body.expires_in_seconds),
            service_account=account,
        )
        new = services.create_key(team=account.team, spec=spec, actor=request.principal.actor)
        return _with_secret(new)


def _find(project_id: str, account_id: str) -> ServiceAccount:
    team = get_project(project_id)
    with scope.team(team.pk):
        return get_service_account(team, account_id)

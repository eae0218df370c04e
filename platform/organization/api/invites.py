"""Endpoints of `/v1/organization/invites`. The link of an invitation is shown in the console only."""

from typing import Annotated, Literal

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from pydantic import Field

from core.clock import unix
from core.errors import Conflict, InvalidValue, NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, keyset, page_argument
from core.http.wire import Wire
from organization.api import objects
from organization.api.lookup import get_project
from tenants import invitations
from tenants.invitations import ProjectRole
from tenants.models import AdminScope, Invite
from tenants.views import ApiRequest, ApiView


class InviteToProject(Wire):
    """A project of an invitation."""

    id: str
    role: Literal["member", "owner", "auditor"]


class CreateInvite(Wire):
    """Body of a request to invite a person."""

    email: Annotated[str, Field(min_length=1, max_length=254)]
    role: Literal["reader"]
    projects: Annotated[list[InviteToProject], Field(max_length=100)] | None = None


def public_invite(invite: Invite) -> objects.Invite:
    """Return the `organization.invite` object of the API."""
    return {
        "id": invite.pk,
        "object": "organization.invite",
        "email": invite.email,
        "role": "reader",
        "status": invitations.status_of(invite),
        "created_at": unix(invite.created_at),
        "expires_at": unix(invite.expires_at),
        "accepted_at": unix(invite.accepted_at) if invite.accepted_at else None,
        "projects": invite.projects,
    }


class InvitesView(ApiView, path="organization/invites"):
    """All invitations."""

    @Endpoint(
        AdminScope.INVITES_WRITE,
        "Create an invite",
        body=CreateInvite,
        errors=(400, 401, 403, 404, 409, 413),
        note="valid for 7 days; the console shows the link to send, which no answer contains",
    )
    def post(self, request: ApiRequest, body: CreateInvite) -> objects.Invite:
        try:
            validate_email(body.email)
        except ValidationError as error:
            raise InvalidValue("Invalid 'email': this is not an e-mail address.", param="email") from error
        given = {project.id: (index, project.role) for index, project in enumerate(body.projects or ())}
        projects = [
            ProjectRole(team=get_project(project_id, param=f"projects[{index}].id"), role=role)
            for project_id, (index, role) in given.items()
        ]
        try:
            made = invitations.create_invite(email=body.email, projects=projects, actor=request.principal.actor)
        except invitations.EmailTaken as error:
            message = "A user has this e-mail address already. Add the user to projects instead."
            raise Conflict(message, param="email") from error
        return public_invite(made)

    @Endpoint(AdminScope.INVITES_READ, "List invites", query=(page_argument(before=False),))
    def get(self, request: ApiRequest, page: PageRequest) -> ListPage[objects.Invite]:
        rows = Invite.objects.all()
        found = keyset(rows, page=page, find=lambda cursor: _find(cursor, param="after"), unknown=NotFound)
        return found.as_list(present=public_invite)


class InviteView(ApiView, path="organization/invites/<invite_id>"):
    """One invitation."""

    @Endpoint(AdminScope.INVITES_READ, "Retrieve an invite")
    def get(self, request: ApiRequest, invite_id: str) -> objects.Invite:
        return public_invite(_find(invite_id))

    @Endpoint(
        AdminScope.INVITES_WRITE,
        "Delete an invite",
        errors=(400, 401, 403, 404, 409),
        note="its link no longer works; not after it was accepted",
    )
    def delete(self, request: ApiRequest, invite_id: str) -> objects.DeletedInvite:
        try:
            invitations.delete_invite(invite=_find(invite_id), actor=request.principal.actor)
        except invitations.NotPending as error:
            raise Conflict("The invite was accepted. Delete the user instead.") from error
        return {"id": invite_id, "object": "organization.invite.deleted", "deleted": True}


def _find(invite_id: str, *, param: str | None = None) -> Invite:
    invite = Invite.objects.filter(pk=invite_id).first()
    if invite is None:
        raise NotFound(f"No such invite: {invite_id}", param=param)
    return invite

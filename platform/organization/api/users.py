"""Endpoints of `/v1/organization/users` and `/v1/organization/projects/{project_id}/users`.

An owner of the organization is an administrator of the platform; every other user is a reader. In a project, leads are
owners, developers are members, and auditors, which OpenAI does not have, are `auditor`.
"""

from typing import Literal

from django.contrib.auth.models import User

from core.clock import unix
from core.errors import Conflict, InvalidValue, MissingParameter, MutuallyExclusive, NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, keyset, page_argument
from core.http.query import texts_argument
from core.http.wire import Wire
from organization.api import objects
from organization.api.lookup import get_member, get_project, get_user
from tenants import members, scope
from tenants.members import public_role, role_of, user_id
from tenants.models import AdminScope, Membership
from tenants.views import ApiRequest, ApiView


class AddProjectUser(Wire):
    """Body of a request to add a user to a project."""

    role: Literal["owner", "member", "auditor"]
    user_id: str | None = None
    email: str | None = None


class UpdateProjectUser(Wire):
    """Body of a request to change the role of a user in a project."""

    role: Literal["owner", "member", "auditor"] | None = None


def public_user(user: User) -> objects.OrganizationUser:
    """Return the `organization.user` object of the API. Must run inside a scope that sees every team."""
    memberships = Membership.objects.filter(user=user).select_related("team").order_by("pk")
    projects: list[objects.UserProject] = [
        {"id": membership.team.pk, "name": membership.team.name, "role": public_role(membership.role)}
        for membership in memberships
    ]
    return {
        "id": user_id(user),
        "object": "organization.user",
        "name": user.get_full_name() or user.get_username(),
        "email": user.email or None,
        "role": "owner" if user.is_superuser else "reader",
        "added_at": unix(user.date_joined),
        "is_service_account": False,
        "projects": {"object": "list", "data": projects},
    }


def public_member(member: Membership) -> objects.ProjectUser:
    """Return the `organization.project.user` object of the API."""
    return {
        "id": user_id(member.user),
        "object": "organization.project.user",
        "name": member.user.get_full_name() or member.user.get_username(),
        "email": member.user.email or None,
        "role": public_role(member.role),
        "added_at": unix(member.created_at),
    }


def _last_owner(error: members.LastLead) -> Conflict:
    return Conflict("The user is the only owner of a project, which must have one.")


class UsersView(ApiView, path="organization/users"):
    """Users of the platform."""

    @Endpoint(
        AdminScope.USERS_READ,
        "List users",
        query=(page_argument(before=False), texts_argument("emails")),
        note="administrators are owners, all others readers",
    )
    def get(self, request: ApiRequest, page: PageRequest, emails: list[str]) -> ListPage[objects.OrganizationUser]:
        rows = User.objects.filter(is_active=True)
        if emails:
            rows = rows.filter(email__in=emails)
        with scope.every_team():
            found = keyset(
                rows, page=page, find=lambda user_id: get_user(user_id, param="after"), unknown=NotFound, by=["pk"]
            )
            return found.as_list(present=public_user)


class UserView(ApiView, path="organization/users/<user_id>"):
    """One user of the platform."""

    @Endpoint(AdminScope.USERS_READ, "Retrieve a user")
    def get(self, request: ApiRequest, user_id: str) -> objects.OrganizationUser:
        with scope.every_team():
            return public_user(get_user(user_id))

    @Endpoint(
        AdminScope.USERS_WRITE,
        "Delete a user",
        errors=(400, 401, 403, 404, 409),
        note="deactivates the account and removes it from all projects; not administrators",
    )
    def delete(self, request: ApiRequest, user_id: str) -> objects.DeletedOrganizationUser:
        user = get_user(user_id)
        if user.is_superuser:
            raise Conflict("The user is an administrator. Administrators are managed in the console.")
        try:
            members.deactivate_user(user=user, actor=request.principal.actor)
        except members.LastLead as error:
            raise _last_owner(error) from error
        return {"id": user_id, "object": "organization.user.deleted", "deleted": True}


class ProjectUsersView(ApiView, path="organization/projects/<project_id>/users"):
    """Users of a project."""

    @Endpoint(
        AdminScope.USERS_WRITE,
        "Add a user to a project",
        body=AddProjectUser,
        errors=(400, 401, 403, 404, 409, 413),
        note="by `user_id` or `email`; the role `auditor` is an extension",
    )
    def post(self, request: ApiRequest, project_id: str, body: AddProjectUser) -> objects.ProjectUser:
        team = get_project(project_id)
        if body.user_id and body.email:
            raise MutuallyExclusive("user_id", "email")
        if body.user_id:
            user = get_user(body.user_id, param="user_id")
        elif not body.email:
            raise MissingParameter("user_id")
        elif (known := members.find_by_email(body.email)) is not None:
            user = known
        else:
            raise InvalidValue("No user has this e-mail address. Invite the person instead.", param="email")
        made = members.add_member(team=team, user=user, role=role_of(body.role), actor=request.principal.actor)
        if made is None:
            raise Conflict("The user is in the project already.")
        return public_member(made)

    @Endpoint(AdminScope.USERS_READ, "List the users of a project", query=(page_argument(before=False),))
    def get(self, request: ApiRequest, project_id: str, page: PageRequest) -> ListPage[objects.ProjectUser]:
        team = get_project(project_id)
        with scope.team(team.pk):
            found = keyset(
                Membership.objects.filter(team=team, user__is_active=True).select_related("user"),
                page=page,
                find=lambda user_id: get_member(team, user_id, param="after"),
                unknown=NotFound,
                by=["pk"],
            )
            return found.as_list(present=public_member)


class ProjectUserView(ApiView, path="organization/projects/<project_id>/users/<user_id>"):
    """One user of a project."""

    @Endpoint(AdminScope.USERS_READ, "Retrieve a user of a project")
    def get(self, request: ApiRequest, project_id: str, user_id: str) -> objects.ProjectUser:
        return public_member(_find(project_id, user_id))

    @Endpoint(
        AdminScope.USERS_WRITE,
        "Change the role of a user in a project",
        body=UpdateProjectUser,
        errors=(400, 401, 403, 404, 409, 413),
    )
    def post(self, request: ApiRequest, project_id: str, user_id: str, body: UpdateProjectUser) -> objects.ProjectUser:
        member = _find(project_id, user_id)
        if body.role is not None and body.role != public_role(member.role):
            try:
                members.change_member(
                    member=member,
                    role=role_of(body.role),
                    view_content=member.view_content,
                    actor=request.principal.actor,
                )
            except members.LastLead as error:
                raise _last_owner(error) from error
        return public_member(member)

    @Endpoint(AdminScope.USERS_WRITE, "Remove a user from a project", errors=(400, 401, 403, 404, 409))
    def delete(self, request: ApiRequest, project_id: str, user_id: str) -> objects.DeletedProjectUser:
        try:
            members.remove_member(member=_find(project_id, user_id), actor=request.principal.actor)
        except members.LastLead as error:
            raise _last_owner(error) from error
        return {"id": user_id, "object": "organization.project.user.deleted", "deleted": True}


def _find(project_id: str, user_id: str) -> Membership:
    team = get_project(project_id)
    with scope.team(team.pk):
        return get_member(team, user_id)

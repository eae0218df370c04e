"""Endpoints of `/v1/organization/projects`. A project is a team; an archived one is a suspended team."""

from django.http import QueryDict

from core.clock import unix
from core.errors import Conflict, NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, keyset, page_argument
from core.http.query import QueryArgument, choice, parameter
from core.http.wire import Wire
from organization.api import objects
from organization.api.bodies import Name
from organization.api.lookup import get_project
from tenants import scope, services
from tenants.models import AdminScope, Team
from tenants.views import ApiRequest, ApiView


def _archived_argument() -> QueryArgument:
    def read(query: QueryDict) -> bool:
        return choice(query, "include_archived", ["true", "false"]) == "true"

    return QueryArgument(
        "include_archived", [parameter("include_archived", {"type": "boolean", "default": False})], read
    )


class CreateProject(Wire):
    """Body of a request to create a project."""

    name: Name


class UpdateProject(Wire):
    """Body of a request to change a project."""

    name: Name | None = None


def public_project(team: Team) -> objects.Project:
    """Return the `organization.project` object of the API."""
    return {
        "id": team.pk,
        "object": "organization.project",
        "name": team.name,
        "created_at": unix(team.created_at),
        "archived_at": unix(team.suspended_at) if team.suspended_at else None,
        "status": "archived" if team.suspended_at else "active",
    }


def _name_taken(name: str) -> Conflict:
    return Conflict(f"A project named '{name}' exists already.", param="name")


class ProjectsView(ApiView, path="organization/projects"):
    """All projects."""

    @Endpoint(
        AdminScope.PROJECTS_WRITE,
        "Create a project",
        body=CreateProject,
        errors=(400, 401, 403, 409, 413),
        note="a team; its name must be unique",
    )
    def post(self, request: ApiRequest, body: CreateProject) -> objects.Project:
        try:
            team = services.create_team(name=body.name, actor=request.principal.actor)
        except services.NameTaken as error:
            raise _name_taken(body.name) from error
        return public_project(team)

    @Endpoint(AdminScope.PROJECTS_READ, "List projects", query=(page_argument(before=False), _archived_argument()))
    def get(self, request: ApiRequest, page: PageRequest, *, include_archived: bool) -> ListPage[objects.Project]:
        with scope.every_team():
            rows = Team.objects.all() if include_archived else Team.objects.filter(suspended_at=None)
            found = keyset(rows, page=page, find=lambda cursor: get_project(cursor, param="after"), unknown=NotFound)
        return found.as_list(present=public_project)


class ProjectView(ApiView, path="organization/projects/<project_id>"):
    """One project."""

    @Endpoint(AdminScope.PROJECTS_READ, "Retrieve a project")
    def get(self, request: ApiRequest, project_id: str) -> objects.Project:
        return public_project(get_project(project_id))

    @Endpoint(AdminScope.PROJECTS_WRITE, "Change a project", body=UpdateProject, errors=(400, 401, 403, 404, 409, 413))
    def post(self, request: ApiRequest, project_id: str, body: UpdateProject) -> objects.Project:
        team = get_project(project_id)
        if body.name is not None:
            try:
                team = services.update_team(team=team, values={"name": body.name}, actor=request.principal.actor)
            except services.NameTaken as error:
                raise _name_taken(body.name) from error
        return public_project(team)


class ArchiveProjectView(ApiView, path="organization/projects/<project_id>/archive"):
    """Archiving of a project."""

    @Endpoint(
        AdminScope.PROJECTS_WRITE,
        "Archive a project",
        takes_no_body=True,
        note="suspends the team, whose keys are refused within two seconds; the console resumes it",
    )
    def post(self, request: ApiRequest, project_id: str) -> objects.Project:
        services.suspend_team(team=get_project(project_id), suspended=True, actor=request.principal.actor)
        return public_project(get_project(project_id))

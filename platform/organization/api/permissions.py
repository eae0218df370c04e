"""Permissions of a project: the models and the hosted tools that its team may use."""

from typing import Annotated, Any, Literal

from pydantic import Field

from core.http.endpoints import Endpoint
from core.http.wire import Wire
from organization.api import objects
from organization.api.lookup import get_project
from tenants import services
from tenants.models import AdminScope, ModelPolicy, Team, ToolKind
from tenants.views import ApiRequest, ApiView

# The kinds of tools that OpenAI's object has; `shell` is not among them.
_TOOLS = (
    ToolKind.CODE_INTERPRETER,
    ToolKind.FILE_SEARCH,
    ToolKind.IMAGE_GENERATION,
    ToolKind.MCP,
    ToolKind.WEB_SEARCH,
)


class UpdateModelPermissions(Wire):
    """Body of a request to set the models of a project."""

    mode: Literal["allow_list", "deny_list"]
    model_ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=1000)]


class SetHostedTool(Wire):
    """Permission to use one kind of hosted tool."""

    enabled: bool


class UpdateHostedTools(Wire):
    """Body of a request to change the hosted tools of a project; those that it leaves out remain as they are."""

    code_interpreter: SetHostedTool | None = None
    file_search: SetHostedTool | None = None
    image_generation: SetHostedTool | None = None
    mcp: SetHostedTool | None = None
    web_search: SetHostedTool | None = None


def _public_models(team: Team) -> objects.ProjectModelPermissions:
    # Without a policy nothing is denied.
    mode = team.model_policy or ModelPolicy.DENY_LIST.value
    return {"object": "project.model_permissions", "mode": mode, "model_ids": team.model_names}


def _public_tools(team: Team) -> objects.ProjectHostedToolPermissions:
    def permission(kind: ToolKind) -> objects.HostedToolPermission:
        return {"enabled": ToolKind.ALL.value in team.tools or kind.value in team.tools}

    return {
        "code_interpreter": permission(ToolKind.CODE_INTERPRETER),
        "file_search": permission(ToolKind.FILE_SEARCH),
        "image_generation": permission(ToolKind.IMAGE_GENERATION),
        "mcp": permission(ToolKind.MCP),
        "web_search": permission(ToolKind.WEB_SEARCH),
    }


class ModelPermissionsView(ApiView, path="organization/projects/<project_id>/model_permissions"):
    """The models that a project may use."""

    @Endpoint(AdminScope.PROJECTS_READ, "Retrieve the model permissions of a project")
    def get(self, request: ApiRequest, project_id: str) -> objects.ProjectModelPermissions:
        return _public_models(get_project(project_id))

    @Endpoint(
        AdminScope.PROJECTS_WRITE,
        "Set the model permissions of a project",
        body=UpdateModelPermissions,
        note="further restrict the models that routes make visible to the team; takes effect within two seconds",
    )
    def post(
        self, request: ApiRequest, project_id: str, body: UpdateModelPermissions
    ) -> objects.ProjectModelPermissions:
        values = {"model_policy": body.mode, "model_names": list(dict.fromkeys(body.model_ids))}
        return _public_models(_update(request, project_id, values))

    @Endpoint(
        AdminScope.PROJECTS_WRITE,
        "Delete the model permissions of a project",
        note="the project may use all models that are visible to the team",
    )
    def delete(self, request: ApiRequest, project_id: str) -> objects.DeletedProjectModelPermissions:
        _update(request, project_id, {"model_policy": "", "model_names": []})
        return {"object": "project.model_permissions.deleted", "deleted": True}


class HostedToolPermissionsView(ApiView, path="organization/projects/<project_id>/hosted_tool_permissions"):
    """The hosted tools that a project may use."""

    @Endpoint(AdminScope.PROJECTS_READ, "Retrieve the hosted tool permissions of a project")
    def get(self, request: ApiRequest, project_id: str) -> objects.ProjectHostedToolPermissions:
        return _public_tools(get_project(project_id))

    @Endpoint(
        AdminScope.PROJECTS_WRITE,
        "Change the hosted tool permissions of a project",
        body=UpdateHostedTools,
        note="`shell` is changed in the console",
    )
    def post(
        self, request: ApiRequest, project_id: str, body: UpdateHostedTools
    ) -> objects.ProjectHostedToolPermissions:
        team = get_project(project_id)
        given = {kind.value: setting.enabled for kind in _TOOLS if (setting := getattr(body, kind.value)) is not None}
        if ToolKind.ALL.value in team.tools:
            if all(given.values()):
                return _public_tools(team)
            # `*` without some becomes a list of the present tools: tools that are added later are not allowed.
            allowed = {kind.value for kind in ToolKind if kind is not ToolKind.ALL}
        else:
            allowed = set(team.tools)
        allowed = (allowed | {name for name, on in given.items() if on}) - {
            name for name, on in given.items() if not on
        }
        # In the order of the kinds, so that equal permissions are stored equally.
        tools = [kind.value for kind in ToolKind if kind.value in allowed]
        return _public_tools(_update(request, project_id, {"tools": tools}))


def _update(request: ApiRequest, project_id: str, values: dict[str, Any]) -> Team:
    return services.update_team(team=get_project(project_id), values=values, actor=request.principal.actor)

"""Endpoints of `/v1/containers`. Methods that wait for the sandbox service are asynchronous."""

import mimetypes
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import PurePosixPath

from django.http import StreamingHttpResponse

from containers import access, objects, selectors, services
from containers.api.schema import CreateContainer, read_file
from containers.models import Container, ContainerFile
from containers.policy import check_policy
from containers.services import ContainerSpec
from core.db.db_threads import in_db_thread
from core.errors import NotFound
from core.http.asgi import header
from core.http.endpoints import BINARY, STRING, ApiObject, Endpoint
from core.http.pagination import PAGE, PageRequest
from core.http.query import QueryArgument, parameter
from core.http.rendering import download_headers
from sandbox.client import OperationFailed
from skills.services import find_mountable
from tenants import scope
from tenants.models import Scope, ToolKind
from tenants.principal import Principal
from tenants.views import ApiRequest, ApiView

_NEW_FILE = ApiObject.of(
    "NewContainerFile", {"file": BINARY, "file_id": {"type": "string", "maxLength": 128}}, required=[]
)
_NAME = QueryArgument("name", [parameter("name", STRING)], lambda query: query.get("name"))


class ContainersView(ApiView, path="containers"):
    """All containers of a team."""

    @Endpoint(
        Scope.CONTAINERS_WRITE,
        "Create a container",
        body=CreateContainer,
        errors=(400, 401, 403, 404, 413, 503),
        note="requires the sandbox service; expires after at most 20 minutes without activity; a network only with "
        "`CONTAINER_ALLOWED_DOMAINS`, without `domain_secrets`",
    )
    async def post(self, request: ApiRequest, body: CreateContainer) -> objects.Container:
        principal = _permitted(request)
        memory = body.memory_limit or "1g"
        domains = check_policy(body.network_policy, param="network_policy")
        await services.check_sandbox(memory, param="name", memory_param="memory_limit")
        files = await in_db_thread(
            lambda: services.find_files(team_id=principal.team_id, file_ids=body.file_ids or (), param="file_ids")
        )
        wanted = [skill.model_dump() for skill in body.skills or ()]
        skills = await find_mountable(team_id=principal.team_id, skills=wanted, param="skills")
        spec = ContainerSpec(name=body.name, memory=memory, files=files, skills=skills, domains=domains)
        if body.expires_after is not None:
            spec = replace(spec, minutes=body.expires_after.minutes)
        made = await services.create_container(team_id=principal.team_id, key_id=principal.key_id, spec=spec)
        return selectors.public_container(made)

    @Endpoint(Scope.CONTAINERS_READ, "List containers", query=(_NAME, PAGE))
    def get(self, request: ApiRequest, name: str | None, page: PageRequest) -> objects.ContainerList:
        with scope.team(request.principal.team_id):
            found = selectors.list_containers(team_id=request.principal.team_id, name=name, page=page)
        return found.as_list(present=selectors.public_container)


class ContainerView(ApiView, path="containers/<cntr:container_id>"):
    """One container."""

    @Endpoint(Scope.CONTAINERS_READ, "Retrieve a container")
    def get(self, request: ApiRequest, container_id: str) -> objects.Container:
        return selectors.public_container(_container(request.principal, container_id))

    @Endpoint(Scope.CONTAINERS_DELETE, "Delete a container", note="ends all processes in it")
    async def delete(self, request: ApiRequest, container_id: str) -> objects.DeletedContainer:
        principal = request.principal
        container = await in_db_thread(lambda: _container(principal, container_id))
        await services.delete_container(principal=principal, container=container)
        return {"id": container_id, "object": "container.deleted", "deleted": True}


class ContainerFilesView(ApiView, path="containers/<cntr:container_id>/files"):
    """Files of a container."""

    @Endpoint(
        Scope.CONTAINERS_WRITE,
        "Create a container file",
        form=_NEW_FILE,
        note="multipart up to 64 MiB, or a `file_id`",
    )
    async def post(self, request: ApiRequest, container_id: str) -> objects.ContainerFile:
        principal = _permitted(request)
        new = read_file(request.asgi["body"], header(request.asgi, b"content-type"))
        container = await in_db_thread(lambda: _container(principal, container_id, running=True))
        if new.file_id is None:
            file = await services.add_file(container=container, filename=new.filename, content=new.content)
        else:
            ids = [new.file_id]
            [source] = await in_db_thread(
                lambda: services.find_files(team_id=principal.team_id, file_ids=ids, param="file_id")
            )
            file = await services.put_file(container=container, file=source)
        return selectors.public_container_file(file)

    @Endpoint(Scope.CONTAINERS_READ, "List container files", query=(PAGE,), note="the regular files below `/mnt/data`")
    def get(self, request: ApiRequest, container_id: str, page: PageRequest) -> objects.ContainerFileList:
        with scope.team(request.principal.team_id):
            container = access.get_running_container(principal=request.principal, container_id=container_id)
            found = selectors.list_container_files(container=container, page=page)
        return found.as_list(present=selectors.public_container_file)


class ContainerFileView(ApiView, path="containers/<cntr:container_id>/files/<cfile:file_id>"):
    """One file of a container."""

    @Endpoint(Scope.CONTAINERS_READ, "Retrieve a container file")
    def get(self, request: ApiRequest, container_id: str, file_id: str) -> objects.ContainerFile:
        return selectors.public_container_file(_file(request.principal, container_id, file_id)[1])

    @Endpoint(Scope.CONTAINERS_DELETE, "Delete a container file")
    async def delete(self, request: ApiRequest, container_id: str, file_id: str) -> objects.DeletedContainerFile:
        principal = request.principal
        container, file = await in_db_thread(lambda: _file(principal, container_id, file_id))
        await services.delete_file(principal=principal, container=container, file=file)
        return {"id": file_id, "object": "container.file.deleted", "deleted": True}


class ContainerFileContentView(ApiView, path="containers/<cntr:container_id>/files/<cfile:file_id>/content"):
    """Content of a file of a container."""

    @Endpoint(Scope.CONTAINERS_READ, "Retrieve the content of a container file", returns="*/*")
    async def get(self, request: ApiRequest, container_id: str, file_id: str) -> StreamingHttpResponse:
        container, file = await in_db_thread(lambda: _file(request.principal, container_id, file_id))
        pieces = services.read_file(container=container, file=file)
        try:
            # Read before the response starts, because an error cannot be reported once the headers are sent.
            first = await anext(pieces, b"")
        except OperationFailed as failed:
            raise NotFound(f"The file cannot be read: {failed}.") from failed

        async def content() -> AsyncGenerator[bytes, None]:
            async with aclosing(pieces):
                yield first
                async for piece in pieces:
                    yield piece

        name = PurePosixPath(file.path).name
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return StreamingHttpResponse(content(), content_type=kind, headers=download_headers(name))


def _permitted(request: ApiRequest) -> Principal:
    # Creating and filling containers uses the same resources as running code, so it takes the same permission.
    request.principal.require_any_tool(ToolKind.CODE_INTERPRETER, ToolKind.SHELL)
    return request.principal


def _container(principal: Principal, container_id: str, *, running: bool = False) -> Container:
    find = access.get_running_container if running else access.get_container
    with scope.team(principal.team_id):
        return find(principal=principal, container_id=container_id)


def _file(principal: Principal, container_id: str, file_id: str) -> tuple[Container, ContainerFile]:
    with scope.team(principal.team_id):
        container = access.get_running_container(principal=principal, container_id=container_id)
        return container, access.get_container_file(container=container, file_id=file_id)

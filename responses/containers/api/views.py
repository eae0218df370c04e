"""Views of `/v1/containers`. Those that wait for the sandbox service are asynchronous."""

import mimetypes
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import Any

import orjson
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.utils.http import content_disposition_header
from rest_framework.request import Request
from rest_framework.response import Response as Answer

from conversations.api.requests import principal_of
from kernel.db_threads import in_db_thread
from kernel.errors import NotFound
from kernel.http import JSON
from kernel.pagination import PageRequest
from kernel.query import reject_unknown
from kernel.views import ApiView
from responses.containers import access, selectors, services
from responses.containers.api.schema import read_container, read_file
from responses.containers.models import Container, ContainerFile
from responses.containers.services import ContainerSpec
from sandbox.client import OperationFailed
from tenants import scope
from tenants.authentication import authenticate
from tenants.models import Scope, ToolKind
from tenants.principal import Principal


class ListContainers(ApiView):
    """`GET /v1/containers`."""

    def get(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONTAINERS_READ)
        reject_unknown(request.query_params, filters=("name",))
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            name = request.query_params.get("name")
            found = selectors.list_containers(team_id=principal.team_id, name=name, page=page)
        return Answer(found.as_list(present=selectors.public_container))


class ListContainerFiles(ApiView):
    """`GET /v1/containers/{id}/files`."""

    def get(self, request: Request, container_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.CONTAINERS_READ)
        reject_unknown(request.query_params)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            container = access.get_running_container(principal=principal, container_id=container_id)
            found = selectors.list_container_files(container=container, page=page)
        return Answer(found.as_list(present=selectors.public_container_file))


async def create_container(request: ASGIRequest) -> HttpResponse:
    """`POST /v1/containers`."""
    principal = await _writer(request)
    body = read_container(request.scope["body"])
    memory = body.memory_limit or "1g"
    await services.check_sandbox(memory, param="name", memory_param="memory_limit")
    files = await in_db_thread(
        lambda: services.find_files(team_id=principal.team_id, file_ids=body.file_ids or (), param="file_ids")
    )
    spec = ContainerSpec(name=body.name, memory=memory, files=files)
    if body.expires_after is not None:
        spec = ContainerSpec(name=body.name, memory=memory, files=files, minutes=body.expires_after.minutes)
    made = await services.create_container(team_id=principal.team_id, key_id=principal.key_id, spec=spec)
    return _json(selectors.public_container(made))


async def retrieve_container(request: ASGIRequest, container_id: str) -> HttpResponse:
    """`GET /v1/containers/{id}`."""
    principal = await _caller(request, Scope.CONTAINERS_READ)
    return _json(selectors.public_container(await _container(principal, container_id)))


async def delete_container(request: ASGIRequest, container_id: str) -> HttpResponse:
    """`DELETE /v1/containers/{id}`."""
    principal = await _caller(request, Scope.CONTAINERS_DELETE)
    container = await _container(principal, container_id)
    await services.delete_container(principal=principal, container=container, request_id=request.scope["request_id"])
    return _json({"id": container_id, "object": "container.deleted", "deleted": True})


async def create_file(request: ASGIRequest, container_id: str) -> HttpResponse:
    """`POST /v1/containers/{id}/files`."""
    principal = await _writer(request)
    new = read_file(request.scope["body"], request.headers.get("Content-Type", ""))
    container = await _running(principal, container_id)
    if new.file_id is None:
        file = await services.add_file(container=container, filename=new.filename, content=new.content)
    else:
        ids = [new.file_id]
        [source] = await in_db_thread(
            lambda: services.find_files(team_id=principal.team_id, file_ids=ids, param="file_id")
        )
        file = await services.put_file(container=container, file=source)
    return _json(selectors.public_container_file(file))


async def retrieve_file(request: ASGIRequest, container_id: str, file_id: str) -> HttpResponse:
    """`GET /v1/containers/{id}/files/{file_id}`."""
    principal = await _caller(request, Scope.CONTAINERS_READ)
    _, file = await _file(principal, container_id, file_id)
    return _json(selectors.public_container_file(file))


async def file_content(request: ASGIRequest, container_id: str, file_id: str) -> StreamingHttpResponse:
    """`GET /v1/containers/{id}/files/{file_id}/content`."""
    principal = await _caller(request, Scope.CONTAINERS_READ)
    container, file = await _file(principal, container_id, file_id)
    pieces = services.read_file(container=container, file=file)
    try:
        # Read before the response starts, because an error cannot be reported once the headers are sent.
        first = await anext(pieces, b"")
    except OperationFailed as failed:
        raise NotFound(f"The file cannot be read: {failed}.") from failed
    name = PurePosixPath(file.path).name
    headers = {
        "Content-Disposition": content_disposition_header(as_attachment=True, filename=name) or "attachment",
        # A file written by a model must not run as a web page in the browser of a user.
        "X-Content-Type-Options": "nosniff",
    }
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return StreamingHttpResponse(_begun(first, pieces), content_type=kind, headers=headers)


async def _begun(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    # The first piece was read before the response started, so that a failure could still become an error response.
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def delete_file(request: ASGIRequest, container_id: str, file_id: str) -> HttpResponse:
    """`DELETE /v1/containers/{id}/files/{file_id}`."""
    principal = await _caller(request, Scope.CONTAINERS_DELETE)
    container, file = await _file(principal, container_id, file_id)
    await services.delete_file(
        principal=principal, container=container, file=file, request_id=request.scope["request_id"]
    )
    return _json({"id": file_id, "object": "container.file.deleted", "deleted": True})


async def _caller(request: ASGIRequest, needed: Scope) -> Principal:
    principal = await authenticate(request.headers.get("Authorization", ""))
    principal.require(needed)
    reject_unknown(request.GET, page=False)
    return principal


async def _writer(request: ASGIRequest) -> Principal:
    """Authenticate a caller that may create or fill containers: this takes permission to run code in them."""
    principal = await _caller(request, Scope.CONTAINERS_WRITE)
    # Creating containers uses the same resources as running code, so it takes the same permission.
    principal.require_any_tool(ToolKind.CODE_INTERPRETER, ToolKind.SHELL)
    return principal


async def _container(principal: Principal, container_id: str) -> Container:
    def find() -> Container:
        with scope.team(principal.team_id):
            return access.get_container(principal=principal, container_id=container_id)

    return await in_db_thread(find)


async def _running(principal: Principal, container_id: str) -> Container:
    def find() -> Container:
        with scope.team(principal.team_id):
            return access.get_running_container(principal=principal, container_id=container_id)

    return await in_db_thread(find)


async def _file(principal: Principal, container_id: str, file_id: str) -> tuple[Container, ContainerFile]:
    def find() -> tuple[Container, ContainerFile]:
        with scope.team(principal.team_id):
            container = access.get_running_container(principal=principal, container_id=container_id)
            return container, access.get_container_file(container=container, file_id=file_id)

    return await in_db_thread(find)


def _json(body: dict[str, Any]) -> HttpResponse:
    return HttpResponse(orjson.dumps(body), content_type=JSON)

"""Views of `/v1/files`. Those that transfer file contents are asynchronous, so that no thread waits for a client."""

import asyncio

import orjson
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.utils.http import content_disposition_header
from rest_framework.request import Request
from rest_framework.response import Response as Answer

from conversations import access
from conversations.api.requests import MAX_LIST, principal_of, purpose_filter, read_upload, request_id_of
from conversations.files import storage
from conversations.models import File
from kernel.db_threads import in_db_thread
from kernel.http import JSON
from kernel.pagination import PageRequest
from kernel.views import ApiView
from tenants import scope
from tenants.authentication import authenticate
from tenants.models import Scope
from tenants.principal import Principal


async def create_file(request: ASGIRequest) -> HttpResponse:
    """`POST /v1/files`."""
    principal = await authenticate(request.headers.get("Authorization", ""))
    principal.require(Scope.FILES_WRITE)
    # Parsing reads and writes files, which would block the event loop.
    upload = await asyncio.to_thread(read_upload, dict(request.scope))
    try:
        file = await storage.create_file(principal=principal, upload=upload)
    finally:
        # Deletes the temporary file.
        upload.content.close()
    return HttpResponse(orjson.dumps(storage.public_file(file)), content_type=JSON)


async def file_content(request: ASGIRequest, file_id: str) -> StreamingHttpResponse:
    """`GET /v1/files/{id}/content`."""
    principal = await authenticate(request.headers.get("Authorization", ""))
    principal.require(Scope.FILES_READ)
    file = await in_db_thread(lambda: _find(principal, file_id))
    content = await storage.open_content(file)
    headers = {
        "Content-Length": str(file.size),
        "Content-Disposition": content_disposition_header(as_attachment=True, filename=file.filename) or "attachment",
        # A file that one member uploaded must not run as a page in another member's browser.
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingHttpResponse(storage.chunks(content), content_type=file.content_type, headers=headers)


def _find(principal: Principal, file_id: str) -> File:
    with scope.team(principal.team_id):
        return access.get_file(principal=principal, file_id=file_id)


class ListFiles(ApiView):
    """`GET /v1/files`."""

    def get(self, request: Request) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.FILES_READ)
        purpose = purpose_filter(request.query_params)
        page = PageRequest.from_query(request.query_params, default=MAX_LIST, most=MAX_LIST)
        with scope.team(principal.team_id):
            found = storage.list_files(team_id=principal.team_id, purpose=purpose, page=page)
        return Answer(found.as_list(present=storage.public_file))


class OneFile(ApiView):
    """`GET` and `DELETE /v1/files/{id}`."""

    def get(self, request: Request, file_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.FILES_READ)
        return Answer(storage.public_file(_find(principal, file_id)))

    def delete(self, request: Request, file_id: str) -> Answer:
        principal = principal_of(request)
        principal.require(Scope.FILES_WRITE)
        file = _find(principal, file_id)
        storage.delete_file(principal=principal, file=file, request_id=request_id_of(request))
        return Answer({"id": file_id, "object": "file", "deleted": True})

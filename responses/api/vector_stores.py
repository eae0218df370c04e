"""Views of `/v1/vector_stores`."""

from typing import Any

from django.http import QueryDict
from rest_framework.request import Request
from rest_framework.response import Response
from typing_extensions import override

from kernel.errors import InvalidValue
from kernel.pagination import Page, PageRequest
from kernel.query import reject_unknown
from kernel.views import ApiView
from responses.api.requests import info_of, principal_of, reject_body, scope_of
from responses.api.views import AsyncApiView
from responses.models.vector_stores import EntryStatus, VectorStoreBatch, VectorStoreFile
from responses.vectors import search, selectors, services
from responses.vectors.embedding import UsageAccount
from responses.vectors.requests import (
    AttachFile,
    AttachFiles,
    CreateStore,
    SearchRanking,
    SearchStore,
    UpdateStore,
    UpdateStoreFile,
    read,
)
from responses.vectors.search import SearchHit, SearchRequest
from responses.vectors.selectors import public_batch, public_entry, public_store
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal


def _caller(request: Request, right: Scope, *, page: bool = False, filters: tuple[str, ...] = ()) -> Principal:
    """Return the principal after checking its scope; raises `Forbidden`, or `UnknownParameter` for the query."""
    principal = principal_of(request)
    principal.require(right)
    reject_unknown(request.query_params, page=page, filters=filters)
    return principal


def _request_id(request: Request) -> str:
    return info_of(scope_of(request)).request_id


class VectorStoreListView(ApiView):
    """`GET` and `POST /v1/vector_stores`."""

    def get(self, request: Request) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ, page=True)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            found = selectors.list_stores(team_id=principal.team_id, page=page)
        return Response(found.as_list(present=public_store))

    def post(self, request: Request) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(CreateStore, scope_of(request)["body"])
        created = services.create_store(principal=principal, body=body, request_id=_request_id(request))
        return Response(public_store(created))


class VectorStoreView(ApiView):
    """`GET`, `POST` and `DELETE /v1/vector_stores/{id}`."""

    def get(self, request: Request, store_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        with scope.team(principal.team_id):
            return Response(public_store(selectors.get_store(principal=principal, store_id=store_id)))

    def post(self, request: Request, store_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(UpdateStore, scope_of(request)["body"])
        changed = services.update_store(
            principal=principal, store_id=store_id, body=body, request_id=_request_id(request)
        )
        return Response(public_store(changed))

    def delete(self, request: Request, store_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_DELETE)
        services.delete_store(principal=principal, store_id=store_id, request_id=_request_id(request))
        return Response({"id": store_id, "object": "vector_store.deleted", "deleted": True})


class VectorStoreFilesView(ApiView):
    """`GET` and `POST /v1/vector_stores/{id}/files`."""

    def get(self, request: Request, store_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ, page=True, filters=("filter",))
        return Response(_listed(principal, request.query_params, store_id))

    def post(self, request: Request, store_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(AttachFile, scope_of(request)["body"])
        entry = services.attach_file(principal=principal, store_id=store_id, body=body, request_id=_request_id(request))
        return Response(public_entry(entry))


class VectorStoreFileView(ApiView):
    """`GET`, `POST` and `DELETE /v1/vector_stores/{id}/files/{file_id}`."""

    def get(self, request: Request, store_id: str, file_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        return Response(public_entry(_entry(principal, store_id, file_id)))

    def post(self, request: Request, store_id: str, file_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(UpdateStoreFile, scope_of(request)["body"])
        changed = services.update_entry(
            principal=principal, store_id=store_id, file_id=file_id, attributes=body.attributes
        )
        return Response(public_entry(changed))

    def delete(self, request: Request, store_id: str, file_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        services.detach_file(principal=principal, store_id=store_id, file_id=file_id)
        return Response({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


class VectorStoreFileContentView(ApiView):
    """`GET /v1/vector_stores/{id}/files/{file_id}/content`: the passages that a file was split into."""

    def get(self, request: Request, store_id: str, file_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        with scope.team(principal.team_id):
            entry = selectors.get_entry(principal=principal, store_id=store_id, file_id=file_id)
            texts = selectors.passages_of(entry)
        return Response(_page([{"type": "text", "text": text} for text in texts]))


class VectorStoreBatchesView(ApiView):
    """`POST /v1/vector_stores/{id}/file_batches`."""

    def post(self, request: Request, store_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        files = read(AttachFiles, scope_of(request)["body"]).all_files()
        created = services.attach_batch(
            principal=principal, store_id=store_id, files=files, request_id=_request_id(request)
        )
        return Response(public_batch(created))


class VectorStoreBatchView(ApiView):
    """`GET /v1/vector_stores/{id}/file_batches/{batch_id}`."""

    def get(self, request: Request, store_id: str, batch_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        with scope.team(principal.team_id):
            return Response(
                public_batch(selectors.get_batch(principal=principal, store_id=store_id, batch_id=batch_id))
            )


class CancelVectorStoreBatchView(ApiView):
    """`POST /v1/vector_stores/{id}/file_batches/{batch_id}/cancel`."""

    def post(self, request: Request, store_id: str, batch_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        reject_body(scope_of(request))
        return Response(public_batch(services.cancel_batch(principal=principal, store_id=store_id, batch_id=batch_id)))


class VectorStoreBatchFilesView(ApiView):
    """`GET /v1/vector_stores/{id}/file_batches/{batch_id}/files`."""

    def get(self, request: Request, store_id: str, batch_id: str) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ, page=True, filters=("filter",))
        return Response(_listed(principal, request.query_params, store_id, batch_id=batch_id))


class SearchVectorStoreView(AsyncApiView):
    """`POST /v1/vector_stores/{id}/search`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        body = read(SearchStore, scope_of(request)["body"])
        store_id: str = kwargs["store_id"]
        account = UsageAccount(
            team_id=principal.team_id, key_id=principal.key_id, object_id=store_id, request_id=_request_id(request)
        )
        search_request = _search_request(body)
        hits = await search.search(account=account, store_ids=[store_id], request=search_request)
        return Response({**_page([_hit(hit) for hit in hits], search_request.queries)})


def _search_request(body: SearchStore) -> SearchRequest:
    ranking = body.ranking_options or SearchRanking()
    return SearchRequest(
        queries=body.queries(),
        limit=body.max_num_results or 10,
        filters=body.filters,
        threshold=ranking.score_threshold or 0.0,
        weights=ranking.hybrid_search,
        vectors_only=ranking.ranker == "none",
    )


def _hit(hit: SearchHit) -> dict[str, Any]:
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "attributes": hit.attributes,
        "content": [{"type": "text", "text": hit.text}],
    }


def _page(data: list[dict[str, Any]], queries: Any = None) -> dict[str, Any]:
    # OpenAI's format for a single, complete page; it has no cursors.
    if queries is None:
        return {"object": "vector_store.file_content.page", "data": data, "has_more": False, "next_page": None}
    return {
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": data,
        "has_more": False,
        "next_page": None,
    }


def _entry(principal: Principal, store_id: str, file_id: str) -> VectorStoreFile:
    with scope.team(principal.team_id):
        return selectors.get_entry(principal=principal, store_id=store_id, file_id=file_id)


def _listed(principal: Principal, query: QueryDict, store_id: str, *, batch_id: str | None = None) -> dict[str, Any]:
    status, page = _status(query), PageRequest.from_query(query)
    with scope.team(principal.team_id):
        # Raises the 404 of an unknown store, whose list would otherwise just be empty.
        selectors.get_store(principal=principal, store_id=store_id)
        batch: VectorStoreBatch | None = None
        if batch_id is not None:
            batch = selectors.get_batch(principal=principal, store_id=store_id, batch_id=batch_id)
        found: Page[VectorStoreFile] = selectors.list_entries(store_id=store_id, batch=batch, status=status, page=page)
    return found.as_list(present=public_entry)


def _status(query: QueryDict) -> EntryStatus | None:
    text = query.get("filter")
    if text is None:
        return None
    if text not in EntryStatus.values:
        raise InvalidValue.unsupported(text, EntryStatus.values, param="filter")
    return EntryStatus(text)

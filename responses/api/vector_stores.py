"""The views of `/v1/vector_stores`: parse, one call, present."""

from typing import Any

from django.http import QueryDict
from rest_framework.request import Request
from rest_framework.response import Response as Answer
from typing_extensions import override

from kernel.errors import InvalidValue
from kernel.pagination import Page, PageRequest
from kernel.query import reject_unknown
from kernel.views import ApiView
from responses.api.requests import info, principal_of, refuse_body, scope_of
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
    """Who is calling, if the key may do this; unknown names in the query are refused."""
    principal = principal_of(request)
    principal.require(right)
    reject_unknown(request.query_params, page=page, filters=filters)
    return principal


def _request_id(request: Request) -> str:
    return info(scope_of(request)).request_id


class VectorStores(ApiView):
    """`GET` and `POST /v1/vector_stores`."""

    def get(self, request: Request) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ, page=True)
        page = PageRequest.from_query(request.query_params)
        with scope.team(principal.team_id):
            found = selectors.list_stores(team_id=principal.team_id, page=page)
        return Answer(found.as_list(present=public_store))

    def post(self, request: Request) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(CreateStore, scope_of(request)["body"])
        made = services.create_store(principal=principal, body=body, request_id=_request_id(request))
        return Answer(public_store(made))


class OneVectorStore(ApiView):
    """`GET`, `POST` and `DELETE /v1/vector_stores/{id}`."""

    def get(self, request: Request, store_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        with scope.team(principal.team_id):
            return Answer(public_store(selectors.get_store(principal=principal, store_id=store_id)))

    def post(self, request: Request, store_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(UpdateStore, scope_of(request)["body"])
        changed = services.update_store(
            principal=principal, store_id=store_id, body=body, request_id=_request_id(request)
        )
        return Answer(public_store(changed))

    def delete(self, request: Request, store_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_DELETE)
        services.delete_store(principal=principal, store_id=store_id, request_id=_request_id(request))
        return Answer({"id": store_id, "object": "vector_store.deleted", "deleted": True})


class StoreFiles(ApiView):
    """`GET` and `POST /v1/vector_stores/{id}/files`."""

    def get(self, request: Request, store_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ, page=True, filters=("filter",))
        return Answer(_listed(principal, request.query_params, store_id))

    def post(self, request: Request, store_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(AttachFile, scope_of(request)["body"])
        entry = services.attach_file(principal=principal, store_id=store_id, body=body, request_id=_request_id(request))
        return Answer(public_entry(entry))


class OneStoreFile(ApiView):
    """`GET`, `POST` and `DELETE /v1/vector_stores/{id}/files/{file_id}`."""

    def get(self, request: Request, store_id: str, file_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        return Answer(public_entry(_entry(principal, store_id, file_id)))

    def post(self, request: Request, store_id: str, file_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        body = read(UpdateStoreFile, scope_of(request)["body"])
        changed = services.update_entry(
            principal=principal, store_id=store_id, file_id=file_id, attributes=body.attributes
        )
        return Answer(public_entry(changed))

    def delete(self, request: Request, store_id: str, file_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        services.detach_file(principal=principal, store_id=store_id, file_id=file_id)
        return Answer({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


class StoreFileContent(ApiView):
    """`GET /v1/vector_stores/{id}/files/{file_id}/content`: the passages that were made of a file."""

    def get(self, request: Request, store_id: str, file_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        with scope.team(principal.team_id):
            entry = selectors.get_entry(principal=principal, store_id=store_id, file_id=file_id)
            texts = selectors.passages_of(entry)
        return Answer(_page([{"type": "text", "text": text} for text in texts]))


class StoreBatches(ApiView):
    """`POST /v1/vector_stores/{id}/file_batches`."""

    def post(self, request: Request, store_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        files = read(AttachFiles, scope_of(request)["body"]).all_files()
        made = services.attach_batch(
            principal=principal, store_id=store_id, files=files, request_id=_request_id(request)
        )
        return Answer(public_batch(made))


class OneStoreBatch(ApiView):
    """`GET /v1/vector_stores/{id}/file_batches/{batch_id}`."""

    def get(self, request: Request, store_id: str, batch_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        with scope.team(principal.team_id):
            return Answer(public_batch(selectors.get_batch(principal=principal, store_id=store_id, batch_id=batch_id)))


class CancelStoreBatch(ApiView):
    """`POST /v1/vector_stores/{id}/file_batches/{batch_id}/cancel`."""

    def post(self, request: Request, store_id: str, batch_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_WRITE)
        refuse_body(scope_of(request))
        return Answer(public_batch(services.cancel_batch(principal=principal, store_id=store_id, batch_id=batch_id)))


class StoreBatchFiles(ApiView):
    """`GET /v1/vector_stores/{id}/file_batches/{batch_id}/files`."""

    def get(self, request: Request, store_id: str, batch_id: str) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ, page=True, filters=("filter",))
        return Answer(_listed(principal, request.query_params, store_id, batch_id=batch_id))


class SearchVectorStore(AsyncApiView):
    """`POST /v1/vector_stores/{id}/search`."""

    @override
    async def post(self, request: Request, *args: Any, **kwargs: Any) -> Answer:
        principal = _caller(request, Scope.VECTOR_STORES_READ)
        body = read(SearchStore, scope_of(request)["body"])
        store_id: str = kwargs["store_id"]
        account = UsageAccount(
            team_id=principal.team_id, key_id=principal.key_id, object_id=store_id, request_id=_request_id(request)
        )
        search_request = _search_request(body)
        hits = await search.search(account=account, store_ids=[store_id], request=search_request)
        return Answer({**_page([_hit(hit) for hit in hits], search_request.queries)})


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
    """Results and passages come all at once, in a page without cursors."""
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

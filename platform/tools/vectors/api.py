"""Endpoints of `/v1/vector_stores`."""

from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import PAGE, PageRequest
from core.http.query import QueryArgument, choice, parameter
from responses.models.vector_stores import EntryStatus
from responses.runs.identity import UsageAccount
from tenants import scope
from tenants.models import Scope
from tenants.principal import Principal
from tenants.views import ApiRequest, ApiView
from tools.vectors import objects, search, selectors, services
from tools.vectors.requests import (
    AttachFile,
    AttachFiles,
    CreateStore,
    SearchRanking,
    SearchStore,
    UpdateStore,
    UpdateStoreFile,
)
from tools.vectors.search import SearchRequest
from tools.vectors.selectors import public_batch, public_entry, public_store

_STATUS = QueryArgument(
    "status",
    [parameter("filter", {"enum": list(EntryStatus.values)})],
    lambda query: choice(query, "filter", EntryStatus.values),
)


class VectorStoresView(ApiView, path="vector_stores"):
    """All vector stores of a team."""

    @Endpoint(
        Scope.VECTOR_STORES_WRITE,
        "Create a vector store",
        body=CreateStore,
        note="see [file search](../howto/file-search.md)",
    )
    def post(self, request: ApiRequest, body: CreateStore) -> objects.VectorStore:
        created = services.create_store(principal=request.principal, body=body, request_id=request.request_id)
        return public_store(created)

    @Endpoint(Scope.VECTOR_STORES_READ, "List vector stores", query=(PAGE,))
    def get(self, request: ApiRequest, page: PageRequest) -> ListPage[objects.VectorStore]:
        with scope.team(request.principal.team_id):
            found = selectors.list_stores(team_id=request.principal.team_id, page=page)
        return found.as_list(present=public_store)


class VectorStoreView(ApiView, path="vector_stores/<vs:vector_store_id>"):
    """One vector store."""

    @Endpoint(Scope.VECTOR_STORES_READ, "Retrieve a vector store")
    def get(self, request: ApiRequest, vector_store_id: str) -> objects.VectorStore:
        with scope.team(request.principal.team_id):
            return public_store(selectors.get_store(principal=request.principal, store_id=vector_store_id))

    @Endpoint(Scope.VECTOR_STORES_WRITE, "Update a vector store", body=UpdateStore)
    def post(self, request: ApiRequest, vector_store_id: str, body: UpdateStore) -> objects.VectorStore:
        changed = services.update_store(principal=request.principal, store_id=vector_store_id, body=body)
        return public_store(changed)

    @Endpoint(Scope.VECTOR_STORES_DELETE, "Delete a vector store", note="its files are kept")
    def delete(self, request: ApiRequest, vector_store_id: str) -> objects.DeletedVectorStore:
        services.delete_store(principal=request.principal, store_id=vector_store_id)
        return {"id": vector_store_id, "object": "vector_store.deleted", "deleted": True}


class SearchVectorStoreView(ApiView, path="vector_stores/<vs:vector_store_id>/search"):
    """Searches of a vector store."""

    @Endpoint(
        Scope.VECTOR_STORES_READ,
        "Search a vector store",
        body=SearchStore,
        note="`rewrite_query: true` is rejected",
    )
    async def post(self, request: ApiRequest, vector_store_id: str, body: SearchStore) -> objects.VectorStoreResults:
        account = UsageAccount(
            team_id=request.principal.team_id,
            key_id=request.principal.key_id,
            object_id=vector_store_id,
            request_id=request.request_id,
        )
        ranking = body.ranking_options or SearchRanking()
        wanted = SearchRequest(
            queries=body.queries(),
            limit=body.max_num_results or 10,
            filters=body.filters,
            threshold=ranking.score_threshold or 0.0,
            weights=ranking.hybrid_search,
            vectors_only=ranking.ranker == "none",
        )
        hits = await search.search(account=account, store_ids=[vector_store_id], request=wanted)
        return {
            "object": "vector_store.search_results.page",
            "search_query": list(wanted.queries),
            "data": [
                {
                    "file_id": hit.file_id,
                    "filename": hit.filename,
                    "score": hit.score,
                    "attributes": hit.attributes,
                    "content": [{"type": "text", "text": hit.text}],
                }
                for hit in hits
            ],
            "has_more": False,
            "next_page": None,
        }


class VectorStoreFilesView(ApiView, path="vector_stores/<vs:vector_store_id>/files"):
    """Files of a vector store."""

    @Endpoint(
        Scope.VECTOR_STORES_WRITE,
        "Create a vector store file",
        body=AttachFile,
        note="a file that is already attached is processed again",
    )
    def post(self, request: ApiRequest, vector_store_id: str, body: AttachFile) -> objects.VectorStoreFile:
        entry = services.attach_file(
            principal=request.principal, store_id=vector_store_id, body=body, request_id=request.request_id
        )
        return public_entry(entry)

    @Endpoint(Scope.VECTOR_STORES_READ, "List vector store files", query=(_STATUS, PAGE))
    def get(
        self, request: ApiRequest, vector_store_id: str, status: str | None, page: PageRequest
    ) -> ListPage[objects.VectorStoreFile]:
        return _list_files(request.principal, vector_store_id, None, status, page)


class VectorStoreFileView(ApiView, path="vector_stores/<vs:vector_store_id>/files/<file:file_id>"):
    """One file of a vector store."""

    @Endpoint(Scope.VECTOR_STORES_READ, "Retrieve a vector store file")
    def get(self, request: ApiRequest, vector_store_id: str, file_id: str) -> objects.VectorStoreFile:
        with scope.team(request.principal.team_id):
            entry = selectors.get_entry(principal=request.principal, store_id=vector_store_id, file_id=file_id)
        return public_entry(entry)

    @Endpoint(
        Scope.VECTOR_STORES_WRITE,
        "Update a vector store file",
        body=UpdateStoreFile,
        note="replaces the attributes",
    )
    def post(
        self, request: ApiRequest, vector_store_id: str, file_id: str, body: UpdateStoreFile
    ) -> objects.VectorStoreFile:
        changed = services.update_entry(
            principal=request.principal, store_id=vector_store_id, file_id=file_id, attributes=body.attributes
        )
        return public_entry(changed)

    @Endpoint(Scope.VECTOR_STORES_WRITE, "Delete a vector store file", note="the file itself is kept")
    def delete(self, request: ApiRequest, vector_store_id: str, file_id: str) -> objects.DeletedVectorStoreFile:
        services.detach_file(principal=request.principal, store_id=vector_store_id, file_id=file_id)
        return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}


class VectorStoreFileContentView(ApiView, path="vector_stores/<vs:vector_store_id>/files/<file:file_id>/content"):
    """Passages that a file was split into."""

    @Endpoint(
        Scope.VECTOR_STORES_READ,
        "Retrieve the content of a vector store file",
        note="the passages that the file was split into",
    )
    def get(self, request: ApiRequest, vector_store_id: str, file_id: str) -> objects.VectorStorePassages:
        with scope.team(request.principal.team_id):
            entry = selectors.get_entry(principal=request.principal, store_id=vector_store_id, file_id=file_id)
            data: list[objects.Passage] = [{"type": "text", "text": text} for text in selectors.passages_of(entry)]
        return {"object": "vector_store.file_content.page", "data": data, "has_more": False, "next_page": None}


class VectorStoreBatchesView(ApiView, path="vector_stores/<vs:vector_store_id>/file_batches"):
    """File batches of a vector store."""

    @Endpoint(Scope.VECTOR_STORES_WRITE, "Create a vector store file batch", body=AttachFiles, note="up to 2,000 files")
    def post(self, request: ApiRequest, vector_store_id: str, body: AttachFiles) -> objects.VectorStoreBatch:
        created = services.attach_batch(
            principal=request.principal, store_id=vector_store_id, files=body.all_files(), request_id=request.request_id
        )
        return public_batch(created)


class VectorStoreBatchView(ApiView, path="vector_stores/<vs:vector_store_id>/file_batches/<vsfb:batch_id>"):
    """One file batch of a vector store."""

    @Endpoint(Scope.VECTOR_STORES_READ, "Retrieve a vector store file batch")
    def get(self, request: ApiRequest, vector_store_id: str, batch_id: str) -> objects.VectorStoreBatch:
        with scope.team(request.principal.team_id):
            batch = selectors.get_batch(principal=request.principal, store_id=vector_store_id, batch_id=batch_id)
            return public_batch(batch)


class CancelVectorStoreBatchView(
    ApiView, path="vector_stores/<vs:vector_store_id>/file_batches/<vsfb:batch_id>/cancel"
):
    """Cancellation of a file batch."""

    @Endpoint(Scope.VECTOR_STORES_WRITE, "Cancel a vector store file batch", takes_no_body=True)
    def post(self, request: ApiRequest, vector_store_id: str, batch_id: str) -> objects.VectorStoreBatch:
        batch = services.cancel_batch(principal=request.principal, store_id=vector_store_id, batch_id=batch_id)
        return public_batch(batch)


class VectorStoreBatchFilesView(ApiView, path="vector_stores/<vs:vector_store_id>/file_batches/<vsfb:batch_id>/files"):
    """Files of a file batch."""

    @Endpoint(Scope.VECTOR_STORES_READ, "List files of a vector store file batch", query=(_STATUS, PAGE))
    def get(
        self, request: ApiRequest, vector_store_id: str, batch_id: str, status: str | None, page: PageRequest
    ) -> ListPage[objects.VectorStoreFile]:
        return _list_files(request.principal, vector_store_id, batch_id, status, page)


def _list_files(
    principal: Principal, vector_store_id: str, batch_id: str | None, status: str | None, page: PageRequest
) -> ListPage[objects.VectorStoreFile]:
    with scope.team(principal.team_id):
        # Raises the 404 of an unknown store, whose list would otherwise just be empty.
        selectors.get_store(principal=principal, store_id=vector_store_id)
        batch = None
        if batch_id is not None:
            batch = selectors.get_batch(principal=principal, store_id=vector_store_id, batch_id=batch_id)
        found = selectors.list_entries(store_id=vector_store_id, batch=batch, status=status, page=page)
    return found.as_list(present=public_entry)

"""OpenAPI 3.1 document of the API, generated from the types that validate requests."""

from functools import cache
from typing import Any

from django.conf import settings

from conversations.api.requests import MAX_LIST
from conversations.items import INCLUDABLE
from conversations.models import Purpose
from kernel.pagination import DEFAULT_LIMIT, MAX_LIMIT
from responses.api.openapi_schemas import ref, schemas
from responses.models import Status
from responses.models.vector_stores import EntryStatus

Schema = dict[str, Any]
_STREAMED = "Server-sent events if `stream` is true"
# OpenAPI cannot describe the events of a stream, only the format of a single one.
_EVENT: Schema = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["data"],
}


@cache
def document() -> Schema:
    """Return the document; cached, as building the schemas takes a while and never changes."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Responses Platform",
            "version": settings.VERSION,
            "description": "A self-hosted OpenAI Responses API. Errors have the format of OpenAI's errors.",
        },
        "servers": [{"url": "/v1"}],
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A team's API key."}},
            "schemas": schemas(),
        },
    }


def _paths() -> Schema:
    response_id = _path_parameter("response_id")
    return {
        "/responses": {
            "post": _operation(
                "Create a response",
                body="CreateResponse",
                response="Response",
                stream=f"{_STREAMED}; the name of each event is its `type`.",
                errors=(400, 401, 403, 404, 413, 429, 500, 503),
            ),
            "get": _operation("List responses", response="ResponseList", parameters=[*_page(before=True), *_filters()]),
        },
        "/responses/{response_id}": {
            "get": _operation(
                "Retrieve a response",
                response="Response",
                stream=f"{_STREAMED}: the events of the run so far, followed by live events until its end.",
                parameters=[response_id, _include(), *_replay()],
                errors=(400, 401, 403, 404),
            ),
            "delete": _operation(
                "Delete a response", response="DeletedResponse", parameters=[response_id], errors=(401, 403, 404)
            ),
        },
        "/responses/{response_id}/cancel": {
            "post": _operation("Cancel a response", response="Response", parameters=[response_id]),
        },
        "/responses/{response_id}/input_items": {
            "get": _operation(
                "List input items",
                response="ItemList",
                parameters=[response_id, *_page(before=True), _include()],
                errors=(400, 401, 403, 404),
            ),
        },
        "/responses/input_tokens": {
            "post": _operation(
                "Count input tokens", body="CountInputTokens", response="InputTokens", errors=(400, 401, 403, 404, 413)
            ),
        },
        "/responses/compact": {
            "post": _operation(
                "Compact a conversation",
                body="CompactConversation",
                response="CompactedConversation",
                errors=(400, 401, 403, 404, 413, 429, 500, 503),
            ),
        },
        **_chat(),
        **_conversations(),
        **_files(),
        **_uploads(),
        **_vector_stores(),
        **_containers(),
        **_webhooks(),
        **_batches(),
        **_forwarded(),
    }


def _forwarded() -> Schema:
    edit = _forwarding("Edit images", body="EditImage", response="Images")
    edit["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": ref("EditImage")}}}
    return {
        "/embeddings": {"post": _forwarding("Create embeddings", body="CreateEmbedding", response="EmbeddingList")},
        "/moderations": {"post": _forwarding("Create moderation", body="CreateModeration", response="Moderation")},
        "/images/generations": {"post": _forwarding("Create images", body="CreateImage", response="Images")},
        "/images/edits": {"post": edit},
        "/models": {"get": _operation("List models", response="ModelList", errors=(401, 403))},
        "/models/{model}": {
            "get": _operation(
                "Retrieve a model", response="Model", parameters=[_path_parameter("model")], errors=(401, 403, 404)
            ),
        },
    }


def _chat() -> Schema:
    one, changing = _path_parameter("completion_id"), (400, 401, 403, 404, 413)
    page = _page(before=False, order="asc")
    narrowed = [*page, _query("model", {"type": "string"}), _metadata_filter()]
    return {
        "/chat/completions": {
            "post": _operation(
                "Create a chat completion",
                body="CreateChatCompletion",
                response="ChatCompletion",
                stream=f"{_STREAMED}, ending with `data: [DONE]`.",
                errors=(400, 401, 403, 413, 429, 500, 503),
            ),
            "get": _operation("List stored chat completions", response="ChatCompletionList", parameters=narrowed),
        },
        "/chat/completions/{completion_id}": {
            "get": _operation("Retrieve a stored chat completion", response="ChatCompletion", parameters=[one]),
            "post": _operation(
                "Update a stored chat completion",
                body="UpdateChatCompletion",
                response="ChatCompletion",
                parameters=[one],
                errors=changing,
            ),
            "delete": _operation(
                "Delete a stored chat completion",
                response="DeletedChatCompletion",
                parameters=[one],
                errors=(401, 403, 404),
            ),
        },
        "/chat/completions/{completion_id}/messages": {
            "get": _operation(
                "List messages of a stored chat completion", response="ChatMessageList", parameters=[one, *page]
            ),
        },
    }


def _conversations() -> Schema:
    one, item_id, include = _path_parameter("conversation_id"), _path_parameter("item_id"), _include()
    created_after, changing = _query("created_after", {"type": "integer"}), (400, 401, 403, 404, 413)
    export = _operation("Export a conversation", response="Item", parameters=[one])
    # One item per line; OpenAPI 3.1 has no schema for the lines of a JSON Lines document.
    export["responses"]["200"]["content"] = {"application/jsonl": {"schema": {"type": "string"}}}

    def operation(summary: str, response: str, *parameters: Schema, body: str | None = None) -> Schema:
        errors = changing if body else (400, 401, 403, 404)
        return _operation(summary, response=response, body=body, parameters=[*parameters], errors=errors)

    return {
        "/conversations": {
            "post": operation("Create a conversation", "Conversation", body="CreateConversation"),
            "get": operation(
                "List conversations", "ConversationList", *_page(before=True), created_after, _metadata_filter()
            ),
        },
        "/conversations/{conversation_id}": {
            "get": operation("Retrieve a conversation", "Conversation", one),
            "post": operation("Update a conversation", "Conversation", one, body="UpdateConversation"),
            "delete": operation("Delete a conversation", "DeletedConversation", one),
        },
        "/conversations/{conversation_id}/items": {
            "post": operation("Add items to a conversation", "ItemList", one, include, body="CreateItems"),
            "get": operation("List items of a conversation", "ItemList", one, *_page(before=True), include),
        },
        "/conversations/{conversation_id}/items/{item_id}": {
            "get": operation("Retrieve an item of a conversation", "Item", one, item_id, include),
            "delete": operation("Delete an item of a conversation", "Conversation", one, item_id),
        },
        "/conversations/{conversation_id}/fork": {
            "post": operation("Fork a conversation", "Conversation", one, body="ForkConversation"),
        },
        "/conversations/{conversation_id}/cancel": {
            "post": operation("Cancel the active run of a conversation", "Conversation", one),
        },
        "/conversations/{conversation_id}/export": {"get": export},
    }


def _files() -> Schema:
    file_id = _path_parameter("file_id")
    narrowed = [_query("purpose", {"enum": list(Purpose.values)}), *_page(before=True, default=MAX_LIST, most=MAX_LIST)]
    upload = _operation("Upload a file", response="File", errors=(400, 401, 403, 413))
    upload["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": ref("UploadFile")}}}
    content = _operation(
        "Retrieve the content of a file", response="File", parameters=[file_id], errors=(401, 403, 404)
    )
    content["responses"]["200"]["content"] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    retrieve = _operation("Retrieve a file", response="File", parameters=[file_id], errors=(401, 403, 404))
    delete = _operation("Delete a file", response="DeletedFile", parameters=[file_id], errors=(401, 403, 404))
    return {
        "/files": {"post": upload, "get": _operation("List files", response="FileList", parameters=narrowed)},
        "/files/{file_id}": {"get": retrieve, "delete": delete},
        "/files/{file_id}/content": {"get": content},
    }


def _containers() -> Schema:
    one, file_id = _path_parameter("container_id"), _path_parameter("file_id")
    upload = _operation(
        "Create a container file", response="ContainerFile", parameters=[one], errors=(400, 401, 403, 404, 413)
    )
    upload["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": ref("NewContainerFile")}}}
    content = _operation(
        "Retrieve the content of a container file", response="ContainerFile", parameters=[one, file_id]
    )
    content["responses"]["200"]["content"] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    listed = _operation("List container files", response="ContainerFileList", parameters=[one, *_page(before=True)])
    named = [_query("name", {"type": "string"}), *_page(before=True)]
    return {
        "/containers": {
            "post": _operation(
                "Create a container",
                body="CreateContainer",
                response="Container",
                errors=(400, 401, 403, 404, 413, 503),
            ),
            "get": _operation("List containers", response="ContainerList", parameters=named),
        },
        "/containers/{container_id}": {
            "get": _operation("Retrieve a container", response="Container", parameters=[one]),
            "delete": _operation("Delete a container", response="DeletedContainer", parameters=[one]),
        },
        "/containers/{container_id}/files": {"post": upload, "get": listed},
        "/containers/{container_id}/files/{file_id}": {
            "get": _operation("Retrieve a container file", response="ContainerFile", parameters=[one, file_id]),
            "delete": _operation("Delete a container file", response="DeletedContainerFile", parameters=[one, file_id]),
        },
        "/containers/{container_id}/files/{file_id}/content": {"get": content},
    }


def _uploads() -> Schema:
    one, changing = _path_parameter("upload_id"), (400, 401, 403, 404, 413)
    part = _operation("Add a part to an upload", response="UploadPart", parameters=[one], errors=changing)
    part["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": ref("NewUploadPart")}}}
    done = _operation("Complete an upload", body="CompleteUpload", response="Upload", parameters=[one], errors=changing)
    return {
        "/uploads": {
            "post": _operation(
                "Create an upload", body="CreateUpload", response="Upload", errors=(400, 401, 403, 404, 413)
            ),
        },
        "/uploads/{upload_id}/parts": {"post": part},
        "/uploads/{upload_id}/complete": {"post": done},
        "/uploads/{upload_id}/cancel": {"post": _operation("Cancel an upload", response="Upload", parameters=[one])},
    }


def _vector_stores() -> Schema:
    store, file_id, batch = map(_path_parameter, ("store_id", "file_id", "batch_id"))
    status = _query("filter", {"enum": list(EntryStatus.values)})

    def operation(summary: str, response: str, *parameters: Schema, body: str | None = None) -> Schema:
        errors = (400, 401, 403, 404, 413) if body else (400, 401, 403, 404)
        return _operation(summary, response=response, body=body, parameters=[*parameters], errors=errors)

    return {
        "/vector_stores": {
            "post": operation("Create a vector store", "VectorStore", body="CreateStore"),
            "get": operation("List vector stores", "VectorStoreList", *_page(before=True)),
        },
        "/vector_stores/{store_id}": {
            "get": operation("Retrieve a vector store", "VectorStore", store),
            "post": operation("Update a vector store", "VectorStore", store, body="UpdateStore"),
            "delete": operation("Delete a vector store", "DeletedVectorStore", store),
        },
        "/vector_stores/{store_id}/search": {
            "post": operation("Search a vector store", "VectorStoreResults", store, body="SearchStore"),
        },
        "/vector_stores/{store_id}/files": {
            "post": operation("Create a vector store file", "VectorStoreFile", store, body="AttachFile"),
            "get": operation("List vector store files", "VectorStoreFileList", store, status, *_page(before=True)),
        },
        "/vector_stores/{store_id}/files/{file_id}": {
            "get": operation("Retrieve a vector store file", "VectorStoreFile", store, file_id),
            "post": operation("Update a vector store file", "VectorStoreFile", store, file_id, body="UpdateStoreFile"),
            "delete": operation("Delete a vector store file", "DeletedVectorStoreFile", store, file_id),
        },
        "/vector_stores/{store_id}/files/{file_id}/content": {
            "get": operation("Retrieve the content of a vector store file", "VectorStorePassages", store, file_id),
        },
        "/vector_stores/{store_id}/file_batches": {
            "post": operation("Create a vector store file batch", "VectorStoreBatch", store, body="AttachFiles"),
        },
        "/vector_stores/{store_id}/file_batches/{batch_id}": {
            "get": operation("Retrieve a vector store file batch", "VectorStoreBatch", store, batch),
        },
        "/vector_stores/{store_id}/file_batches/{batch_id}/cancel": {
            "post": operation("Cancel a vector store file batch", "VectorStoreBatch", store, batch),
        },
        "/vector_stores/{store_id}/file_batches/{batch_id}/files": {
            "get": operation(
                "List files of a vector store file batch",
                "VectorStoreFileList",
                store,
                batch,
                status,
                *_page(before=True),
            ),
        },
    }


def _batches() -> Schema:
    one = _path_parameter("batch_id")
    cancel = _operation("Cancel a batch", response="Batch", parameters=[one], errors=(401, 403, 404, 409))
    return {
        "/batches": {
            "post": _operation(
                "Create a batch", body="CreateBatch", response="Batch", errors=(400, 401, 403, 404, 413)
            ),
            "get": _operation("List batches", response="BatchList", parameters=_page(before=True)),
        },
        "/batches/{batch_id}": {"get": _operation("Retrieve a batch", response="Batch", parameters=[one])},
        "/batches/{batch_id}/cancel": {"post": cancel},
    }


def _webhooks() -> Schema:
    one, changing = _path_parameter("endpoint_id"), (400, 401, 403, 404, 413)

    def operation(summary: str, response: str, *parameters: Schema, body: str | None = None) -> Schema:
        errors = changing if body else (400, 401, 403, 404)
        return _operation(summary, response=response, body=body, parameters=[*parameters], errors=errors)

    return {
        "/webhook_endpoints": {
            "post": operation("Create a webhook endpoint", "WebhookEndpointWithSecret", body="CreateWebhookEndpoint"),
            "get": operation("List webhook endpoints", "WebhookEndpointList", *_page(before=True)),
        },
        "/webhook_endpoints/{endpoint_id}": {
            "get": operation("Retrieve a webhook endpoint", "WebhookEndpoint", one),
            "post": operation("Update a webhook endpoint", "WebhookEndpoint", one, body="UpdateWebhookEndpoint"),
            "delete": operation("Delete a webhook endpoint", "DeletedWebhookEndpoint", one),
        },
        "/webhook_endpoints/{endpoint_id}/rotate_secret": {
            "post": operation(
                "Rotate the secret of a webhook endpoint", "WebhookEndpointWithSecret", one, body="RotateSecret"
            ),
        },
        "/webhook_endpoints/{endpoint_id}/test": {
            "post": operation("Send a test event", "WebhookEndpointTest", one, body="SendTest"),
        },
        "/webhook_event_types": {"get": operation("List webhook event types", "WebhookEventTypeList")},
    }


def _operation(
    summary: str,
    *,
    response: str,
    body: str | None = None,
    stream: str | None = None,
    parameters: list[Schema] | None = None,
    errors: tuple[int, ...] = (400, 401, 403, 404),
) -> Schema:
    content: Schema = {"application/json": {"schema": ref(response)}}
    if stream:
        content["text/event-stream"] = {"schema": {**_EVENT, "description": stream}}
    failure = {"description": "Error.", "content": {"application/json": {"schema": ref("Error")}}}
    operation: Schema = {
        "summary": summary,
        # Generators of clients name their methods after it, so a changed summary changes their API.
        "operationId": summary.lower().replace(" ", "_"),
        "parameters": parameters or [],
        "responses": {
            "200": {"description": "Success.", "content": content},
            **{str(code): failure for code in errors},
        },
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(body)}}}
    return operation


# These fail like the upstream they are forwarded to, so they also have 429, 500 and 503.
def _forwarding(summary: str, *, body: str, response: str) -> Schema:
    return _operation(summary, body=body, response=response, errors=(400, 401, 403, 413, 429, 500, 503))


def _page(*, before: bool, default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT, order: str = "desc") -> list[Schema]:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    cursors = [_query("after", {"type": "string"})] + ([_query("before", {"type": "string"})] if before else [])
    return [*cursors, _query("limit", limit), _query("order", {"enum": ["asc", "desc"], "default": order})]


def _replay() -> list[Schema]:
    # The last two have an effect on streams only, but are validated for JSON requests as well.
    return [
        _query("stream", {"type": "boolean", "default": False}),
        _query("starting_after", {"type": "integer", "minimum": 0}),
        _query("include_obfuscation", {"type": "boolean", "default": True}),
    ]


def _include() -> Schema:
    return _query("include", {"type": "array", "items": {"enum": list(INCLUDABLE)}})


def _filters() -> list[Schema]:
    return [
        _query("model", {"type": "string"}),
        _query("status", {"enum": list(Status.values)}),
        _query("conversation_id", {"type": "string"}),
        _query("created_after", {"type": "integer"}),
        _query("created_before", {"type": "integer"}),
        _metadata_filter(),
    ]


def _metadata_filter() -> Schema:
    metadata = _query("metadata", {"type": "object", "additionalProperties": {"type": "string"}})
    # Sent as `metadata[key]=value`.
    return {**metadata, "style": "deepObject", "explode": True}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}

"""Schemas of the OpenAPI document. Those of request bodies are generated from the types that validate them."""

from typing import Any

from pydantic import BaseModel

from conversations.api.schema import CreateConversation, CreateItems, ForkConversation, UpdateConversation
from conversations.api.uploads import CompleteUpload, CreateUpload
from conversations.models import Purpose
from responses.batches.requests import SCOPES, CreateBatch
from responses.chat.messages import ROLES
from responses.chat.requests import UpdateChatCompletion
from responses.containers.api.schema import CreateContainer
from responses.models import Status
from responses.models.batches import BatchStatus
from responses.models.vector_stores import EntryStatus
from responses.passthrough import compact, input_tokens
from responses.passthrough.embeddings_moderations import CreateEmbedding, CreateModeration
from responses.schema import CreateResponse
from responses.schema.images import MAX_EDIT_IMAGES, CreateImage, EditImage
from responses.vectors.requests import AttachFile, AttachFiles, CreateStore, SearchStore, UpdateStore, UpdateStoreFile
from responses.webhooks.events import EVENT_TYPES
from responses.webhooks.schema import CreateWebhookEndpoint, RotateSecret, SendTest, UpdateWebhookEndpoint

Schema = dict[str, Any]
_REF = "#/components/schemas/{model}"
_NULLABLE_STRING: Schema = {"type": ["string", "null"]}
_NULLABLE_INTEGER: Schema = {"type": ["integer", "null"]}


def ref(name: str) -> Schema:
    """Return a reference to one of the schemas."""
    return {"$ref": _REF.format(model=name)}


def schemas() -> Schema:
    """Return all schemas by name."""
    # pydantic puts the types that a schema refers to into its `$defs`; OpenAPI keeps them beside it.
    create = CreateResponse.model_json_schema(ref_template=_REF)
    return {
        **create.pop("$defs"),
        "CreateResponse": create,
        "Response": _object(_response(), required=list(_response())),
        "ResponseList": _list_of(ref("Response")),
        "DeletedResponse": _object(
            {"id": {"type": "string"}, "object": {"const": "response"}, "deleted": {"type": "boolean"}},
            required=["id", "object", "deleted"],
        ),
        "Item": _object({"id": {"type": "string"}, "type": {"type": "string"}}, required=["id", "type"]),
        "ItemList": _list_of(ref("Item")),
        "Usage": _object(_usage(), required=list(_usage())),
        **_models(),
        # Abridged: the complete schema is that of OpenAI.
        "CreateChatCompletion": _object(
            {
                "model": {"type": "string", "maxLength": 200},
                "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
                "stream": {"type": ["boolean", "null"]},
            },
            required=["model", "messages"],
        ),
        "CountInputTokens": {
            "type": "object",
            "properties": {
                name: schema for name, schema in create["properties"].items() if name in input_tokens.PARAMETERS
            },
        },
        "InputTokens": _object(
            {
                "object": {"const": "response.input_tokens"},
                "input_tokens": {"type": "integer", "description": "Estimated at four characters per token."},
            },
            required=["object", "input_tokens"],
        ),
        **_compaction(create),
        **_forwarded(),
        "ChatCompletion": {"type": "object", "description": "The upstream's completion, unchanged."},
        **_stored_chat(),
        **_conversations(),
        **_webhooks(),
        "UploadFile": _upload_file(),
        "File": _object(_file(), required=list(_file())),
        "FileList": _list_of(ref("File")),
        "DeletedFile": _object(
            {"id": {"type": "string"}, "object": {"const": "file"}, "deleted": {"type": "boolean"}},
            required=["id", "object", "deleted"],
        ),
        **_uploads(),
        **_vector_stores(),
        **_batches(),
        **_containers(),
        "Error": _object({"error": _object(_error(), required=list(_error()))}, required=["error"]),
    }


def _forwarded() -> Schema:
    # Responses of upstreams are not validated, so their schemas promise nothing.
    moderation = CreateModeration.model_json_schema(ref_template=_REF)
    return {
        **moderation.pop("$defs"),
        "CreateEmbedding": CreateEmbedding.model_json_schema(ref_template=_REF),
        "EmbeddingList": {"type": "object", "description": "The upstream's list of embeddings, unchanged."},
        "CreateImage": CreateImage.model_json_schema(ref_template=_REF),
        "EditImage": _image_form(),
        "Images": {"type": "object", "description": "The upstream's images, unchanged."},
        "CreateModeration": moderation,
        "Moderation": {"type": "object", "description": "The upstream's moderation result, unchanged."},
    }


def _image_form() -> Schema:
    # `EditImage` validates the fields of the form; its files are not part of it.
    form = EditImage.model_json_schema(ref_template=_REF)
    file: Schema = {"type": "string", "format": "binary"}
    images: Schema = {"anyOf": [file, {"type": "array", "items": file, "maxItems": MAX_EDIT_IMAGES}]}
    form["properties"] |= {"image": images, "mask": file}
    form["required"] = ["image", *form["required"]]
    return form


def _models() -> Schema:
    model: Schema = {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    }
    models: Schema = {"object": {"const": "list"}, "data": {"type": "array", "items": ref("Model")}}
    return {
        "Model": _object(model, required=list(model)),
        "ModelList": _object(models, required=["object", "data"]),
    }


def _compaction(create: Schema) -> Schema:
    compaction: Schema = {
        "id": {"type": "string"},
        "object": {"const": "response.compaction"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "output": {
            "type": "array",
            "items": ref("Item"),
            "description": "The user messages and one compaction item. Use them as the beginning of the next input.",
        },
        "usage": ref("Usage"),
    }
    known = {name: schema for name, schema in create["properties"].items() if name in compact.PARAMETERS}
    return {
        "CompactConversation": {"type": "object", "properties": known, "required": ["model"]},
        "CompactedConversation": _object(compaction, required=list(compaction)),
    }


def _conversations() -> Schema:
    bodies: Schema = {}
    for body in (CreateConversation, UpdateConversation, CreateItems, ForkConversation):
        schema = body.model_json_schema(ref_template=_REF)
        bodies |= {**schema.pop("$defs", {}), body.__name__: schema}
    conversation: Schema = {
        "id": {"type": "string"},
        "object": {"const": "conversation"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    deleted: Schema = {
        "id": {"type": "string"},
        "object": {"const": "conversation.deleted"},
        "deleted": {"type": "boolean"},
    }
    return {
        **bodies,
        "Conversation": _object(conversation, required=list(conversation)),
        "ConversationList": _list_of(ref("Conversation")),
        "DeletedConversation": _object(deleted, required=list(deleted)),
    }


def _webhooks() -> Schema:
    bodies: Schema = {
        body.__name__: body.model_json_schema(ref_template=_REF)
        for body in (CreateWebhookEndpoint, UpdateWebhookEndpoint, RotateSecret, SendTest)
    }
    endpoint: Schema = {
        "id": {"type": "string"},
        "object": {"const": "webhook_endpoint"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "updated_at": {"type": "integer", "description": "Unix seconds."},
        "event_types": {"type": "array", "items": {"enum": list(EVENT_TYPES)}},
        "name": {"type": "string"},
        "url": {"type": "string"},
        "signing_secret_hint": {"type": "string"},
    }
    secret: Schema = {"type": "string", "description": "Returned only by this request."}
    deleted: Schema = {
        "id": {"type": "string"},
        "object": {"const": "webhook_endpoint.deleted"},
        "deleted": {"type": "boolean"},
    }
    tested: Schema = {
        "object": {"const": "webhook_endpoint.test"},
        "event_type": {"enum": list(EVENT_TYPES)},
        "status_code": {"type": "integer", "description": "HTTP status of the endpoint's response."},
        "success": {"const": True},
        "webhook_endpoint_id": {"type": "string"},
    }
    types: Schema = {"object": {"const": "list"}, "data": {"type": "array", "items": {"type": "string"}}}
    return {
        **bodies,
        "WebhookEndpoint": _object(endpoint, required=list(endpoint)),
        "WebhookEndpointWithSecret": _object(
            {**endpoint, "signing_secret": secret}, required=[*endpoint, "signing_secret"]
        ),
        "WebhookEndpointList": _list_of(ref("WebhookEndpoint")),
        "DeletedWebhookEndpoint": _object(deleted, required=list(deleted)),
        "WebhookEndpointTest": _object(tested, required=list(tested)),
        "WebhookEventTypeList": _object(types, required=list(types)),
    }


def _stored_chat() -> Schema:
    deleted = {"id": {"type": "string"}, "object": {"const": "chat.completion.deleted"}, "deleted": {"type": "boolean"}}
    message = {"id": {"type": "string"}, "role": {"enum": list(ROLES)}, "content": _NULLABLE_STRING}
    return {
        "ChatCompletionList": _list_of(ref("ChatCompletion")),
        "UpdateChatCompletion": UpdateChatCompletion.model_json_schema(ref_template=_REF),
        "DeletedChatCompletion": _object(deleted, required=list(deleted)),
        "ChatMessage": _object(message, required=list(message)),
        "ChatMessageList": _list_of(ref("ChatMessage")),
    }


def _object(properties: Schema, *, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _list_of(item: Schema) -> Schema:
    properties = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": item},
        "first_id": _NULLABLE_STRING,
        "last_id": _NULLABLE_STRING,
        "has_more": {"type": "boolean"},
    }
    return _object(properties, required=list(properties))


def _upload_file() -> Schema:
    seconds = {"type": "integer", "minimum": 3600, "maximum": 2_592_000}
    properties: Schema = {
        "file": {"type": "string", "format": "binary"},
        # Only the server creates files with the output of batches.
        "purpose": {"enum": [purpose for purpose in Purpose.values if purpose != Purpose.BATCH_OUTPUT]},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": seconds,
    }
    return _object(properties, required=["file", "purpose"])


def _file() -> Schema:
    return {
        "id": {"type": "string"},
        "object": {"const": "file"},
        "bytes": {"type": "integer"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "expires_at": _NULLABLE_INTEGER,
        "filename": {"type": "string"},
        "purpose": {"enum": list(Purpose.values)},
        "status": {"const": "processed"},
        "status_details": _NULLABLE_STRING,
    }


def _bodies(**bodies: type[BaseModel]) -> Schema:
    """Return the schemas of bodies and of the types that they refer to, by name."""
    schemas: Schema = {}
    for name, body in bodies.items():
        schema = body.model_json_schema(ref_template=_REF)
        schemas |= {**schema.pop("$defs", {}), name: schema}
    return schemas


def _uploads() -> Schema:
    upload: Schema = {
        "id": {"type": "string"},
        "object": {"const": "upload"},
        "bytes": {"type": "integer"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "expires_at": {"type": "integer", "description": "Unix seconds."},
        "filename": {"type": "string"},
        "purpose": {"enum": list(Purpose.values)},
        "status": {"enum": ["pending", "completed", "cancelled", "expired"]},
        "file": {"anyOf": [ref("File"), {"type": "null"}]},
    }
    part: Schema = {
        "id": {"type": "string"},
        "object": {"const": "upload.part"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "upload_id": {"type": "string"},
    }
    return {
        **_bodies(CreateUpload=CreateUpload, CompleteUpload=CompleteUpload),
        "NewUploadPart": _object({"data": {"type": "string", "format": "binary"}}, required=["data"]),
        "Upload": _object(upload, required=list(upload)),
        "UploadPart": _object(part, required=list(part)),
    }


def _vector_stores() -> Schema:
    counts: Schema = {name: {"type": "integer"} for name in (*EntryStatus.values, "total")}
    moment: Schema = {"type": "integer", "description": "Unix seconds."}
    known: Schema = {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "created_at": moment,
        "status": {"type": "string"},
    }
    attributes = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    store = {
        **known,
        "name": {"type": "string"},
        "description": _NULLABLE_STRING,
        "file_counts": _object(counts, required=list(counts)),
        "usage_bytes": {"type": "integer"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "last_active_at": moment,
        "expires_after": {"type": ["object", "null"]},
        "expires_at": _NULLABLE_INTEGER,
    }
    child = {**known, "vector_store_id": {"type": "string"}}
    batch = {**child, "file_counts": _object(counts, required=list(counts))}
    file = {
        **child,
        "usage_bytes": {"type": "integer"},
        "last_error": {"type": ["object", "null"]},
        "attributes": attributes,
        "chunking_strategy": {"type": "object"},
    }
    text = _object({"type": {"const": "text"}, "text": {"type": "string"}}, required=["type", "text"])
    hit: Schema = {
        "file_id": {"type": "string"},
        "filename": {"type": "string"},
        "score": {"type": "number"},
        "attributes": attributes,
        "content": {"type": "array", "items": text},
    }
    return {
        **_bodies(
            CreateStore=CreateStore,
            UpdateStore=UpdateStore,
            AttachFile=AttachFile,
            UpdateStoreFile=UpdateStoreFile,
            AttachFiles=AttachFiles,
            SearchStore=SearchStore,
        ),
        "VectorStore": _object(store, required=list(store)),
        "VectorStoreList": _list_of(ref("VectorStore")),
        "DeletedVectorStore": _deleted("vector_store.deleted"),
        "VectorStoreFile": _object(file, required=list(file)),
        "VectorStoreFileList": _list_of(ref("VectorStoreFile")),
        "DeletedVectorStoreFile": _deleted("vector_store.file.deleted"),
        "VectorStoreBatch": _object(batch, required=list(batch)),
        "VectorStoreResults": _single_page(_object(hit, required=list(hit))),
        "VectorStorePassages": _single_page(text),
    }


def _single_page(entry: Schema) -> Schema:
    # OpenAI's format of pages without cursors; here there is always one.
    page = {"object": {"type": "string"}, "data": {"type": "array", "items": entry}, "has_more": {"const": False}}
    return _object(page, required=list(page))


def _batches() -> Schema:
    create = CreateBatch.model_json_schema(ref_template=_REF)
    moments = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    numbers: Schema = {name: {"type": "integer"} for name in ("total", "completed", "failed")}
    batch: Schema = {
        "id": {"type": "string"},
        "object": {"const": "batch"},
        "endpoint": {"enum": list(SCOPES)},
        "model": _NULLABLE_STRING,
        "status": {"enum": list(BatchStatus.values)},
        "errors": {"type": ["object", "null"]},
        "input_file_id": {"type": "string"},
        "output_file_id": _NULLABLE_STRING,
        "error_file_id": _NULLABLE_STRING,
        "completion_window": {"const": "24h"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "expires_at": {"type": "integer"},
        **{f"{moment}_at": _NULLABLE_INTEGER for moment in moments},
        "request_counts": _object(numbers, required=list(numbers)),
        "usage": {"type": ["object", "null"]},
        "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    }
    return {
        **create.pop("$defs"),
        "CreateBatch": create,
        "Batch": _object(batch, required=list(batch)),
        "BatchList": _list_of(ref("Batch")),
    }


def _containers() -> Schema:
    create = CreateContainer.model_json_schema(ref_template=_REF)
    container: Schema = {
        "id": {"type": "string"},
        "object": {"const": "container"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "status": {"enum": ["running", "expired"]},
        "expires_after": {"type": "object"},
        "last_active_at": {"type": "integer", "description": "Unix seconds."},
        "memory_limit": {"enum": ["1g", "4g", "16g", "64g"]},
        "name": {"type": "string"},
        "network_policy": {"type": "object"},
    }
    file: Schema = {
        "id": {"type": "string"},
        "object": {"const": "container.file"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "bytes": {"type": "integer"},
        "container_id": {"type": "string"},
        "path": {"type": "string"},
        "source": {"enum": ["user", "assistant"]},
    }
    new = {"file": {"type": "string", "format": "binary"}, "file_id": {"type": "string", "maxLength": 128}}
    return {
        **create.pop("$defs"),
        "CreateContainer": create,
        "NewContainerFile": _object(new, required=[]),
        "Container": _object(container, required=list(container)),
        "ContainerList": _list_of(ref("Container")),
        "DeletedContainer": _deleted("container.deleted"),
        "ContainerFile": _object(file, required=list(file)),
        "ContainerFileList": _list_of(ref("ContainerFile")),
        "DeletedContainerFile": _deleted("container.file.deleted"),
    }


def _deleted(kind: str) -> Schema:
    deleted: Schema = {"id": {"type": "string"}, "object": {"const": kind}, "deleted": {"type": "boolean"}}
    return _object(deleted, required=list(deleted))


def _error() -> Schema:
    return {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": _NULLABLE_STRING,
        "code": _NULLABLE_STRING,
    }


def _usage() -> Schema:
    cached: Schema = {"cached_tokens": {"type": "integer"}, "cache_write_tokens": {"type": "integer"}}
    return {
        "input_tokens": {"type": "integer"},
        "input_tokens_details": _object(cached, required=list(cached)),
        "output_tokens": {"type": "integer"},
        "output_tokens_details": _object({"reasoning_tokens": {"type": "integer"}}, required=["reasoning_tokens"]),
        "total_tokens": {"type": "integer"},
    }


def _response() -> Schema:
    return {
        "id": {"type": "string"},
        "object": {"const": "response"},
        "created_at": {"type": "integer", "description": "Unix seconds."},
        "completed_at": _NULLABLE_INTEGER,
        "status": {"enum": list(Status.values)},
        "background": {"type": "boolean"},
        "error": {"type": ["object", "null"]},
        "incomplete_details": {"type": ["object", "null"]},
        "instructions": _NULLABLE_STRING,
        "max_output_tokens": _NULLABLE_INTEGER,
        "max_tool_calls": _NULLABLE_INTEGER,
        "model": {"type": "string"},
        "output": {"type": "array", "items": ref("Item")},
        "parallel_tool_calls": {"type": "boolean"},
        "presence_penalty": {"type": "number"},
        "frequency_penalty": {"type": "number"},
        "previous_response_id": _NULLABLE_STRING,
        "prompt_cache_key": _NULLABLE_STRING,
        "reasoning": {"type": ["object", "null"]},
        "safety_identifier": _NULLABLE_STRING,
        "service_tier": {"type": "string"},
        "store": {"type": "boolean"},
        "temperature": {"type": "number"},
        "text": {"type": "object"},
        "tool_choice": {"type": ["string", "object"]},
        "tools": {"type": "array", "items": {"type": "object"}},
        "top_logprobs": {"type": "integer"},
        "top_p": {"type": "number"},
        "truncation": {"enum": ["auto", "disabled"]},
        "usage": {"anyOf": [ref("Usage"), {"type": "null"}]},
        "user": _NULLABLE_STRING,
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    }

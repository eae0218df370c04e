"""The OpenAPI 3.1 document of the API, made of the same types that validate requests."""

from functools import cache
from typing import Any

from django.conf import settings

from conversations.items import INCLUDABLE
from kernel.pagination import DEFAULT_LIMIT, MAX_LIMIT
from responses import counting
from responses.models import Status
from responses.passthrough import CreateEmbedding, CreateModeration
from responses.schema import CreateResponse

Schema = dict[str, Any]
_REF = "#/components/schemas/{model}"
_NULLABLE_STRING: Schema = {"type": ["string", "null"]}
_NULLABLE_INTEGER: Schema = {"type": ["integer", "null"]}


@cache
def document() -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Responses Platform",
            "version": settings.VERSION,
            "description": "The OpenAI Responses API on your own ground. Every error has OpenAI's envelope.",
        },
        "servers": [{"url": "/v1"}],
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A team's API key."}},
            "schemas": _schemas(),
        },
    }


def _paths() -> Schema:
    response_id = _path_parameter("response_id")
    return {
        "/responses": {
            "post": _operation(
                "Create a response",
                body="CreateResponse",
                answer="Response",
                stream="Server-sent events when `stream` is true; each event's `type` is also its name.",
                errors=(400, 401, 403, 413, 429, 500, 503),
            ),
            "get": _operation("List responses", answer="ResponseList", parameters=[*_page(before=True), *_filters()]),
        },
        "/responses/{response_id}": {
            "get": _operation(
                "Retrieve a response",
                answer="Response",
                parameters=[response_id, _include()],
                errors=(400, 401, 403, 404),
            ),
            "delete": _operation(
                "Delete a response", answer="DeletedResponse", parameters=[response_id], errors=(401, 403, 404)
            ),
        },
        "/responses/{response_id}/input_items": {
            "get": _operation(
                "List what a response was generated from",
                answer="ItemList",
                parameters=[response_id, *_page(before=True), _include()],
                errors=(400, 401, 403, 404),
            ),
        },
        "/responses/input_tokens": {
            "post": _operation(
                "Count input tokens", body="CountInputTokens", answer="InputTokens", errors=(400, 401, 403, 404, 413)
            ),
        },
        "/chat/completions": {
            "post": _operation(
                "Create a chat completion",
                body="CreateChatCompletion",
                answer="ChatCompletion",
                stream="Server-sent events when `stream` is true, ending with `data: [DONE]`.",
                errors=(400, 401, 403, 413, 429, 500, 503),
            ),
        },
        "/embeddings": {"post": _passed_on("Create embeddings", body="CreateEmbedding", answer="EmbeddingList")},
        "/moderations": {"post": _passed_on("Create a moderation", body="CreateModeration", answer="Moderation")},
        "/models": {"get": _operation("List models", answer="ModelList", errors=(401, 403))},
        "/models/{model}": {
            "get": _operation(
                "Retrieve a model", answer="Model", parameters=[_path_parameter("model")], errors=(401, 403, 404)
            ),
        },
    }


def _operation(
    summary: str,
    *,
    answer: str,
    body: str | None = None,
    stream: str | None = None,
    parameters: list[Schema] | None = None,
    errors: tuple[int, ...] = (400, 401, 403, 404),
) -> Schema:
    content: Schema = {"application/json": {"schema": _ref(answer)}}
    if stream:
        content["text/event-stream"] = {"schema": {"type": "string", "description": stream}}
    failure = {"description": "An error.", "content": {"application/json": {"schema": _ref("Error")}}}
    operation: Schema = {
        "summary": summary,
        "operationId": summary.lower().replace(" ", "_"),
        "parameters": parameters or [],
        "responses": {
            "200": {"description": "Success.", "content": content},
            **{str(code): failure for code in errors},
        },
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return operation


def _passed_on(summary: str, *, body: str, answer: str) -> Schema:
    return _operation(summary, body=body, answer=answer, errors=(400, 401, 403, 413, 429, 500, 503))


def _page(*, before: bool) -> list[Schema]:
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    cursors = [_query("after", {"type": "string"})] + ([_query("before", {"type": "string"})] if before else [])
    return [*cursors, _query("limit", limit), _query("order", {"enum": ["asc", "desc"], "default": "desc"})]


def _replay() -> list[Schema]:
    return [
        _query("stream", {"type": "boolean", "default": False}),
        _query("starting_after", {"type": "integer", "minimum": 0}),
        _query("include_obfuscation", {"type": "boolean", "default": True}),
    ]


def _include() -> Schema:
    return _query("include", {"type": "array", "items": {"enum": list(INCLUDABLE)}})


def _filters() -> list[Schema]:
    metadata = _query("metadata", {"type": "object", "additionalProperties": {"type": "string"}})
    return [
        _query("model", {"type": "string"}),
        _query("status", {"enum": list(Status.values)}),
        _query("conversation_id", {"type": "string"}),
        _query("created_after", {"type": "integer"}),
        _query("created_before", {"type": "integer"}),
        {**metadata, "style": "deepObject", "explode": True},
    ]


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _ref(name: str) -> Schema:
    return {"$ref": _REF.format(model=name)}


def _schemas() -> Schema:
    create = CreateResponse.model_json_schema(ref_template=_REF)
    moderation = CreateModeration.model_json_schema(ref_template=_REF)
    return {
        **create.pop("$defs"),
        **moderation.pop("$defs"),
        "CreateResponse": create,
        "Response": _object(_response(), required=list(_response())),
        "ResponseList": _list_of(_ref("Response")),
        "DeletedResponse": _object(
            {"id": {"type": "string"}, "object": {"const": "response"}, "deleted": {"type": "boolean"}},
            required=["id", "object", "deleted"],
        ),
        "Item": _object({"id": {"type": "string"}, "type": {"type": "string"}}, required=["id", "type"]),
        "ItemList": _list_of(_ref("Item")),
        "Usage": _object(_usage(), required=list(_usage())),
        "Model": _object(
            {
                "id": {"type": "string"},
                "object": {"const": "model"},
                "created": {"type": "integer"},
                "owned_by": {"type": "string"},
            },
            required=["id", "object", "created", "owned_by"],
        ),
        "ModelList": _object(
            {"object": {"const": "list"}, "data": {"type": "array", "items": _ref("Model")}},
            required=["object", "data"],
        ),
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
                name: schema for name, schema in create["properties"].items() if name in counting.PARAMETERS
            },
        },
        "InputTokens": _object(
            {
                "object": {"const": "response.input_tokens"},
                "input_tokens": {"type": "integer", "description": "An estimate: four characters a token."},
            },
            required=["object", "input_tokens"],
        ),
        "CreateEmbedding": CreateEmbedding.model_json_schema(ref_template=_REF),
        "EmbeddingList": {"type": "object", "description": "The upstream's list of embeddings, as it came."},
        "CreateModeration": moderation,
        "Moderation": {"type": "object", "description": "The upstream's moderation, as it came."},
        "ChatCompletion": {"type": "object", "description": "The upstream's completion, as it came."},
        "Error": _object({"error": _object(_error(), required=list(_error()))}, required=["error"]),
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
        "output": {"type": "array", "items": _ref("Item")},
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
        "usage": {"anyOf": [_ref("Usage"), {"type": "null"}]},
        "user": _NULLABLE_STRING,
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    }

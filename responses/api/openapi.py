"""OpenAPI 3.1 document of the API, generated from the declared endpoints and from the types that validate requests."""

from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from pydantic import BaseModel

from kernel.endpoints import NULLABLE_STRING, STRING, ApiObject, Endpoint, Schema
from responses.api.urls import ENDPOINTS

_REF = "#/components/schemas/{model}"
_DETAIL: Schema = {"message": STRING, "type": STRING, "param": NULLABLE_STRING, "code": NULLABLE_STRING}
_ERROR = ApiObject.of("Error", {"error": {"type": "object", "properties": _DETAIL, "required": list(_DETAIL)}})
# OpenAPI cannot describe the events of a stream, only the format of a single one.
_EVENT: Schema = {
    "type": "object",
    "properties": {"event": STRING, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["data"],
}


def view(_: HttpRequest) -> HttpResponse:
    """Respond to `/openapi.json`, which needs no key."""
    return JsonResponse(document())


@cache
def document() -> Schema:
    """Return the document; cached, as building the schemas takes a while and never changes."""
    paths: Schema = {}
    schemas: Schema = {}
    for endpoint in ENDPOINTS:
        operation = _resolved(_operation(endpoint), schemas)
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Responses Platform",
            "version": settings.VERSION,
            "description": "A self-hosted OpenAI Responses API. Errors have the format of OpenAI's errors.",
        },
        "servers": [{"url": "/v1"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A team's API key."}},
            "schemas": schemas,
        },
    }


def _operation(endpoint: Endpoint) -> Schema:
    content: Schema = {"application/json": {"schema": endpoint.returns}}
    if isinstance(endpoint.returns, str):
        # OpenAPI 3.1 has no schema for the lines of a JSON Lines document.
        schema = {"type": "string", "format": "binary"} if endpoint.returns == "*/*" else STRING
        content = {endpoint.returns: {"schema": schema}}
    if endpoint.stream:
        content["text/event-stream"] = {"schema": {**_EVENT, "description": endpoint.stream}}
    failure = {"description": "Error.", "content": {"application/json": {"schema": _ERROR}}}
    operation: Schema = {
        "summary": endpoint.summary,
        # Generators of clients name their methods after it, so a changed summary changes their API.
        "operationId": endpoint.summary.lower().replace(" ", "_"),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": STRING} for name in endpoint.ids),
            *(parameter for argument in endpoint.query or () for parameter in argument.parameters),
        ],
        "responses": {
            "200": {"description": "Success.", "content": content},
            **{str(status): failure for status in endpoint.statuses},
        },
    }
    if body := endpoint.form or endpoint.body:
        media_type = "multipart/form-data" if endpoint.form else "application/json"
        operation["requestBody"] = {"required": True, "content": {media_type: {"schema": body}}}
    return operation


def _resolved(value: Any, schemas: Schema) -> Any:
    """Replace objects and types with references to `schemas`, to which they are added."""
    match value:
        case dict():
            return {key: _resolved(inner, schemas) for key, inner in value.items()}
        case list():
            return [_resolved(inner, schemas) for inner in value]
        case ApiObject(name=name, schema=schema):
            if name not in schemas:
                schemas[name] = _resolved(schema() if callable(schema) else schema, schemas)
        case type() if issubclass(value, BaseModel):
            name, schema = value.__name__, value.model_json_schema(ref_template=_REF)
            # pydantic puts the types that a schema refers to into its `$defs`; OpenAPI keeps them beside it.
            schemas |= {**schema.pop("$defs", {}), name: schema}
        case _:
            return value
    return {"$ref": _REF.format(model=name)}

"""OpenAPI 3.1 document of the API, generated from the declared endpoints and from the types that validate requests."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from django.conf import settings
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import is_typeddict, override

from core.http.endpoints import NULLABLE_STRING, STRING, ApiObject, Endpoint, Schema
from core.http.objects import Deleted, ListPage
from server.api_urls import ENDPOINTS
from server.reference.descriptions import OBJECTS, OPERATIONS, PARAMETERS, PROPERTIES, SAME, STATUSES, TAGS
from server.reference.samples import SAMPLES, examples, filled

_PROJECTS, _ADMIN = "organization/projects", "admin.organization.projects"
# The SDK's names of endpoints whose name does not follow from the path.
_OPERATIONS = {
    ("POST", "responses/input_tokens"): "responses.input_tokens.count",
    ("GET", "vector_stores/file_batches/files"): "vector_stores.file_batches.list_files",
    ("GET", "containers/files/content"): "containers.files.content.retrieve",
    ("GET", "skills/content"): "skills.content.retrieve",
    ("GET", "skills/versions/content"): "skills.versions.content.retrieve",
    ("POST", "images/generations"): "images.generate",
    ("POST", "images/edits"): "images.edit",
    ("POST", "audio/speech"): "audio.speech.create",
    ("POST", "messages/count_tokens"): "messages.count_tokens",
    ("GET", f"{_PROJECTS}/rate_limits"): f"{_ADMIN}.rate_limits.list_rate_limits",
    ("POST", f"{_PROJECTS}/rate_limits"): f"{_ADMIN}.rate_limits.update_rate_limit",
    **{
        (method, f"{_PROJECTS}/{name}"): f"{_ADMIN}.{name}.{action}"
        for name in ("spend_limit", "model_permissions", "hosted_tool_permissions")
        for method, action in (("GET", "retrieve"), ("POST", "update"), ("DELETE", "delete"))
    },
    ("GET", "organization/costs"): "admin.organization.usage.costs",
    ("GET", "me"): "me.retrieve",
    ("POST", "responses/approvals"): "responses.approvals.decide",
}
_RESOURCES = {
    "organization": "admin.organization",
    "webhook_endpoints": "webhooks",
    "webhook_event_types": "webhooks.event_types",
}
# Names of generic types; the name of the type argument replaces `{}`.
_NAMES: dict[Any, str] = {Deleted: "Deleted{}", ListPage: "{}List"}
_REF = "#/components/schemas/{model}"
_DETAIL: Schema = {"message": STRING, "type": STRING, "param": NULLABLE_STRING, "code": NULLABLE_STRING}
_ERROR = ApiObject.of("Error", {"error": {"type": "object", "properties": _DETAIL, "required": list(_DETAIL)}})
_MESSAGE_ERROR = ApiObject.of(
    "MessageError",
    {
        "type": {"const": "error"},
        "error": {"type": "object", "properties": {"type": STRING, "message": STRING}, "required": ["type", "message"]},
        "request_id": STRING,
    },
)
# OpenAPI cannot describe the events of a stream, only the format of a single one.
_EVENT: Schema = {
    "type": "object",
    "properties": {"event": STRING, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["data"],
}


@cache
def document() -> Schema:
    """Return the document; cached, as building the schemas is slow and the result never changes."""
    paths: Schema = {}
    schemas: Schema = {}
    failures = {
        prefix: {"application/json": {"schema": _resolved(error, schemas)}}
        for prefix, error in (("Error", _ERROR), ("MessageError", _MESSAGE_ERROR))
    }
    for endpoint in ENDPOINTS:
        operation = _resolved(_operation(endpoint), schemas)
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = operation
    for name, schema in schemas.items():
        _describe(name, schema)
    statuses = sorted({status for endpoint in ENDPOINTS for status in endpoint.statuses})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Responses Platform",
            "version": settings.VERSION,
            "description": "A self-hosted OpenAI Responses API. Errors have the format of OpenAI's errors.",
        },
        "servers": [{"url": "/v1"}],
        "security": [{"key": []}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A team's API key, or an admin key."}
            },
            "responses": {
                f"{prefix}{status}": {"description": STATUSES[status], "content": failure}
                for prefix, failure in failures.items()
                for status in statuses
            },
            "schemas": schemas,
        },
    }


def operation_id(endpoint: Endpoint) -> str:
    """Return the name of an endpoint: the name of the SDK's method for it, or a name that follows the same rules.

    Client generators name their methods after it.
    """
    names = [name for name in endpoint.path.split("/") if not name.startswith("<")]
    if known := _OPERATIONS.get((endpoint.method, "/".join(names))):
        return known
    resource = [_RESOURCES.get(name, name) for name in names]
    if names[0] == "organization" and names[1] == "usage":
        # The kinds of usage are methods and not resources.
        action = resource.pop()
    elif endpoint.path.endswith(">"):
        action = {"GET": "retrieve", "POST": "update", "DELETE": "delete"}[endpoint.method]
    elif names[-1].endswith("s"):
        action = {"GET": "list", "POST": "create"}[endpoint.method]
    else:
        # Paths of actions end in a verb, those of lists in a plural.
        action = resource.pop()
    return ".".join([*resource, action])


def _operation(endpoint: Endpoint) -> Schema:
    content: Schema = {"application/json": {"schema": endpoint.returns}}
    if isinstance(endpoint.returns, str):
        # OpenAPI 3.1 has no schema for the lines of a JSON Lines document.
        schema = {"type": "string", "format": "binary"} if endpoint.returns == "*/*" else STRING
        content = {endpoint.returns: {"schema": schema}}
    if endpoint.stream:
        content["text/event-stream"] = {"schema": {**_EVENT, "description": endpoint.stream}}
    name = operation_id(endpoint)
    if "answer" in (example := examples().get(name, {})) and "application/json" in content:
        content["application/json"]["example"] = example["answer"]
    if "events" in example:
        content["text/event-stream"]["example"] = example["events"]
    failed = "MessageError" if name.startswith("messages.") else "Error"
    parameters = [
        *({"name": path_id, "in": "path", "required": True, "schema": STRING} for path_id in endpoint.ids),
        *(parameter for argument in endpoint.query or () for parameter in argument.parameters),
    ]
    operation: Schema = {
        "tags": [_tag(name)],
        "summary": endpoint.summary,
        "description": OPERATIONS.get(name, ""),
        "operationId": name,
        "parameters": [
            {**parameter, "description": PARAMETERS.get(parameter["name"].removesuffix("[]"), "")}
            for parameter in parameters
        ],
        "responses": {
            "200": {"description": STATUSES[200], "content": content},
            **{str(status): {"$ref": f"#/components/responses/{failed}{status}"} for status in endpoint.statuses},
        },
    }
    if body := endpoint.form or endpoint.body:
        media_type = "multipart/form-data" if endpoint.form else "application/json"
        operation["requestBody"] = {"required": True, "content": {media_type: {"schema": body}}}
        if (sample := SAMPLES.get(name)) and sample.body is not None:
            operation["requestBody"]["content"][media_type]["example"] = filled(sample.body)
    return operation


def _tag(name: str) -> str:
    resource = name.partition(".")[0]
    if resource == "admin":
        return "Organization"
    return "Chat completions" if resource == "chat" else resource.replace("_", " ").capitalize()


def _describe(name: str, schema: Schema) -> None:
    """Add the missing descriptions to an object and the properties in it."""
    own = {**OBJECTS.get(SAME.get(name, ""), {}), **OBJECTS.get(name, {})}
    if "" in own:
        schema["description"] = own[""]
    for part in _parts(schema):
        for key, value in part.get("properties", {}).items():
            value.setdefault("description", _description(key, value, own))


def _description(key: str, schema: Schema, own: dict[str, str]) -> str:
    if key not in own and "const" in schema and isinstance(schema["const"], str):
        return f"Always `{schema['const']}`."
    return own.get(key) or PROPERTIES.get(key, "")


def _parts(schema: Any) -> Iterator[Schema]:
    """Yield the objects that are nested in a schema, but not those that it only refers to."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _parts(inner)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema
        for key, inner in schema.items():
            # Keys of `properties` are names and no keywords.
            yield from _parts(list(inner.values()) if key == "properties" and isinstance(inner, dict) else inner)


def _resolved(value: Any, schemas: Schema) -> Any:
    """Return the value with references in place of classes and types, whose schemas are added to `schemas`."""
    match value:
        case dict():
            return {key: _resolved(inner, schemas) for key, inner in value.items()}
        case list():
            return [_resolved(inner, schemas) for inner in value]
        case ApiObject(name=name, schema=schema):
            if name not in schemas:
                schemas[name] = _resolved(schema() if callable(schema) else schema, schemas)
        case type() if issubclass(value, BaseModel):
            name = value.__name__
            _add(name, value.model_json_schema(ref_template=_REF), schemas)
        case _ if get_origin(value) is Annotated:
            return _resolved(get_args(value)[1].of, schemas)
        case _ if get_origin(value) in _NAMES:
            entry = _resolved(get_args(value)[0], schemas)
            name = _NAMES[get_origin(value)].format(entry["$ref"].rpartition("/")[2])
            _add(name, _returned(value), schemas)
        case _ if is_typeddict(value):
            name = value.__name__
            _add(name, _returned(value), schemas)
        case _:
            return value
    return {"$ref": _REF.format(model=name)}


def _add(name: str, schema: Schema, schemas: Schema) -> None:
    # pydantic puts the types that a schema refers to into its `$defs`; OpenAPI keeps them beside it.
    schemas |= {**schema.pop("$defs", {}), name: schema}


class _ReturnedSchema(GenerateJsonSchema):
    """Generates schemas of returned objects: without titles, which repeat names, and with short forms of nulls."""

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    @override
    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        made.pop("title", None)
        return made

    @override
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        return {"type": [inner["type"], "null"]} if inner.keys() == {"type"} else super().nullable_schema(schema)

    @override
    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        if made.get("additionalProperties") is True:
            del made["additionalProperties"]
        return made


def _returned(kind: Any) -> Schema:
    return TypeAdapter(kind).json_schema(ref_template=_REF, schema_generator=_ReturnedSchema)

"""Comparison of this API with the openai SDK: requests of the SDK that this server does not accept.

The SDK's methods and the types of their parameters are compared with our OpenAPI document. The reason for each
difference is in `server.reference.sdk_decisions`.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from openai import Omit, OpenAI
from openai._resource import SyncAPIResource
from typing_extensions import is_typeddict

from core.http.endpoints import Schema
from server.reference.openapi import document

# The call of a method, in its source. Paginated lists name their method if it is not GET.
_CALL = re.compile(r"self\._(get|post|delete|put|patch|get_api_list)\(\s*(?:path_template\(\s*)?f?\"([^\"]+)\"")
_LIST_METHOD = re.compile(r"^ +method=\"(\w+)\"", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{[^}]*\}")
# Variants of `create` whose additional arguments stay in the SDK.
_HELPERS = {"parse", "stream"}
_OPTIONS = {"return", "extra_headers", "extra_query", "extra_body", "timeout"}


def gaps() -> list[str]:
    """Return the endpoints, parameters and values of the SDK that this server lacks, sorted.

    An endpoint is named by its method and path, as in ``POST /videos``; a parameter by its path in the request, as in
    ``POST /responses: tools[][mcp].tunnel_id``, with the ``type`` of an object in brackets; a value as in
    ``POST /batches: endpoint=/v1/videos``.
    """
    api = document()
    comparison = Comparison(api["components"]["schemas"])
    operations = {
        (method.upper(), _PLACEHOLDER.sub("{}", path)): operation
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    }
    found: set[str] = set()
    for call in _calls(OpenAI(api_key="-")):
        name = f"{call.method} {call.path}"
        operation = operations.get((call.method, _PLACEHOLDER.sub("{}", call.path)))
        if operation is None:
            found.add(name)
        else:
            found.update(f"{name}: {gap}" for gap in comparison.of_call(call.parameters, operation))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Call:
    """Method of the SDK that sends a request."""

    method: str
    path: str
    # Parameters by name, without those in the path.
    parameters: dict[str, Any]


def _calls(resource: Any) -> Iterator[_Call]:
    """Yield the methods of a client or a resource, and of all resources in it."""
    for name, member in inspect.getmembers(type(resource)):
        if isinstance(member, cached_property) and isinstance(inner := getattr(resource, name), SyncAPIResource):
            yield from _calls(inner)
        elif inspect.isfunction(member) and isinstance(resource, SyncAPIResource) and name not in _HELPERS:
            source = inspect.getsource(member)
            if not name.startswith("_") and (call := _CALL.search(source)):
                # The methods of beta features add a query to the path.
                method, path = call[1], call[2].partition("?")[0]
                if method == "get_api_list":
                    method = named[1] if (named := _LIST_METHOD.search(source)) else "get"
                ignored = {*_OPTIONS, *re.findall(r"\{(\w+)\}", path)}
                hints = {key: hint for key, hint in get_type_hints(member).items() if key not in ignored}
                yield _Call(method.upper(), path, hints)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of types of the SDK with schemas of our document."""

    components: Schema
    # Types that contain themselves are compared once.
    _entered: list[Any] = field(default_factory=list)

    def of_call(self, parameters: dict[str, Any], operation: Schema) -> Iterator[str]:
        """Yield the parameters and values that these types allow and the operation does not accept."""
        accepted: dict[str, list[Schema]] = {}
        for parameter in operation["parameters"]:
            accepted.setdefault(parameter["name"].partition("[")[0], []).append(parameter["schema"])
        for content in operation.get("requestBody", {"content": {}})["content"].values():
            for schema in self._alternatives(content["schema"]):
                for name, inner in schema.get("properties", {}).items():
                    # A form has names such as `expires_after[anchor]`.
                    accepted.setdefault(name.partition("[")[0], []).append({} if "[" in name else inner)
        for name, kind in parameters.items():
            if name in accepted:
                yield from self.of_value(kind, accepted[name], name)
            else:
                yield name

    def of_value(self, kind: Any, schemas: Iterable[Schema], path: str) -> Iterator[str]:
        """Yield the contents of this type that no schema accepts, as paths that start with `path`."""
        alternatives = [inner for schema in schemas for inner in self._alternatives(schema)]
        if any(not ({"type", "enum", "const"} & schema.keys()) for schema in alternatives):
            # Any value is allowed, or it is described in words only.
            return
        members = list(_members(kind))
        for member in members:
            if get_origin(member) is Literal:
                yield from _missing_values(member, alternatives, path)
            elif is_typeddict(member):
                label = _type_of(member)
                named = f"{path}[{label}]" if label and len(members) > 1 else path
                yield from self._compare_object(member, alternatives, named, label)
            elif get_args(member) and getattr(get_origin(member), "__name__", "") in _SEQUENCES:
                items = [schema["items"] for schema in alternatives if schema.get("type") == "array"]
                yield from self.of_value(get_args(member)[0], items, f"{path}[]") if items else (f"{path}[]",)

    def _compare_object(self, kind: Any, alternatives: Iterable[Schema], path: str, label: str | None) -> Iterator[str]:
        objects = [schema for schema in alternatives if schema.get("type") == "object"]
        if label and any("type" in schema.get("properties", {}) for schema in objects):
            objects = [schema for schema in objects if label in self._types(schema)]
        if not objects:
            yield path
        elif kind not in self._entered and not any(schema.get("additionalProperties") for schema in objects):
            self._entered.append(kind)
            for name, hint in get_type_hints(kind).items():
                accepted = [schema["properties"][name] for schema in objects if name in schema.get("properties", {})]
                yield from self.of_value(hint, accepted, f"{path}.{name}") if accepted else (f"{path}.{name}",)
            self._entered.pop()

    def _types(self, schema: Schema) -> set[Any]:
        kinds = self._alternatives(schema.get("properties", {}).get("type", {}))
        return {value for kind in kinds for value in kind.get("enum", [kind.get("const")])}

    def _alternatives(self, schema: Schema) -> Iterator[Schema]:
        """Yield the schemas of a union, or the schema itself."""
        if "$ref" in schema:
            yield from self._alternatives(self.components[schema["$ref"].rpartition("/")[2]])
        elif inner := schema.get("oneOf") or schema.get("anyOf"):
            for alternative in inner:
                yield from self._alternatives(alternative)
        else:
            yield schema


_SEQUENCES = {"Iterable", "Sequence", "SequenceNotStr", "list"}


def _members(kind: Any) -> Iterator[Any]:
    """Yield the types of a union, or the type itself."""
    if get_origin(kind) in {Union, UnionType}:
        for member in get_args(kind):
            yield from _members(member)
    elif get_origin(kind) in {Annotated, Required, NotRequired}:
        yield from _members(get_args(kind)[0])
    elif kind not in {None, type(None), Omit}:
        yield kind


def _type_of(kind: Any) -> str | None:
    """Return the value of an object's `type`, if it has only one."""
    values = get_args(get_type_hints(kind).get("type"))
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _missing_values(kind: Any, alternatives: Iterable[Schema], path: str) -> Iterator[str]:
    accepted: set[Any] = set()
    for schema in alternatives:
        if "const" in schema or "enum" in schema:
            accepted.update(schema.get("enum", [schema.get("const")]))
        elif {"string", "integer", "boolean"} & {
            *([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
        }:
            return
    for value in get_args(kind):
        if value not in accepted:
            yield f"{path}={value if isinstance(value, str) else json.dumps(value)}"

"""Declaration of endpoints: each is declared once, by the decorator of its handler.

URLs, the check of the scope, the OpenAPI document, docs/reference/api-coverage.md and the table of the tests are
derived from the declarations.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponseBase, QueryDict
from django.urls import register_converter
from django.urls.converters import StringConverter
from pydantic import BaseModel
from rest_framework.request import Request
from rest_framework.response import Response

from core.errors import UnknownParameter
from core.http.nulls import read
from core.http.query import QueryArgument, reject_unknown, reject_unstorable, reject_unstorable_values
from core.http.validation import malformed_id, parse_json
from core.ids import Prefix, expectation
from core.json.large_work import off_loop

Schema = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Any])
STRING: Schema = {"type": "string"}
NULLABLE_STRING: Schema = {"type": ["string", "null"]}
INTEGER: Schema = {"type": "integer"}
NULLABLE_INTEGER: Schema = {"type": ["integer", "null"]}
BOOLEAN: Schema = {"type": "boolean"}
BINARY: Schema = {"type": "string", "format": "binary"}
UNIX_TIME: Schema = {"type": "integer", "description": "Unix seconds."}
ENDPOINT = "endpoint"
"""Key of the ASGI scope with the `Endpoint` of the request, or None."""
_ID_PREFIXES = frozenset(Prefix)
_CONVERTER = re.compile(r"<(?:(\w+):)?(\w+)>")


class _IdConverter(StringConverter):
    """Converter of ids in paths. It also matches malformed ids, for which `Endpoint` has better errors than 404."""


for _prefix in Prefix:
    register_converter(_IdConverter, _prefix.value)


# Cached: matched with every request that may be a stream or an upload.
@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("/v1/" + _CONVERTER.sub(r"(?P<\2>[^/]+)", path))


def _check_ids(path: str, ids: Mapping[str, str]) -> None:
    """Raise `BadRequest` for a value in the path that no object can have, before it gets into a query."""
    for prefix, name in _CONVERTER.findall(path):
        if prefix not in _ID_PREFIXES:
            reject_unstorable(ids[name], param=name)
        elif (expected := expectation(ids[name], prefix)) is not None:
            raise malformed_id(ids[name], name, expected)


@dataclass(frozen=True, slots=True)
class ApiObject:
    """JSON object or form of the API whose schema is written by hand, with its name in the OpenAPI document.

    Schemas may contain other API objects, to which the document refers by name. Schemas that take long to build are
    functions.
    """

    name: str
    schema: Schema | Callable[[], Schema]

    @classmethod
    def of(
        cls, name: str, properties: Schema, *, required: Sequence[str] | None = None, description: str = ""
    ) -> "ApiObject":
        """Return an object with these properties, all of which are required by default."""
        required = list(properties) if required is None else list(required)
        schema = {"type": "object", "properties": properties, "required": required}
        return cls(name, {**schema, "description": description} if description else schema)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method of a path below /v1/; as a decorator, it declares the handler of a view. An empty scope allows any key.

    The handler receives the ids of the path, the arguments of `query`, and `body`. The method and the path come from
    the view (`tenants.views.ApiView`); the converter of an id in the path is its prefix, as in `<resp:response_id>`.
    `returns` is the type of the returned object (by default the handler's return annotation), or a media type for
    contents that are not JSON. `parse` converts the values of a JSON body, by default into the type `body`. `query`
    None accepts any parameters. A `spooled` body is written to disk. `calls_model`: the handler itself reserves the
    limits for the call. `served_by` is a class of calls (`responses.api.calls`) that serves the endpoint if it has no
    handler, and otherwise only requests for the stream that `stream` describes.
    """

    scope: str
    summary: str
    _: KW_ONLY
    returns: Any = None
    body: type[BaseModel] | ApiObject | None = None
    parse: Callable[[dict[str, Any]], Any] | None = None
    takes_no_body: bool = False
    form: ApiObject | None = None
    spooled: bool = False
    query: Sequence[QueryArgument] | None = ()
    errors: Sequence[int] | None = None
    calls_model: bool = False
    served_by: Any = None
    stream: str = ""
    note: str = ""
    method: str = ""
    path: str = ""

    def __call__(self, handler: Handler) -> Handler:
        def arguments_of(view: Any, request: Request, ids: dict[str, str]) -> dict[str, Any]:
            # `view.path`, because the declaration is copied into the view, which completes it.
            _check_ids(view.path, ids)
            body = request._request.body  # noqa: SLF001 - DRF would choose a parser for it
            return self.arguments(request.query_params, body)

        @wraps(handler)
        def call(view: Any, request: Request, **ids: str) -> HttpResponseBase:
            return _response(handler(view, request, **ids, **arguments_of(view, request, ids)))

        @wraps(handler)
        async def call_async(view: Any, request: Request, **ids: str) -> HttpResponseBase:
            arguments = await off_loop(partial(arguments_of, view, request, ids))
            return _response(await handler(view, request, **ids, **arguments))

        declared: Any = call_async if iscoroutinefunction(handler) else call
        declared.endpoint = replace(self, returns=self.returns or handler.__annotations__["return"])
        return cast("Handler", declared)

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it, such as `/responses/{response_id}`."""
        return "/" + _CONVERTER.sub(r"{\2}", self.path)

    @property
    def ids(self) -> list[str]:
        """The names of the parameters in the path."""
        return [name for _, name in _CONVERTER.findall(self.path)]

    @property
    def reads_body(self) -> bool:
        """True if a request has a body with arguments or a form."""
        return self.body is not None or self.form is not None

    @property
    def is_work(self) -> bool:
        """True if a request creates something or calls a model; it is refused during an overload or a shutdown.

        Updates, whose path ends with an id, cancellations, which have no body, and administration are always served.
        """
        is_update = self.path.endswith(">")
        is_administration = self.scope.startswith("admin.")
        has_task = self.calls_model or (self.reads_body and not is_update and not is_administration)
        return self.method == "POST" and has_task

    @property
    def statuses(self) -> Sequence[int]:
        """The HTTP statuses of the endpoint's errors."""
        if self.errors is not None:
            return sorted({*self.errors, *([400] if self.ids else [])})
        checks = {
            # Also for an id with characters that no id has.
            400: bool(self.ids) or self.reads_body or self.takes_no_body or self.query is not None,
            401: True,
            403: True,
            404: bool(self.ids) or self.body is not None or self.query is not None,
            413: self.reads_body,
        }
        return [status for status, possible in checks.items() if possible]

    def matches(self, method: str, path: str) -> bool:
        """Return true if a request is for this endpoint."""
        return method == self.method and _pattern(self.path).fullmatch(path) is not None

    def read_ids(self, path: str) -> dict[str, str]:
        """Return the ids in the path of a request for this endpoint; raises `BadRequest` for malformed ones."""
        match = _pattern(self.path).fullmatch(path)
        ids = match.groupdict() if match is not None else {}
        _check_ids(self.path, ids)
        return ids

    def arguments(self, query: QueryDict, body: bytes) -> dict[str, Any]:
        """Read the arguments of the handler; raises `BadRequest`."""
        if self.query is not None:
            reject_unknown(query, self.query)
            reject_unstorable_values(query)
        arguments = {argument.name: argument.read(query) for argument in self.query or ()}
        if self.parse is not None:
            arguments["body"] = self.parse(parse_json(body))
        elif isinstance(self.body, type):
            # Clients may omit the body if all of its fields are optional.
            arguments["body"] = read(self.body, parse_json(body) if body else {})
        elif self.takes_no_body and body.strip():
            # SDKs send no body, an empty object or nulls.
            for name, value in parse_json(body).items():
                if value is not None:
                    raise UnknownParameter(name)
        return arguments


def endpoint_of(view: Any, request: Any) -> Endpoint | None:
    """Return the endpoint that a view declares for the method of a request."""
    return getattr(getattr(view, (request.method or "").lower(), None), "endpoint", None)


def endpoint_in(scope: Mapping[str, Any]) -> Endpoint | None:
    """Return the endpoint of a request to the API."""
    return cast("Endpoint | None", scope.get(ENDPOINT))


def asks_for_stream(scope: Mapping[str, Any]) -> bool:
    """Return true if the query of a GET request asks for a stream. The body of a POST request is not read."""
    return scope["method"] == "GET" and b"stream=true" in scope["query_string"].split(b"&")


def _response(returned: Any) -> HttpResponseBase:
    return returned if isinstance(returned, HttpResponseBase) else Response(returned)


class EndpointIndex:
    """Index of the endpoints by path. Names in paths take precedence over ids, whose patterns also match names."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._by_name: dict[str, list[Endpoint]] = {}
        # By the number of their path segments, as there are a hundred such endpoints.
        self._with_ids: dict[int, dict[str, list[Endpoint]]] = {}
        for endpoint in endpoints:
            path = f"/v1/{endpoint.path}"
            paths = self._with_ids.setdefault(path.count("/"), {}) if endpoint.ids else self._by_name
            paths.setdefault(endpoint.path if endpoint.ids else path, []).append(endpoint)

    def at(self, path: str) -> Sequence[Endpoint]:
        """Return the endpoints of a path, one for each of its methods."""
        if (by_name := self._by_name.get(path)) is not None:
            return by_name
        candidates = self._with_ids.get(path.count("/"), {})
        return next((endpoints for form, endpoints in candidates.items() if _pattern(form).fullmatch(path)), ())

    def find(self, method: str, path: str) -> Endpoint | None:
        """Return the endpoint of a request."""
        return next((endpoint for endpoint in self.at(path) if endpoint.method == method), None)

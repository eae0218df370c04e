"""Endpoints of `/v1/messages`, Anthropic's API, and differences for its clients: keys, errors, the list of models."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Literal

import orjson
from django.http import QueryDict
from typing_extensions import TypedDict, override

from core.errors import ApiError, BadRequest
from core.http.asgi import App, Message, Receive, Scope, Send, header, send_error
from core.http.endpoints import STRING, ApiObject, Endpoint
from core.http.sending import JsonAnswer
from gateway import anthropic
from gateway.anthropic import errors
from gateway.anthropic.schema import CountTokens, CreateMessage
from responses.api.calls import RunCall
from responses.api.requests import STREAMED, info_of, warning_headers
from tenants.models import Scope as KeyScope
from tenants.principal import Principal
from tenants.views import ApiRequest, ApiView

# All versions so far have this format. New SDKs send versions that are newer than this server.
_VERSION = re.compile(r"20\d\d-\d\d-\d\d")
_MISSING = "x-api-key header is required"
_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": STRING},
    "required": ["type", "text"],
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": STRING,
        "input_schema": {
            "type": "object",
            "properties": {"type": {"const": "object"}},
            "required": ["type"],
            "description": "JSON schema of the input.",
        },
    },
    "required": ["name", "input_schema"],
}
_INPUT: dict[str, Any] = {
    "model": {"type": "string", "maxLength": 200},
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    "system": {"anyOf": [STRING, {"type": "array", "items": _TEXT}, {"type": "null"}]},
    "tools": {"anyOf": [{"type": "array", "items": _TOOL}, {"type": "null"}]},
}
# Abridged: Anthropic's documentation has the complete schemas.
_CREATE = ApiObject.of(
    "CreateMessage",
    {**_INPUT, "max_tokens": {"type": "integer", "minimum": 0}, "stream": {"type": ["boolean", "null"]}},
    required=["model", "messages", "max_tokens"],
)
_COUNT = ApiObject.of("CountMessageTokens", _INPUT, required=["model", "messages"])


class MessageUsage(TypedDict):
    """Tokens that a message used. The three numbers of input tokens do not overlap."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(TypedDict):
    """A message of the model, in Anthropic's format."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(TypedDict):
    """Number of input tokens of a message."""

    input_tokens: int


class MessageCall(RunCall[CreateMessage]):
    """`POST /v1/messages`."""

    @override
    async def answer(self, principal: Principal, body: CreateMessage, /) -> JsonAnswer:
        request = info_of(self.scope)
        message, run = await anthropic.create_message(principal=principal, body=body, request=request)
        return JsonAnswer(message, headers=warning_headers(run.warnings))

    @override
    async def open(self, principal: Principal, body: CreateMessage, /) -> AsyncIterator[bytes]:
        run = await anthropic.stream_message(principal=principal, body=body, request=info_of(self.scope))
        return await self.frames_of(run)

    @override
    def error_frame(self, error: ApiError) -> bytes:
        return errors.event(error)


class MessagesView(ApiView, path="messages"):
    """Messages of Anthropic's API."""

    post = Endpoint(
        KeyScope.RESPONSES_WRITE,
        "Create a message",
        query=None,
        calls_model=True,
        body=_CREATE,
        parse=anthropic.parse_message,
        served_by=MessageCall,
        stream=f"{STREAMED}, as in Anthropic's API.",
        errors=(400, 401, 403, 404, 413, 429, 500, 529),
        returns=AnthropicMessage,
        note="Anthropic's Messages API, on the same runs as responses",
    )


class CountMessageTokensView(ApiView, path="messages/count_tokens"):
    """Number of input tokens of a message."""

    @Endpoint(
        KeyScope.RESPONSES_WRITE,
        "Count tokens in a message",
        query=None,
        body=_COUNT,
        parse=anthropic.parse_count,
        errors=(400, 401, 403, 404, 413),
        note="counted by the upstream if it can, otherwise estimated",
    )
    async def post(self, request: ApiRequest, body: CountTokens) -> MessageTokens:
        return {"input_tokens": await anthropic.count_tokens(principal=request.principal, body=body)}


def with_anthropic_clients(app: App) -> App:
    """Wrap the API so that Anthropic's clients may use `x-api-key`, and get Anthropic's headers, errors and models.

    This applies to all requests to `/v1/messages`, and to requests for models with a header of Anthropic's clients.
    """

    # Other requests have no coroutine here, which would live as long as their streams.
    def routed(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_anthropic = is_messages(scope["path"]) or (_is_models(scope["path"]) and _has_anthropic_headers(scope))
        return (anthropic_app if is_anthropic else app)(scope, receive, send)

    async def anthropic_app(scope: Scope, receive: Receive, send: Send) -> None:
        asks_for_models = _is_models(scope["path"])
        sender = _Sender(scope, send, convert=partial(_models, scope) if asks_for_models else None)
        version = header(scope, b"anthropic-version")
        if version and not _VERSION.fullmatch(version):
            await send_error(BadRequest(f"anthropic-version: '{version[:20]}' is not a valid version."), sender.send)
            return
        if key := header(scope, b"x-api-key"):
            headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
            scope = {**scope, "headers": [*headers, (b"authorization", f"Bearer {key}".encode("latin-1"))]}
        if asks_for_models:
            # OpenAI's list has no pages.
            scope = {**scope, "query_string": b""}
        await app(scope, receive, sender.send)

    return routed


def is_messages(path: str) -> bool:
    """Return true for paths of Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def _is_models(path: str) -> bool:
    return path == "/v1/models" or path.startswith("/v1/models/")


def _has_anthropic_headers(scope: Scope) -> bool:
    has_key = bool(header(scope, b"x-api-key")) and not header(scope, b"authorization")
    return has_key or bool(header(scope, b"anthropic-version"))


def _models(scope: Scope, answer: dict[str, Any]) -> dict[str, Any]:
    """Return a model or all models as Anthropic's clients read them. Raises `BadRequest`."""
    if answer.get("object") != "list":
        return anthropic.public_model(answer)
    return anthropic.model_page(answer["data"], QueryDict(scope["query_string"]))


class _Sender:
    """Adds Anthropic's request id to responses, and converts errors from any part of the server.

    `convert` returns Anthropic's form of a JSON answer; it may raise `BadRequest`.
    """

    def __init__(
        self, scope: Scope, send: Send, *, convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ) -> None:
        self._send = send
        self._convert = convert
        self._request_id: str = scope["request_id"]
        self._has_key = bool(header(scope, b"authorization") or header(scope, b"x-api-key"))
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"request-id", self._request_id.encode())]
            message = {**message, "headers": headers}
            if message["status"] >= 400 or (self._convert is not None and message["status"] == 200):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            has_more = message.get("more_body", False)
            # If a large body is refused, the response ends late, because the rest of the body still arrives. So the
            # response is converted as soon as it has all of its bytes.
            length = dict(self._start["headers"]).get(b"content-length", b"")
            if not has_more or length == str(len(self._body)).encode():
                start, self._start = self._start, None
                await self._send_converted(start, has_more=has_more)
            return
        await self._send(message)

    async def _send_converted(self, start: Message, *, has_more: bool) -> None:
        status, data = start["status"], self._body
        if self._convert is not None and status == 200:
            try:
                await self._send_json(start, 200, self._convert(orjson.loads(data)), has_more=has_more)
            except BadRequest as error:
                _, body = errors.convert(error.status, error.detail(), request_id=self._request_id)
                await self._send_json(start, error.status, body, has_more=has_more)
            return
        try:
            detail = orjson.loads(data)["error"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            detail = {"message": data.decode(errors="replace")}
        if status == 401 and not self._has_key:
            detail = {"message": _MISSING}
        status, body = errors.convert(status, detail, request_id=self._request_id)
        await self._send_json(start, status, body, has_more=has_more)

    async def _send_json(self, start: Message, status: int, body: dict[str, Any], *, has_more: bool) -> None:
        data = orjson.dumps(body)
        replaced = {b"content-length": str(len(data)).encode(), b"content-type": b"application/json"}
        headers = [(name, value) for name, value in start["headers"] if name.lower() not in replaced]
        await self._send({**start, "status": status, "headers": [*headers, *replaced.items()]})
        await self._send({"type": "http.response.body", "body": data, "more_body": has_more})

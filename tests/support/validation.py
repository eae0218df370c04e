"""Holds every answer and event that a test sees to the SDK's types, strictly, and to the Open Responses document.

Strictly: nothing missing, no wrong type, no unknown `type`, no key that the types do not know. The SDK itself would
hand a user whatever we send. What departs from either is listed in `tests.support.type_deviations`, with its reason.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeVar, get_args

import httpx2
import openresponses_types.types as neutral
import orjson
from openai.types import (
    Batch,
    CreateEmbeddingResponse,
    FileDeleted,
    FileObject,
    Model,
    ModerationCreateResponse,
    Upload,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreSearchResponse,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionDeleted, ChatCompletionStoreMessage
from openai.types.container_create_response import ContainerCreateResponse
from openai.types.container_list_response import ContainerListResponse
from openai.types.container_retrieve_response import ContainerRetrieveResponse
from openai.types.containers import FileCreateResponse, FileListResponse, FileRetrieveResponse
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from openai.types.responses import (
    CompactedResponse,
    Response,
    ResponseItem,
    ResponseItemList,
    ResponseStreamEvent,
)
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.responses_server_event import ResponsesServerEvent
from openai.types.uploads import UploadPart
from openai.types.vector_stores import (
    FileContentResponse,
    VectorStoreFile,
    VectorStoreFileBatch,
    VectorStoreFileDeleted,
)
from openai.types.webhooks import (
    DeletedWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointList,
    WebhookEndpointTestResult,
    WebhookEndpointWithSecret,
    WebhookEventTypeList,
)
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from tests.support.type_deviations import CHOICES, EXTRA_KEYS, NEVER_NULL, UNCHECKED, VALUES, as_the_document_knows_it

Json = dict[str, Any]
Entry = TypeVar("Entry")


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Page(_Closed, Generic[Entry]):
    """A page of a list."""

    object: Literal["list"]
    data: list[Entry]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Results(_Closed, Generic[Entry]):
    """What is found comes all at once; the SDK has no type for the page."""

    object: str
    data: list[Entry]
    has_more: Literal[False]
    next_page: None
    search_query: list[str] | None = None


class _Models(_Closed):
    object: Literal["list"]
    data: list[Model]


class _DeletedResponse(_Closed):
    """The SDK throws this body away, so it has no type for it."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class _DeletedContainer(_Closed):
    """The SDK throws this body away, too."""

    id: str
    object: Literal["container.deleted"]
    deleted: Literal[True]


class _DeletedContainerFile(_Closed):
    """And this one."""

    id: str
    object: Literal["container.file.deleted"]
    deleted: Literal[True]


class _Compacted(CompactedResponse):
    """The SDK types the messages of users in it as if the model had said them; the Open Responses document does not."""

    output: list[ResponseItem]  # type: ignore[assignment]


class _ErrorDetail(_Closed):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(_Closed):
    """What every error is."""

    error: _ErrorDetail


@dataclass(frozen=True)
class _Endpoint:
    method: str
    path: str
    kind: Any


_ID = "[^/]+"
ENDPOINTS = [
    _Endpoint("POST", "/responses", Response),
    _Endpoint("GET", "/responses", Page[Response]),
    _Endpoint("POST", "/responses/input_tokens", InputTokenCountResponse),
    _Endpoint("POST", "/responses/compact", _Compacted),
    _Endpoint("GET", f"/responses/{_ID}", Response),
    _Endpoint("DELETE", f"/responses/{_ID}", _DeletedResponse),
    _Endpoint("POST", f"/responses/{_ID}/cancel", Response),
    _Endpoint("GET", f"/responses/{_ID}/input_items", ResponseItemList),
    _Endpoint("POST", "/chat/completions", ChatCompletion),
    _Endpoint("GET", "/chat/completions", Page[ChatCompletion]),
    _Endpoint("GET", f"/chat/completions/{_ID}", ChatCompletion),
    _Endpoint("POST", f"/chat/completions/{_ID}", ChatCompletion),
    _Endpoint("DELETE", f"/chat/completions/{_ID}", ChatCompletionDeleted),
    _Endpoint("GET", f"/chat/completions/{_ID}/messages", Page[ChatCompletionStoreMessage]),
    _Endpoint("POST", "/embeddings", CreateEmbeddingResponse),
    _Endpoint("POST", "/moderations", ModerationCreateResponse),
    _Endpoint("GET", "/models", _Models),
    _Endpoint("GET", "/models/.+", Model),
    _Endpoint("POST", "/conversations", Conversation),
    _Endpoint("GET", "/conversations", Page[Conversation]),
    _Endpoint("GET", f"/conversations/{_ID}", Conversation),
    _Endpoint("POST", f"/conversations/{_ID}", Conversation),
    _Endpoint("DELETE", f"/conversations/{_ID}", ConversationDeletedResource),
    _Endpoint("POST", f"/conversations/{_ID}/fork", Conversation),
    _Endpoint("POST", f"/conversations/{_ID}/cancel", Conversation),
    _Endpoint("GET", f"/conversations/{_ID}/items", Page[ConversationItem]),
    _Endpoint("POST", f"/conversations/{_ID}/items", ConversationItemList),
    _Endpoint("GET", f"/conversations/{_ID}/items/{_ID}", RootModel[ConversationItem]),
    _Endpoint("DELETE", f"/conversations/{_ID}/items/{_ID}", Conversation),
    _Endpoint("POST", "/batches", Batch),
    _Endpoint("GET", "/batches", Page[Batch]),
    _Endpoint("GET", f"/batches/{_ID}", Batch),
    _Endpoint("POST", f"/batches/{_ID}/cancel", Batch),
    _Endpoint("POST", "/webhook_endpoints", WebhookEndpointWithSecret),
    _Endpoint("GET", "/webhook_endpoints", WebhookEndpointList),
    _Endpoint("GET", f"/webhook_endpoints/{_ID}", WebhookEndpoint),
    _Endpoint("POST", f"/webhook_endpoints/{_ID}", WebhookEndpoint),
    _Endpoint("DELETE", f"/webhook_endpoints/{_ID}", DeletedWebhookEndpoint),
    _Endpoint("POST", f"/webhook_endpoints/{_ID}/rotate_secret", WebhookEndpointWithSecret),
    _Endpoint("POST", f"/webhook_endpoints/{_ID}/test", WebhookEndpointTestResult),
    _Endpoint("GET", "/webhook_event_types", WebhookEventTypeList),
    _Endpoint("POST", "/files", FileObject),
    _Endpoint("GET", "/files", Page[FileObject]),
    _Endpoint("GET", f"/files/{_ID}", FileObject),
    _Endpoint("DELETE", f"/files/{_ID}", FileDeleted),
    _Endpoint("POST", "/uploads", Upload),
    _Endpoint("POST", f"/uploads/{_ID}/parts", UploadPart),
    _Endpoint("POST", f"/uploads/{_ID}/(complete|cancel)", Upload),
    _Endpoint("POST", "/vector_stores", VectorStore),
    _Endpoint("GET", "/vector_stores", Page[VectorStore]),
    _Endpoint("GET", f"/vector_stores/{_ID}", VectorStore),
    _Endpoint("POST", f"/vector_stores/{_ID}", VectorStore),
    _Endpoint("DELETE", f"/vector_stores/{_ID}", VectorStoreDeleted),
    _Endpoint("POST", f"/vector_stores/{_ID}/search", _Results[VectorStoreSearchResponse]),
    _Endpoint("POST", f"/vector_stores/{_ID}/files", VectorStoreFile),
    _Endpoint("GET", f"/vector_stores/{_ID}/files", Page[VectorStoreFile]),
    _Endpoint("GET", f"/vector_stores/{_ID}/files/{_ID}", VectorStoreFile),
    _Endpoint("POST", f"/vector_stores/{_ID}/files/{_ID}", VectorStoreFile),
    _Endpoint("DELETE", f"/vector_stores/{_ID}/files/{_ID}", VectorStoreFileDeleted),
    _Endpoint("GET", f"/vector_stores/{_ID}/files/{_ID}/content", _Results[FileContentResponse]),
    _Endpoint("POST", f"/vector_stores/{_ID}/file_batches", VectorStoreFileBatch),
    _Endpoint("GET", f"/vector_stores/{_ID}/file_batches/{_ID}", VectorStoreFileBatch),
    _Endpoint("POST", f"/vector_stores/{_ID}/file_batches/{_ID}/cancel", VectorStoreFileBatch),
    _Endpoint("GET", f"/vector_stores/{_ID}/file_batches/{_ID}/files", Page[VectorStoreFile]),
    _Endpoint("POST", "/containers", ContainerCreateResponse),
    _Endpoint("GET", "/containers", Page[ContainerListResponse]),
    _Endpoint("GET", f"/containers/{_ID}", ContainerRetrieveResponse),
    _Endpoint("DELETE", f"/containers/{_ID}", _DeletedContainer),
    _Endpoint("POST", f"/containers/{_ID}/files", FileCreateResponse),
    _Endpoint("GET", f"/containers/{_ID}/files", Page[FileListResponse]),
    _Endpoint("GET", f"/containers/{_ID}/files/{_ID}", FileRetrieveResponse),
    _Endpoint("DELETE", f"/containers/{_ID}/files/{_ID}", _DeletedContainerFile),
]
"""What each endpoint answers with; one that is missing here fails the first test that gets an answer of it."""


@cache
def _events(union: Any) -> dict[str, type[BaseModel]]:
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(union)[0])}


@cache
def _neutral_events() -> dict[str, type[BaseModel]]:
    """The events of the Open Responses document by their `type`."""
    found = {}
    for name, kind in vars(neutral).items():
        if name.endswith("StreamingEvent"):
            (value,) = kind.model_fields["type"].annotation
            found[value.value] = kind
    return found


def check_answer(method: str, path: str, answer: httpx2.Response) -> None:
    """An answer of the API is what the types of its endpoint say; `path` is below `/v1`."""
    if method == "HEAD" or 300 <= answer.status_code < 400:
        return
    if answer.status_code >= 400:
        check_error(answer)
        return
    if any(re.fullmatch(known, f"{method} {path}") for known in UNCHECKED):
        return
    for endpoint in ENDPOINTS:
        if endpoint.method == method and re.fullmatch(endpoint.path, path):
            check_body(endpoint.kind, answer.content)
            return
    raise AssertionError(f"{method} {path}: tests/support/validation.py does not know what it answers with")


def check_error(answer: httpx2.Response) -> None:
    """Every error comes in the one envelope."""
    assert answer.headers["content-type"] == "application/json", answer.text
    ErrorEnvelope.model_validate_json(answer.content, strict=True)


def check_body(kind: Any, raw: bytes) -> BaseModel:
    """The JSON is what the SDK's type says, and what the Open Responses document says of the same object."""
    body = orjson.loads(raw)
    parsed = _strictly(kind, body)
    for response in body["data"] if kind is Page[Response] else [body] if kind is Response else []:
        check_response(response)
    return parsed


def check_event(event: Json, *, socket: bool = False) -> BaseModel:
    """One event of a stream, or of a WebSocket; returns it as the SDK sees it."""
    union = ResponsesServerEvent if socket else ResponseStreamEvent
    known = _events(union)
    assert event["type"] in known, f"the SDK knows no event {event['type']!r}"
    if event["type"] == "error" and (not socket or "sequence_number" in event):
        # The wire nests what the SDK's type has flat: it never gives this event to a user, it raises it.
        return _strictly(neutral.ErrorStreamingEvent, event)
    parsed = _strictly(known[event["type"]], event)
    if "response" in event:
        check_response(event["response"])
    elif event["type"] == "error":
        neutral.WebSocketErrorEvent.model_validate_json(orjson.dumps(as_the_document_knows_it(event)), strict=True)
    elif (kind := _neutral_events().get(event["type"])) is not None:
        _check_nulls([event.get("item"), event.get("part")])
        if (rest := as_the_document_knows_it(event)) is not None:
            kind.model_validate_json(orjson.dumps(rest), strict=True)
    return parsed


def check_chunk(piece: Json) -> None:
    """One chunk of a streamed chat completion."""
    _strictly(ChatCompletionChunk, piece)


def check_response(response: Json) -> None:
    """A response as the Open Responses document has it."""
    _check_nulls(response["output"])
    assert response["text"].get("verbosity", "") is not None
    adapted = as_the_document_knows_it(response)
    neutral.ResponseResource.model_validate_json(orjson.dumps(adapted), strict=True)


def _strictly(kind: Any, body: Json) -> BaseModel:
    try:
        parsed: BaseModel = kind.model_validate_json(orjson.dumps(body), strict=True)
    except ValidationError as error:
        _strictly(kind, _with_known_values(body, error))
        lenient: BaseModel = kind.model_construct(**body)  # as the SDK does it, which checks nothing
        return lenient
    unknown = sorted(key for key in set(_unknown(parsed)) if not EXTRA_KEYS.keys() & {key, f"*.{key.split('.')[1]}"})
    assert not unknown, f"{unknown}: not in the SDK's types; send nothing of it, or list it in support/departures.py"
    return parsed


def _with_known_values(body: Json, error: ValidationError) -> Json:
    """The body with known values in place of those that only the SDK's types do not know; or the error."""
    body = copy.deepcopy(body)
    if (choice := _unknown_choice(body)) is not None:
        choice["type"] = "web_search_preview"
        return body
    for detail in error.errors(include_url=False):
        *way, key = detail["loc"]
        if detail["type"] != "literal_error" or (key, detail["input"]) not in VALUES:
            raise error
        holder: Any = body
        for step in way:
            holder = holder[step]
        holder[key] = VALUES[str(key), detail["input"]].known
    return body


def _unknown_choice(body: Json) -> Json | None:
    """The choice of a response, or of an event's, that only the SDK's types do not know."""
    choice = (body.get("response") or body).get("tool_choice")
    return choice if isinstance(choice, dict) and choice.get("type") in CHOICES else None


def _unknown(value: object) -> Iterator[str]:
    """The keys that the types do not know, at any depth, as `Type.key`."""
    match value:
        case BaseModel():
            yield from (f"{type(value).__name__}.{key}" for key in value.model_extra or {})
            for name in type(value).model_fields:
                yield from _unknown(getattr(value, name))
        case list():
            for entry in value:
                yield from _unknown(entry)


def _check_nulls(value: Any) -> None:
    """Where the document knows no null, a key is left out."""
    if isinstance(value, dict):
        kind = value.get("type")
        wrong = [key for key in NEVER_NULL.get(kind or "", ()) if key in value and value[key] is None]
        assert not wrong, f"{wrong} of {kind}: leave them out instead of null"
        for entry in value.values():
            _check_nulls(entry)
    elif isinstance(value, list):
        for entry in value:
            _check_nulls(entry)

"""Strict validation of every response and event against the SDK's types and the Open Responses document.

Missing keys, wrong types, unknown values of `type` and unknown keys are errors. The SDK itself would pass them on to
the user. `tests.support.type_deviations` lists all deviations with their reasons.
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
    Completion,
    CreateEmbeddingResponse,
    DeletedSkill,
    FileDeleted,
    FileObject,
    Model,
    ModerationCreateResponse,
    Skill,
    Upload,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreSearchResponse,
)
from openai.types.admin.organization import (
    AdminAPIKey,
    AdminAPIKeyDeleteResponse,
    AuditLogListResponse,
    Invite,
    InviteDeleteResponse,
    OrganizationUser,
    Project,
    UsageAudioSpeechesResponse,
    UsageAudioTranscriptionsResponse,
    UsageCodeInterpreterSessionsResponse,
    UsageCompletionsResponse,
    UsageCostsResponse,
    UsageEmbeddingsResponse,
    UsageFileSearchCallsResponse,
    UsageImagesResponse,
    UsageModerationsResponse,
    UsageVectorStoresResponse,
    UsageWebSearchCallsResponse,
    UserDeleteResponse,
)
from openai.types.admin.organization.projects import (
    APIKeyDeleteResponse,
    ProjectAPIKey,
    ProjectHostedToolPermissions,
    ProjectModelPermissions,
    ProjectModelPermissionsDeleted,
    ProjectRateLimit,
    ProjectServiceAccount,
    ProjectSpendAlert,
    ProjectSpendAlertDeleted,
    ProjectSpendLimit,
    ProjectSpendLimitDeleted,
    ProjectUser,
    ServiceAccountCreateResponse,
    ServiceAccountDeleteResponse,
)
from openai.types.admin.organization.projects import UserDeleteResponse as ProjectUserDeleteResponse
from openai.types.admin.organization.projects.service_accounts import APIKeyCreateResponse
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent
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
from openai.types.skills import DeletedSkillVersion, SkillVersion
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

from tests.support.anthropic_types import check_message_answer
from tests.support.type_deviations import CHOICES, EXTRA_KEYS, NEVER_NULL, TOOLS, UNCHECKED, VALUES, without_deviations

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
    """A page of search results, for which the SDK has no type."""

    object: str
    data: list[Entry]
    has_more: Literal[False]
    next_page: None
    search_query: list[str] | None = None


class _Models(_Closed):
    object: Literal["list"]
    data: list[Model]


class _MeKey(_Closed):
    id: str
    name: str
    prefix: str
    last_four: str
    created_at: int
    expires_at: int | None


class _MeTeam(_Closed):
    id: str
    name: str
    time_zone: str


class _MeLimit(_Closed):
    subject: Literal["team", "key", "end_user"]
    subject_id: str
    limit: str
    value: int
    remaining: int | None
    reset_seconds: float | None


class _MeBudget(_Closed):
    subject: Literal["team", "key", "end_user"]
    subject_id: str
    period: Literal["day", "week", "month"]
    is_hard: bool
    amount: float
    spent: float
    reserved: float
    remaining: float
    currency: Literal["usd"]
    period_start: int
    period_end: int


class _MeSpend(_Closed):
    """The spend of the team or the key, an extension."""

    subject: Literal["team", "key"]
    subject_id: str
    period: Literal["day", "week", "month"]
    spent: float
    currency: Literal["usd"]
    period_start: int
    period_end: int


class _Me(_Closed):
    """The key of the request, an extension."""

    object: Literal["me"]
    key: _MeKey
    team: _MeTeam | None
    scopes: list[str]
    allowed_models: list[str] | None
    denied_models: list[str]
    allowed_tools: list[str]
    limits: list[_MeLimit]
    budgets: list[_MeBudget]
    spend: list[_MeSpend]


class _DeletedResponse(_Closed):
    """A body that the SDK ignores and has no type for."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class _DeletedContainer(_Closed):
    """A body that the SDK ignores and has no type for."""

    id: str
    object: Literal["container.deleted"]
    deleted: Literal[True]


class _DeletedContainerFile(_Closed):
    """A body that the SDK ignores and has no type for."""

    id: str
    object: Literal["container.file.deleted"]
    deleted: Literal[True]


class _Compacted(CompactedResponse):
    """A response of `/responses/compact`. The SDK types user messages in it as model output."""

    output: list[ResponseItem]  # type: ignore[assignment]


class _InviteProject(_Closed):
    id: str
    role: Literal["member", "owner", "auditor"]


class _Invite(Invite):
    """An invite. The role of auditors is an extension."""

    projects: list[_InviteProject]  # type: ignore[assignment]


class _AuditLog(AuditLogListResponse):
    """A line of the audit log. Its type may be one that OpenAI does not have."""

    type: str  # type: ignore[assignment]
    details: dict[str, Any]


class _ErrorDetail(_Closed):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(_Closed):
    """An error object."""

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
    _Endpoint("POST", f"/responses/{_ID}/approvals/{_ID}", Response),
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
    _Endpoint("POST", "/skills", Skill),
    _Endpoint("GET", "/skills", Page[Skill]),
    _Endpoint("GET", f"/skills/{_ID}", Skill),
    _Endpoint("POST", f"/skills/{_ID}", Skill),
    _Endpoint("DELETE", f"/skills/{_ID}", DeletedSkill),
    _Endpoint("POST", f"/skills/{_ID}/versions", SkillVersion),
    _Endpoint("GET", f"/skills/{_ID}/versions", Page[SkillVersion]),
    _Endpoint("GET", f"/skills/{_ID}/versions/{_ID}", SkillVersion),
    _Endpoint("DELETE", f"/skills/{_ID}/versions/{_ID}", DeletedSkillVersion),
    _Endpoint("POST", "/containers", ContainerCreateResponse),
    _Endpoint("GET", "/containers", Page[ContainerListResponse]),
    _Endpoint("GET", f"/containers/{_ID}", ContainerRetrieveResponse),
    _Endpoint("DELETE", f"/containers/{_ID}", _DeletedContainer),
    _Endpoint("POST", f"/containers/{_ID}/files", FileCreateResponse),
    _Endpoint("GET", f"/containers/{_ID}/files", Page[FileListResponse]),
    _Endpoint("GET", f"/containers/{_ID}/files/{_ID}", FileRetrieveResponse),
    *(
        _Endpoint("GET", f"/organization/usage/{name}", kind)
        for name, kind in (
            ("completions", UsageCompletionsResponse),
            ("embeddings", UsageEmbeddingsResponse),
            ("moderations", UsageModerationsResponse),
            ("images", UsageImagesResponse),
            ("audio_speeches", UsageAudioSpeechesResponse),
            ("audio_transcriptions", UsageAudioTranscriptionsResponse),
            ("vector_stores", UsageVectorStoresResponse),
            ("code_interpreter_sessions", UsageCodeInterpreterSessionsResponse),
            ("file_search_calls", UsageFileSearchCallsResponse),
            ("web_search_calls", UsageWebSearchCallsResponse),
        )
    ),
    _Endpoint("GET", "/organization/costs", UsageCostsResponse),
    _Endpoint("GET", "/me", _Me),
    _Endpoint("POST", "/organization/projects", Project),
    _Endpoint("GET", "/organization/projects", Page[Project]),
    _Endpoint("GET", f"/organization/projects/{_ID}", Project),
    _Endpoint("POST", f"/organization/projects/{_ID}(/archive)?", Project),
    _Endpoint("GET", f"/organization/projects/{_ID}/api_keys", Page[ProjectAPIKey]),
    _Endpoint("GET", f"/organization/projects/{_ID}/api_keys/{_ID}", ProjectAPIKey),
    _Endpoint("POST", f"/organization/projects/{_ID}/api_keys/{_ID}", ProjectAPIKey),
    _Endpoint("DELETE", f"/organization/projects/{_ID}/api_keys/{_ID}", APIKeyDeleteResponse),
    _Endpoint("POST", f"/organization/projects/{_ID}/service_accounts", ServiceAccountCreateResponse),
    _Endpoint("GET", f"/organization/projects/{_ID}/service_accounts", Page[ProjectServiceAccount]),
    _Endpoint("GET", f"/organization/projects/{_ID}/service_accounts/{_ID}", ProjectServiceAccount),
    _Endpoint("POST", f"/organization/projects/{_ID}/service_accounts/{_ID}", ProjectServiceAccount),
    _Endpoint("DELETE", f"/organization/projects/{_ID}/service_accounts/{_ID}", ServiceAccountDeleteResponse),
    _Endpoint("POST", f"/organization/projects/{_ID}/service_accounts/{_ID}/api_keys", APIKeyCreateResponse),
    _Endpoint("POST", f"/organization/projects/{_ID}/users", ProjectUser),
    _Endpoint("GET", f"/organization/projects/{_ID}/users", Page[ProjectUser]),
    _Endpoint("GET", f"/organization/projects/{_ID}/users/{_ID}", ProjectUser),
    _Endpoint("POST", f"/organization/projects/{_ID}/users/{_ID}", ProjectUser),
    _Endpoint("DELETE", f"/organization/projects/{_ID}/users/{_ID}", ProjectUserDeleteResponse),
    _Endpoint("GET", f"/organization/projects/{_ID}/rate_limits", Page[ProjectRateLimit]),
    _Endpoint("POST", f"/organization/projects/{_ID}/rate_limits/{_ID}", ProjectRateLimit),
    _Endpoint("GET", f"/organization/projects/{_ID}/spend_limit", ProjectSpendLimit),
    _Endpoint("POST", f"/organization/projects/{_ID}/spend_limit", ProjectSpendLimit),
    _Endpoint("DELETE", f"/organization/projects/{_ID}/spend_limit", ProjectSpendLimitDeleted),
    _Endpoint("POST", f"/organization/projects/{_ID}/spend_alerts", ProjectSpendAlert),
    _Endpoint("GET", f"/organization/projects/{_ID}/spend_alerts", Page[ProjectSpendAlert]),
    _Endpoint("GET", f"/organization/projects/{_ID}/spend_alerts/{_ID}", ProjectSpendAlert),
    _Endpoint("POST", f"/organization/projects/{_ID}/spend_alerts/{_ID}", ProjectSpendAlert),
    _Endpoint("DELETE", f"/organization/projects/{_ID}/spend_alerts/{_ID}", ProjectSpendAlertDeleted),
    _Endpoint("GET", f"/organization/projects/{_ID}/model_permissions", ProjectModelPermissions),
    _Endpoint("POST", f"/organization/projects/{_ID}/model_permissions", ProjectModelPermissions),
    _Endpoint("DELETE", f"/organization/projects/{_ID}/model_permissions", ProjectModelPermissionsDeleted),
    _Endpoint("GET", f"/organization/projects/{_ID}/hosted_tool_permissions", ProjectHostedToolPermissions),
    _Endpoint("POST", f"/organization/projects/{_ID}/hosted_tool_permissions", ProjectHostedToolPermissions),
    _Endpoint("POST", "/organization/invites", _Invite),
    _Endpoint("GET", "/organization/invites", Page[_Invite]),
    _Endpoint("GET", f"/organization/invites/{_ID}", _Invite),
    _Endpoint("DELETE", f"/organization/invites/{_ID}", InviteDeleteResponse),
    _Endpoint("GET", "/organization/audit_logs", Page[_AuditLog]),
    _Endpoint("GET", "/organization/admin_api_keys", Page[AdminAPIKey]),
    _Endpoint("GET", f"/organization/admin_api_keys/{_ID}", AdminAPIKey),
    _Endpoint("DELETE", f"/organization/admin_api_keys/{_ID}", AdminAPIKeyDeleteResponse),
    _Endpoint("GET", "/organization/users", Page[OrganizationUser]),
    _Endpoint("GET", f"/organization/users/{_ID}", OrganizationUser),
    _Endpoint("DELETE", f"/organization/users/{_ID}", UserDeleteResponse),
    _Endpoint("DELETE", f"/containers/{_ID}/files/{_ID}", _DeletedContainerFile),
]
"""The type of each endpoint's response. A missing endpoint fails the first test that calls it."""


@cache
def _events(union: Any) -> dict[str, type[BaseModel]]:
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(union)[0])}


@cache
def _neutral_events() -> dict[str, type[BaseModel]]:
    """Return the event types of the Open Responses document by their `type`."""
    found = {}
    for name, kind in vars(neutral).items():
        if name.endswith("StreamingEvent"):
            (value,) = kind.model_fields["type"].annotation
            found[value.value] = kind
    return found


def check_answer(method: str, path: str, answer: httpx2.Response) -> None:
    """Validate a response against the type of its endpoint. `path` is below `/v1`."""
    if method == "HEAD" or 300 <= answer.status_code < 400:
        return
    is_anthropic = "anthropic-version" in answer.request.headers or "x-api-key" in answer.request.headers
    if re.fullmatch("/messages(/.*)?", path) or (is_anthropic and re.fullmatch("/models(/.*)?", path)):
        check_message_answer(path, answer)
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
    """Validate an error response."""
    assert answer.headers["content-type"] == "application/json", answer.text
    ErrorEnvelope.model_validate_json(answer.content, strict=True)


def check_body(kind: Any, raw: bytes) -> BaseModel:
    """Validate JSON against the SDK's type and the corresponding type of the Open Responses document."""
    body = orjson.loads(raw)
    parsed = _strictly(kind, body)
    for response in body["data"] if kind is Page[Response] else [body] if kind is Response else []:
        check_response(response)
    return parsed


def check_event(event: Json, *, socket: bool = False) -> BaseModel:
    """Validate an event of a stream or WebSocket, and return it as parsed by the SDK."""
    union = ResponsesServerEvent if socket else ResponseStreamEvent
    known = _events(union)
    assert event["type"] in known, f"the SDK knows no event {event['type']!r}"
    if event["type"] == "error" and (not socket or "sequence_number" in event):
        # OpenAI nests fields that are flat in the SDK's type. The SDK raises this event instead of returning it.
        return _strictly(neutral.ErrorStreamingEvent, event)
    parsed = _strictly(known[event["type"]], event)
    if "response" in event:
        check_response(event["response"])
    elif event["type"] == "error":
        neutral.WebSocketErrorEvent.model_validate_json(orjson.dumps(without_deviations(event)), strict=True)
    elif (kind := _neutral_events().get(event["type"])) is not None:
        _check_nulls([event.get("item"), event.get("part")])
        if (rest := without_deviations(event)) is not None:
            kind.model_validate_json(orjson.dumps(rest), strict=True)
    return parsed


def check_chunk(piece: Json) -> None:
    """Validate the data of an event without a name: a chunk of a completion, or an event of audio."""
    if piece.get("object") == "text_completion":
        # The SDK has no type of chunks, whose reasons are null before the last one.
        last = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in piece["choices"]]
        _strictly(Completion, {**piece, "choices": last})
        return
    kinds = {"transcript.text.delta": TranscriptionTextDeltaEvent, "transcript.text.done": TranscriptionTextDoneEvent}
    # The SDK has no types of the events of speech.
    if not str(piece.get("type")).startswith("speech.audio."):
        _strictly(kinds.get(str(piece.get("type")), ChatCompletionChunk), piece)


def check_response(response: Json) -> None:
    """Validate a response against the Open Responses document."""
    _check_nulls(response["output"])
    assert response["text"].get("verbosity", "") is not None
    adapted = without_deviations(response)
    neutral.ResponseResource.model_validate_json(orjson.dumps(adapted), strict=True)


def _strictly(kind: Any, body: Json) -> BaseModel:
    try:
        parsed: BaseModel = kind.model_validate_json(orjson.dumps(body), strict=True)
    except ValidationError as error:
        _strictly(kind, _with_known_values(body, error))
        lenient: BaseModel = kind.model_construct(**body)  # like the SDK, which does not validate
        return lenient
    unknown = sorted(key for key in set(_unknown(parsed)) if not EXTRA_KEYS.keys() & {key, f"*.{key.split('.')[1]}"})
    assert not unknown, f"{unknown}: not in the SDK's types; omit it, or list it in support/type_deviations.py"
    return parsed


def _with_known_values(body: Json, error: ValidationError) -> Json:
    """Return the body with values unknown to the SDK's types replaced, or raise the error."""
    body = copy.deepcopy(body)
    if (choice := _unknown_choice(body)) is not None:
        choice["type"] = "web_search_preview"
        return body
    if extensions := [tool for tool in (body.get("response") or body).get("tools", []) if tool["type"] in TOOLS]:
        for tool in extensions:
            tool.clear()
            tool["type"] = "local_shell"
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
    """Replace a tool choice that is unknown to the SDK's types."""
    choice = (body.get("response") or body).get("tool_choice")
    return choice if isinstance(choice, dict) and choice.get("type") in CHOICES else None


def _unknown(value: object) -> Iterator[str]:
    """Return the unknown keys at any depth as `Type.key`."""
    match value:
        case BaseModel():
            yield from (f"{type(value).__name__}.{key}" for key in value.model_extra or {})
            for name in type(value).model_fields:
                yield from _unknown(getattr(value, name))
        case list():
            for entry in value:
                yield from _unknown(entry)


def _check_nulls(value: Any) -> None:
    # Where the document does not allow null, the key must be absent.
    if isinstance(value, dict):
        kind = value.get("type")
        wrong = [key for key in NEVER_NULL.get(kind or "", ()) if key in value and value[key] is None]
        assert not wrong, f"{wrong} of {kind}: leave them out instead of null"
        for entry in value.values():
            _check_nulls(entry)
    elif isinstance(value, list):
        for entry in value:
            _check_nulls(entry)

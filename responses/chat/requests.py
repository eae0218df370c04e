"""The body of `POST /v1/chat/completions`: checked before any upstream is asked, and sent on as it came.

`null` means "not sent" for everything but `model` and `messages`. Source: section 1.3 of the API surface specification.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from conversations.items import MAX_ITEMS, Wire, by_type
from kernel.errors import (
    BadRequest,
    InvalidValue,
    MissingParameter,
    ModelNotFound,
    UnknownParameter,
    UnsupportedParameter,
)
from kernel.nulls import validate_without_nulls
from kernel.validation import TAG, Metadata, first_defect, path
from responses.chat.messages import Message, check_conversation, check_roles
from responses.chat.tools import (
    MAX_TOOLS,
    LegacyChoice,
    LegacyFunction,
    Name,
    Tool,
    ToolChoice,
    check_functions,
    check_tools,
)
from responses.engine.constraints.json_schema import schema_defect
from responses.schema.options import Effort

_MAX_MODEL = 200
_MAX_NAME = 64
_REFUSED = {"moderation": "no completion is judged here; POST /v1/responses knows it"}
"""What the wire knows and nobody here would act on, with the reason."""


class TextFormat(Wire):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Some JSON object."""

    type: Literal["json_object"]


class NamedSchema(Wire):
    """A schema under a name."""

    name: Name
    # The wire name is `schema`, which is a method of pydantic's.
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Wire):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


_Format = Annotated[
    Annotated[TextFormat, Tag(f"{TAG}text")]
    | Annotated[JsonObjectFormat, Tag(f"{TAG}json_object")]
    | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
    Discriminator(by_type),
]


class StreamOptions(Wire):
    """Options of the stream itself."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(Wire):
    """What the upstream may keep of a prompt."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


def _stop_tag(value: Any) -> str:
    return f"{TAG}one" if isinstance(value, str) else f"{TAG}some"


class CreateChatCompletion(Wire):
    """A request for a chat completion."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[LegacyFunction], Field(min_length=1, max_length=128)] | None = None
    function_call: LegacyChoice | None = None
    response_format: _Format | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: (
        Annotated[
            Annotated[str, Tag(f"{TAG}one")] | Annotated[list[str], Field(max_length=4), Tag(f"{TAG}some")],
            Discriminator(_stop_tag),
        ]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class UpdateChatCompletion(Wire):
    """A request to replace the metadata of a stored completion; `null` takes them away."""

    metadata: Metadata | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked body, and the values that the client sent."""

    body: CreateChatCompletion
    values: dict[str, Any]

    @property
    def wants_usage(self) -> bool:
        """Whether the client wants the usage as the last chunk."""
        return bool(self.body.stream_options and self.body.stream_options.include_usage)

    @property
    def obfuscates(self) -> bool:
        """Whether the chunks are to be padded, so that their length tells nothing on the wire."""
        return bool(self.body.stream_options and self.body.stream_options.include_obfuscation)


def parse_chat(values: dict[str, Any]) -> ChatRequest:
    """Check a body; the first defect is raised as OpenAI words it."""
    _refuse_by_name(values)
    sent = {name: value for name, value in values.items() if value is not None or name in {"model", "messages"}}
    model = sent.get("model")
    if isinstance(model, str) and len(model) > _MAX_MODEL:
        raise ModelNotFound(model[:_MAX_MODEL])
    check_roles(sent.get("messages"))
    try:
        body = validate_without_nulls(CreateChatCompletion, sent)
    except ValidationError as error:
        raise _defect(error) from error
    check_conversation(body.messages)
    check_tools(body.tools or (), body.tool_choice)
    check_functions(body.functions, body.function_call)
    _check_together(body)
    return ChatRequest(body=body, values=sent)


def parse_update(values: dict[str, Any]) -> dict[str, str]:
    """The metadata of the body of `POST /v1/chat/completions/{id}`."""
    try:
        body = UpdateChatCompletion.model_validate(values)
    except ValidationError as error:
        raise first_defect(error) from error
    return body.metadata or {}


def _refuse_by_name(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in _REFUSED and value is not None:
            message = f"The parameter '{name}' is not supported by this server: {_REFUSED[name]}."
            raise UnsupportedParameter(message, param=name)
        if name not in CreateChatCompletion.model_fields and name not in _REFUSED:
            near = get_close_matches(name[:_MAX_NAME], CreateChatCompletion.model_fields, n=1)
            raise UnknownParameter(name[:_MAX_NAME], suggestion=near[0] if near else None)


def _defect(error: ValidationError) -> BadRequest:
    """The first defect. Where a union is told apart by `type`, it is `type` that is wrong or missing."""
    details = error.errors(include_url=False)
    detail = next((one for one in details if one["type"] != "extra_forbidden"), details[0])
    param = path(detail["loc"])
    if detail["type"] == "string_pattern_mismatch":
        pattern = detail.get("ctx", {}).get("pattern")
        message = f"Invalid '{param}': string does not match pattern. Expected a string that matches '{pattern}'."
        return InvalidValue(message, param=param)
    if detail["type"] == "union_tag_not_found" and isinstance(detail["input"], dict):
        return MissingParameter(f"{param}.type")
    defect = first_defect(error)
    if detail["type"] == "union_tag_invalid" and isinstance(detail["input"], dict):
        defect.param = f"{param}.type"
    return defect


def _check_together(body: CreateChatCompletion) -> None:
    """What each parameter allows and the others forbid."""
    if body.stream_options is not None and not body.stream:
        raise _only_with("stream_options", "stream")
    if body.top_logprobs is not None and not body.logprobs:
        raise _only_with("top_logprobs", "logprobs")
    if body.metadata and not body.store:
        raise _only_with("metadata", "store")
    if body.parallel_tool_calls is not None and not body.tools:
        message = "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are "
        raise InvalidValue(f"{message}specified.", param="parallel_tool_calls")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise InvalidValue(message, param="max_tokens")
    if isinstance(body.response_format, JsonSchemaFormat):
        _check_schema(body.response_format.json_schema)


def _only_with(name: str, other: str) -> BadRequest:
    return InvalidValue(f"The '{name}' parameter is only allowed when '{other}' is enabled.", param=name)


def _check_schema(given: NamedSchema) -> None:
    """A schema that is none could never be kept to."""
    if (wrong := schema_defect(given.definition)) is not None:
        message = f"Invalid schema for response_format '{given.name}': {wrong}."
        raise BadRequest(message, param="response_format.json_schema.schema", code="invalid_json_schema")

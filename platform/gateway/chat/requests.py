"""Body of `POST /v1/chat/completions`: validated here, then forwarded to the upstream as the client sent it.

A null means "not sent", except for `model` and `messages`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from conversations.items import MAX_ITEMS
from core.errors import (
    BadRequest,
    InvalidJsonSchema,
    InvalidValue,
    ModelNotFound,
    UnknownParameter,
    UnsupportedParameter,
)
from core.http.nulls import validate_without_nulls
from core.http.validation import Metadata, first_defect, path
from core.http.wire import BY_TYPE, STRING_OR, TAG, LongInteger, Wire, by_type
from engine.compaction.token_estimate import tokens
from engine.constraints.json_schema import schema_defect
from gateway.chat.messages import ChatMessage, check_conversation, check_roles
from responses.schema.options import Effort

MAX_TOOLS = 1_000
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class ChatFunctionDefinition(Wire):
    """Name, description and parameters of a function."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(Wire):
    """Function tool."""

    type: Literal["function"]
    function: ChatFunctionDefinition


class ChatCustomTextFormat(Wire):
    """Unconstrained text."""

    type: Literal["text"]


class ChatGrammar(Wire):
    """Grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class ChatGrammarFormat(Wire):
    """Text constrained by a grammar."""

    type: Literal["grammar"]
    grammar: ChatGrammar


class ChatCustomDefinition(Wire):
    """Name, description and input format of a custom tool."""

    name: Name
    description: str | None = None
    format: Annotated[ChatCustomTextFormat | ChatGrammarFormat, BY_TYPE] | None = None


class ChatCustomTool(Wire):
    """Custom tool, whose input is text."""

    type: Literal["custom"]
    custom: ChatCustomDefinition


ChatTool = Annotated[ChatFunctionTool | ChatCustomTool, BY_TYPE]


class NamedTool(Wire):
    """Reference to a tool by name."""

    name: str


class ChatFunctionChoice(Wire):
    """Choice that forces a call of one function."""

    type: Literal["function"]
    function: NamedTool


class ChatCustomChoice(Wire):
    """Choice that forces a call of one custom tool."""

    type: Literal["custom"]
    custom: NamedTool


_OneTool = Annotated[ChatFunctionChoice | ChatCustomChoice, BY_TYPE]


class ChatAllowedTools(Wire):
    """Allowed tools, and if one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[_OneTool], Field(min_length=1, max_length=MAX_TOOLS)]


class ChatAllowedChoice(Wire):
    """Choice that restricts the model to some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowedTools


ChatToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")]
    | Annotated[ChatFunctionChoice, Tag(f"{TAG}function")]
    | Annotated[ChatCustomChoice, Tag(f"{TAG}custom")]
    | Annotated[ChatAllowedChoice, Tag(f"{TAG}allowed_tools")],
    Discriminator(lambda choice: f"{TAG}mode" if isinstance(choice, str) else by_type(choice)),
]


LegacyChoice = Annotated[Literal["none", "auto"] | NamedTool, STRING_OR]


class LegacyFunction(Wire):
    """Function in the deprecated format without tools."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


def check_tools(tools: Sequence[ChatFunctionTool | ChatCustomTool], choice: ChatToolChoice | None) -> None:
    """Raise `InvalidValue` for duplicate names, or for a choice of tools that are not defined."""
    defined: dict[tuple[str, str], None] = {}
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.function.name if isinstance(tool, ChatFunctionTool) else tool.custom.name

        # Calls refer to a tool by its name, so a name has to be unique across types.
        if name in names:
            raise InvalidValue(
                f"Invalid 'tools': duplicate tool name '{name}'.", param=f"tools[{index}].{tool.type}.name"
            )
        names.add(name)
        defined[tool.type, name] = None
    if choice in {"none", "auto"} if isinstance(choice, str) else choice is None:
        return
    if not tools:
        raise InvalidValue(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
            param="tool_choice",
        )
    # A mode such as `required` is a string and names no tool; the loop ignores it.
    named = choice.allowed_tools.tools if isinstance(choice, ChatAllowedChoice) else [choice]
    for reference in named:
        if isinstance(reference, ChatFunctionChoice | ChatCustomChoice) and _label(reference) not in defined:
            raise InvalidValue(
                f"Tool choice '{_label(reference)[1][:64]}' not found in 'tools' parameter.", param="tool_choice"
            )


def _label(choice: ChatFunctionChoice | ChatCustomChoice) -> tuple[str, str]:
    named = choice.function if isinstance(choice, ChatFunctionChoice) else choice.custom
    return choice.type, named.name


def check_functions(functions: Sequence[LegacyFunction] | None, choice: LegacyChoice | None) -> None:
    """Check functions and choice in the deprecated format without tools; raises `InvalidValue`."""
    names = [function.name for function in functions or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidValue(
                f"Invalid 'functions': duplicate function name '{name}'.", param=f"functions[{index}].name"
            )
    if choice is None or choice == "none":
        return
    if functions is None:
        raise InvalidValue(
            "Invalid value for 'function_call': 'function_call' is only allowed when 'functions' are specified.",
            param="function_call",
        )
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise InvalidValue(
            f"Invalid value for 'function_call': no function named '{choice.name[:64]}' is specified.",
            param="function_call",
        )


# No model has a longer name; error messages that repeat the name stay short.
_MAX_MODEL = 200
_MAX_NAME = 64
_UNSUPPORTED = {"moderation": "use POST /v1/responses instead"}
"""OpenAI's parameters that would have no effect here, each with a hint."""


class ChatTextFormat(Wire):
    """Plain text format."""

    type: Literal["text"]


class ChatJsonObjectFormat(Wire):
    """Any JSON object."""

    type: Literal["json_object"]


class ChatNamedSchema(Wire):
    """JSON schema with a name."""

    name: Name
    # The API's name is `schema`, which is a method of pydantic's models.
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ChatJsonSchemaFormat(Wire):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: ChatNamedSchema


_Format = Annotated[ChatTextFormat | ChatJsonObjectFormat | ChatJsonSchemaFormat, BY_TYPE]


class ChatStreamOptions(Wire):
    """Options of a streamed completion."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatPromptCacheOptions(Wire):
    """Options for caching the prompt at the upstream."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


class CreateChatCompletion(Wire):
    """Body of a request for a chat completion."""

    model: Annotated[str, Field(min_length=1)]
    # `fail_fast`: only the first defect is reported, so thousands of invalid messages need not all be validated.
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    store: bool | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # The deprecated format, still used by old clients; it is forwarded like the current one.
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
    stop: Annotated[str | Annotated[list[str], Field(max_length=4)], STRING_OR] | None = None
    seed: LongInteger | None = None
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
    prompt_cache_options: ChatPromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    # Extensions of vLLM and others, which `capabilities` allows for some models only.
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class UpdateChatCompletion(Wire):
    """Body of a request to replace the metadata of a stored completion; null removes it."""

    metadata: Metadata | None


# Keys of messages and tools whose values are no text that a model reads.
_BINARY = ("image_url", "input_audio", "file", "type", "role", "id", "tool_call_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Validated body, and the values as the client sent them."""

    body: CreateChatCompletion
    values: dict[str, Any]

    def estimate_tokens(self) -> int:
        """Return the input tokens, estimated from the texts of the messages and tools."""
        return tokens(*_texts(self.values["messages"]), *_texts(self.values.get("tools")))

    @property
    def stream(self) -> bool:
        """True if the client requested a stream."""
        return bool(self.body.stream)

    @property
    def wants_usage(self) -> bool:
        """True if the client requested the usage in the last chunk."""
        return bool(self.body.stream_options and self.body.stream_options.include_usage)

    @property
    def obfuscates(self) -> bool:
        """True if chunks are padded, so that their length does not reveal their content to an observer."""
        return bool(self.body.stream_options and self.body.stream_options.include_obfuscation)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of messages or tools, without images and audio."""
    match value:
        case str():
            yield value
        case list():
            for entry in value:
                yield from _texts(entry)
        case dict():
            for name, entry in value.items():
                if name not in _BINARY:
                    yield from _texts(entry)


def parse_chat(values: dict[str, Any]) -> ChatRequest:
    """Validate a body; raises the `BadRequest` of its first defect."""
    for name, value in values.items():
        if name in _UNSUPPORTED and value is not None:
            raise UnsupportedParameter(
                f"The parameter '{name}' is not supported by this server: {_UNSUPPORTED[name]}.", param=name
            )
        if name not in CreateChatCompletion.model_fields and name not in _UNSUPPORTED:
            # Truncated, as a client controls the length of the name and matching is slow.
            near = get_close_matches(name[:_MAX_NAME], CreateChatCompletion.model_fields, n=1)
            raise UnknownParameter(name[:_MAX_NAME], suggestion=near[0] if near else None)
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
    _check_combinations(body)
    return ChatRequest(body=body, values=sent)


def parse_update(values: dict[str, Any]) -> dict[str, str]:
    """Validate the body of `POST /v1/chat/completions/{id}` and return its metadata."""
    try:
        body = UpdateChatCompletion.model_validate(values)
    except ValidationError as error:
        raise first_defect(error) from error
    return body.metadata or {}


def _defect(error: ValidationError) -> BadRequest:
    """Return the first defect of a body, in the words of OpenAI's chat completions if they differ from responses."""
    details = error.errors(include_url=False)
    detail = next((entry for entry in details if entry["type"] != "extra_forbidden"), details[0])
    param = path(detail["loc"])
    if detail["type"] == "string_pattern_mismatch":
        pattern = detail.get("ctx", {}).get("pattern")
        message = f"Invalid '{param}': string does not match pattern. Expected a string that matches '{pattern}'."
        return InvalidValue(message, param=param)
    return first_defect(error)


def _check_combinations(body: CreateChatCompletion) -> None:
    """Raise `InvalidValue` for parameters that exclude or require each other."""
    given = {
        ("stream_options", "stream"): body.stream_options is not None and not body.stream,
        ("top_logprobs", "logprobs"): body.top_logprobs is not None and not body.logprobs,
        ("metadata", "store"): body.metadata and not body.store,
    }
    for (name, required), is_wrong in given.items():
        if is_wrong:
            raise InvalidValue(f"The '{name}' parameter is only allowed when '{required}' is enabled.", param=name)
    if body.parallel_tool_calls is not None and not body.tools:
        message = "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are "
        raise InvalidValue(f"{message}specified.", param="parallel_tool_calls")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidValue(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.", param="max_tokens"
        )
    if isinstance(body.response_format, ChatJsonSchemaFormat):
        named = body.response_format.json_schema
        # No completion could ever conform to an invalid schema.
        if (problem := schema_defect(named.definition)) is not None:
            raise InvalidJsonSchema(
                f"Invalid schema for response_format '{named.name}': {problem}.",
                param="response_format.json_schema.schema",
            )

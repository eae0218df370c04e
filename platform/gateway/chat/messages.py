"""Messages of a chat completion: the content allowed for each role, and the order of messages.

Messages of the assistant and their tool calls accept unknown fields, as upstreams add some (reasoning, signatures) that
have to be sent back to them. All other objects reject unknown fields.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from conversations.items import ImageDetail, ImageUrl
from core.errors import BadRequest, InvalidType, InvalidValue, MissingParameter
from core.http.validation import FileId, json_type
from core.http.wire import BY_TYPE, STRING_OR, TAG, Wire

ROLES = ("developer", "system", "user", "assistant", "tool", "function")


class ChatCacheBreakpoint(Wire):
    """Marker up to which the upstream should cache the prompt."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class _CacheablePart(Wire):
    prompt_cache_breakpoint: ChatCacheBreakpoint | None = None


class ChatTextPart(_CacheablePart):
    """Text part."""

    type: Literal["text"]
    text: str


class ChatImageUrl(Wire):
    """URL of an image, also a data URL."""

    url: ImageUrl
    detail: ImageDetail | None = None


class ChatImagePart(_CacheablePart):
    """Image part."""

    type: Literal["image_url"]
    image_url: ChatImageUrl


class ChatInputAudio(Wire):
    """Audio data in base64."""

    data: str
    format: Literal["wav", "mp3"]


class ChatAudioPart(_CacheablePart):
    """Audio part."""

    type: Literal["input_audio"]
    input_audio: ChatInputAudio


class ChatFileSource(Wire):
    """Content of a file as a data URL, or the id of an uploaded file."""

    file_data: str | None = None
    file_id: FileId | None = None
    filename: str | None = None


class ChatFilePart(_CacheablePart):
    """File part."""

    type: Literal["file"]
    file: ChatFileSource


class ChatRefusalPart(Wire):
    """Refusal of the model."""

    type: Literal["refusal"]
    refusal: str


_UserPart = Annotated[ChatTextPart | ChatImagePart | ChatAudioPart | ChatFilePart, BY_TYPE]
# Not a discriminated union: a union with a single member would be reported with other errors.
_Texts = list[ChatTextPart]
_AssistantPart = Annotated[ChatTextPart | ChatRefusalPart, BY_TYPE]
_TextContent = Annotated[str | Annotated[_Texts, Field(min_length=1)], STRING_OR]
_UserContent = Annotated[str | Annotated[list[_UserPart], Field(min_length=1)], STRING_OR]
_AssistantContent = Annotated[str | Annotated[list[_AssistantPart], Field(min_length=1)], STRING_OR]


class ChatInstructionMessage(Wire):
    """Message of the developer; `system` is the older name of the role."""

    role: Literal["developer", "system"]
    content: _TextContent
    name: str | None = None


class ChatUserMessage(Wire):
    """Message of the user."""

    role: Literal["user"]
    content: _UserContent
    name: str | None = None


class _FromUpstream(Wire):
    model_config = ConfigDict(extra="allow")


class ChatCalledFunction(_FromUpstream):
    """Name and arguments of a called function."""

    name: str
    arguments: str


class ChatFunctionCall(_FromUpstream):
    """Call of a function tool."""

    id: str
    type: Literal["function"]
    function: ChatCalledFunction


class ChatCalledTool(_FromUpstream):
    """Name and input of a called custom tool."""

    name: str
    input: str


class ChatCustomCall(_FromUpstream):
    """Call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: ChatCalledTool


_ToolCall = Annotated[ChatFunctionCall | ChatCustomCall, BY_TYPE]


class ChatAssistantMessage(_FromUpstream):
    """Message of the model."""

    role: Literal["assistant"]
    content: _AssistantContent | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: ChatCalledFunction | None = None
    audio: dict[str, Any] | None = None


class ChatToolMessage(Wire):
    """Output of a tool call. Older clients also send the `name` of the tool."""

    role: Literal["tool"]
    content: _TextContent
    tool_call_id: str
    name: str | None = None


class ChatFunctionMessage(Wire):
    """Output of a function, in the deprecated format without tools."""

    role: Literal["function"]
    content: str | None
    name: str


# Called after `check_roles`, so the role is valid.
def _role_tag(value: Any) -> str:
    role = value.get("role")
    return f"{TAG}{'instruction' if role in {'developer', 'system'} else role}"


ChatMessage = Annotated[
    Annotated[ChatInstructionMessage, Tag(f"{TAG}instruction")]
    | Annotated[ChatUserMessage, Tag(f"{TAG}user")]
    | Annotated[ChatAssistantMessage, Tag(f"{TAG}assistant")]
    | Annotated[ChatToolMessage, Tag(f"{TAG}tool")]
    | Annotated[ChatFunctionMessage, Tag(f"{TAG}function")],
    Discriminator(_role_tag),
]


def check_roles(messages: object) -> None:
    """Raise a `BadRequest` for messages that are not objects or have no valid role."""
    # Checked before the schema, whose error for an unknown role would not name the valid roles.
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        param = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidType(param, expected="an object", got=json_type(message))
        if "role" not in message:
            raise MissingParameter(f"{param}.role")
        if message["role"] not in ROLES:
            raise InvalidValue.unsupported(message["role"], ROLES, param=f"{param}.role")


def check_conversation(messages: Sequence[ChatMessage]) -> None:
    """Raise a `BadRequest` unless every assistant message has content and every tool call is followed by its output."""
    call_ids: set[str] = set()
    pending: dict[str, None] = {}
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if isinstance(message, ChatToolMessage):
            if not call_ids:
                # The misspelling is OpenAI's.
                text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                raise BadRequest(f"Invalid parameter: {text}", param=f"{param}.role")
            if message.tool_call_id not in call_ids:
                text = f"'tool_call_id' of '{message.tool_call_id[:64]}' not found in 'tool_calls' of previous message."
                raise BadRequest(f"Invalid parameter: {text}", param=f"{param}.tool_call_id")
            pending.pop(message.tool_call_id, None)
            continue
        _check_none_pending(pending, f"{param}.role")
        # Outputs may only follow the message with their calls, so the ids of earlier messages no longer count.
        call_ids = set()
        if isinstance(message, ChatAssistantMessage):
            contents = (message.content, message.tool_calls, message.function_call, message.refusal, message.audio)
            if all(content is None for content in contents):
                if "content" not in message.model_fields_set:
                    raise MissingParameter(f"{param}.content")
                raise InvalidType(f"{param}.content", expected="a string or an array", got="null")
            call_ids = {call.id for call in message.tool_calls or ()}
            pending = dict.fromkeys(call.id for call in message.tool_calls or ())
    _check_none_pending(pending, "messages")


def _check_none_pending(pending: dict[str, None], param: str) -> None:
    if pending:
        raise BadRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(pending)[:500]}",
            param=param,
        )

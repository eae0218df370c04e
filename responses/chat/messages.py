"""The messages of a chat completion: what each role may say, and in which order.

What comes from an upstream goes back to it: messages of the assistant and their calls may hold what it has hung onto
them (reasoning, signatures). The others are closed. Source: section 1.3 of the API surface specification.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from conversations.items import MAX_IMAGE_URL, Wire, by_type
from kernel.errors import BadRequest, InvalidType, InvalidValue, MissingParameter
from kernel.validation import TAG, json_type

ROLES = ("developer", "system", "user", "assistant", "tool", "function")


class CacheBreakpoint(Wire):
    """The prompt up to here is worth keeping."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class _Part(Wire):
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class TextPart(_Part):
    """A text."""

    type: Literal["text"]
    text: str


class ImageUrl(Wire):
    """Where an image is; also a data URL."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_IMAGE_URL)]
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(_Part):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(Wire):
    """Sound, as base64."""

    data: str
    format: Literal["wav", "mp3"]


class AudioPart(_Part):
    """Something to hear."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class FileSource(Wire):
    """A file as data, or one that was uploaded."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(_Part):
    """A file."""

    type: Literal["file"]
    file: FileSource


class RefusalPart(Wire):
    """What the model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


def _content_tag(value: Any) -> str:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}parts"


_TextTag = Annotated[TextPart, Tag(f"{TAG}text")]
_UserPart = Annotated[
    _TextTag
    | Annotated[ImagePart, Tag(f"{TAG}image_url")]
    | Annotated[AudioPart, Tag(f"{TAG}input_audio")]
    | Annotated[FilePart, Tag(f"{TAG}file")],
    Discriminator(by_type),
]
# A union of one would be none, and its errors others.
_Texts = list[TextPart]
_AssistantPart = Annotated[_TextTag | Annotated[RefusalPart, Tag(f"{TAG}refusal")], Discriminator(by_type)]
_TextContent = Annotated[
    Annotated[str, Tag(f"{TAG}text")] | Annotated[_Texts, Field(min_length=1), Tag(f"{TAG}parts")],
    Discriminator(_content_tag),
]
_UserContent = Annotated[
    Annotated[str, Tag(f"{TAG}text")] | Annotated[list[_UserPart], Field(min_length=1), Tag(f"{TAG}parts")],
    Discriminator(_content_tag),
]
_AssistantContent = Annotated[
    Annotated[str, Tag(f"{TAG}text")] | Annotated[list[_AssistantPart], Field(min_length=1), Tag(f"{TAG}parts")],
    Discriminator(_content_tag),
]


class InstructionMessage(Wire):
    """What the developer, or an older one's system, says."""

    role: Literal["developer", "system"]
    content: _TextContent
    name: str | None = None


class UserMessage(Wire):
    """What the user says."""

    role: Literal["user"]
    content: _UserContent
    name: str | None = None


class _FromUpstream(Wire):
    model_config = ConfigDict(extra="allow")


class CalledFunction(_FromUpstream):
    """The function of a call, with what it was given."""

    name: str
    arguments: str


class FunctionCall(_FromUpstream):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledTool(_FromUpstream):
    """The custom tool of a call, with what it was given."""

    name: str
    input: str


class CustomCall(_FromUpstream):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: CalledTool


_Call = Annotated[
    Annotated[FunctionCall, Tag(f"{TAG}function")] | Annotated[CustomCall, Tag(f"{TAG}custom")],
    Discriminator(by_type),
]


class AssistantMessage(_FromUpstream):
    """What the model has said."""

    role: Literal["assistant"]
    content: _AssistantContent | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: CalledFunction | None = None
    audio: dict[str, Any] | None = None


class ToolMessage(Wire):
    """What a tool has answered. Older clients name the tool."""

    role: Literal["tool"]
    content: _TextContent
    tool_call_id: str
    name: str | None = None


class FunctionMessage(Wire):
    """What a function has answered, in the shape that came before tools."""

    role: Literal["function"]
    content: str | None
    name: str


def _role_tag(value: Any) -> str:
    role = value.get("role")
    return f"{TAG}{'instruction' if role in {'developer', 'system'} else role}"


Message = Annotated[
    Annotated[InstructionMessage, Tag(f"{TAG}instruction")]
    | Annotated[UserMessage, Tag(f"{TAG}user")]
    | Annotated[AssistantMessage, Tag(f"{TAG}assistant")]
    | Annotated[ToolMessage, Tag(f"{TAG}tool")]
    | Annotated[FunctionMessage, Tag(f"{TAG}function")],
    Discriminator(_role_tag),
]


def check_roles(messages: object) -> None:
    """Each message is an object with a role that there is; what else is wrong with the list is found later."""
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        param = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidType(param, expected="an object", got=json_type(message))
        if "role" not in message:
            raise MissingParameter(f"{param}.role")
        if message["role"] not in ROLES:
            raise InvalidValue.unsupported(message["role"], ROLES, param=f"{param}.role")


def check_conversation(messages: Sequence[Message]) -> None:
    """The assistant says something in each of its messages, and each of its calls is answered right after it."""
    asked: set[str] = set()
    waiting: dict[str, None] = {}
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if isinstance(message, ToolMessage):
            _check_answer(message, asked, param)
            waiting.pop(message.tool_call_id, None)
            continue
        _refuse_waiting(waiting, f"{param}.role")
        asked = set()
        if isinstance(message, AssistantMessage):
            _check_said(message, param)
            asked = {call.id for call in message.tool_calls or ()}
            waiting = dict.fromkeys(call.id for call in message.tool_calls or ())
    _refuse_waiting(waiting, "messages")


def _check_said(message: AssistantMessage, param: str) -> None:
    says = (message.content, message.tool_calls, message.function_call, message.refusal, message.audio)
    if all(said is None for said in says):
        if "content" not in message.model_fields_set:
            raise MissingParameter(f"{param}.content")
        raise InvalidType(f"{param}.content", expected="a string or an array", got="null")


def _check_answer(message: ToolMessage, asked: set[str], param: str) -> None:
    if not asked:
        # OpenAI's spelling.
        text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
        raise BadRequest(f"Invalid parameter: {text}", param=f"{param}.role")
    if message.tool_call_id not in asked:
        text = f"'tool_call_id' of '{message.tool_call_id[:64]}' not found in 'tool_calls' of previous message."
        raise BadRequest(f"Invalid parameter: {text}", param=f"{param}.tool_call_id")


def _refuse_waiting(waiting: dict[str, None], param: str) -> None:
    if waiting:
        raise BadRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)[:500]}",
            param=param,
        )

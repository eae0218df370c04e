"""Request bodies, validated and parsed into typed values.

Types are strict (no "5" for 5) and unknown parameters are rejected, as real upstreams do. Sampling parameters are
validated but have no effect, because rules are deterministic.
"""

from itertools import takewhile
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from demo_upstream.errors import Code, DemoApiError, first_defect

Body = TypeVar("Body", bound=BaseModel)
Role = Literal["system", "developer", "user", "assistant", "tool"]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_parts(value: object) -> object:
    if value is None:
        return []
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_choice(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


class Strict(BaseModel):
    """Base class with strict types. Unknown fields are ignored, because clients send back whole messages."""

    model_config = ConfigDict(strict=True, frozen=True)


class DemoPart(Strict):
    """A content part of a message. The content of images, audio and files is ignored."""

    type: Literal["text", "image_url", "input_audio", "file", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _text_parts_have_text(self) -> Self:
        if self.type == "text" and self.text is None:
            raise ValueError("a text part needs a text")
        return self


class DemoCalledFunction(Strict):
    """Name and arguments (JSON text) of a call."""

    name: str
    arguments: str


class DemoToolCall(Strict):
    """A call in an earlier assistant message."""

    id: str
    function: DemoCalledFunction


class DemoMessage(Strict):
    """One message of the history."""

    role: Role
    content: Annotated[list[DemoPart], BeforeValidator(_as_parts)] = []
    tool_calls: list[DemoToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.role != "assistant" and not self.content:
            raise ValueError(f"a {self.role} message needs content")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a tool message needs a tool_call_id")
        return self

    @property
    def text(self) -> str:
        """Text of all parts, one part per line."""
        return "\n".join(part.text for part in self.content if part.text is not None)

    @property
    def calls(self) -> list[DemoToolCall]:
        """Tool calls of the message."""
        return self.tool_calls or []


class Function(Strict):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class DemoTool(Strict):
    """An offered tool. Only functions are supported."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    """Function name of a tool choice."""

    name: str


class ToolChoice(Strict):
    """Tool choice; plain strings are parsed as its type."""

    type: Literal["none", "auto", "required", "function"]
    function: FunctionName | None = None


class JsonSchema(Strict):
    """JSON schema of a structured answer."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    definition: dict[str, JsonValue] = Field(alias="schema")


class ResponseFormat(Strict):
    """Format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class DemoStreamOptions(Strict):
    """Additional content of a stream. Obfuscation has no effect."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class DemoChatRequest(Strict):
    """Body of `POST /v1/chat/completions`."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[DemoMessage], Field(min_length=1)]
    n: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[Annotated[list[str], Field(max_length=4)] | None, BeforeValidator(_listed)] = None
    stream: bool | None = None
    stream_options: DemoStreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: list[DemoTool] | None = None
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(_as_choice)] = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    # Validated but without effect.
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, JsonValue] | None = None
    prompt_cache_retention: str | None = None

    @property
    def token_limit(self) -> int | None:
        """Maximum number of tokens of the answer, reasoning included."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked(self) -> str:
        """Text of the last user message, or an empty string."""
        return next(reversed(self.user_texts), "")

    @property
    def user_texts(self) -> list[str]:
        """Texts of all user messages, oldest first."""
        return [message.text for message in self.messages if message.role == "user"]

    @property
    def instructions(self) -> str:
        """Texts of the system and developer messages, one per line."""
        return "\n".join(message.text for message in self.messages if message.role in ("system", "developer"))

    @property
    def results(self) -> list[tuple[str, str]]:
        """Name of the tool and text of each tool message at the end of the history, which the model has to answer."""
        names = {call.id: call.function.name for message in self.messages for call in message.calls}
        latest = list(takewhile(lambda message: message.role == "tool", reversed(self.messages)))
        return [(names[message.tool_call_id or ""], message.text) for message in reversed(latest)]

    def attachments(self, kind: str) -> int:
        """Return the number of parts of a type in the last user message."""
        asking = [message for message in self.messages if message.role == "user"][-1:]
        return sum(part.type == kind for message in asking for part in message.content)

    @property
    def functions(self) -> list[Function]:
        """Functions that may be called in this turn."""
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return []
        return [tool.function for tool in self.tools or []]


class EmbeddingsRequest(Strict):
    """Body of `POST /v1/embeddings`. Only texts are supported, no token arrays."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=2048), BeforeValidator(_listed)
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=4096)] = 256
    user: str | None = None


def parse_embeddings(body: bytes) -> EmbeddingsRequest:
    """Parse a body. Raises DemoApiError."""
    return _parse(EmbeddingsRequest, body)


def parse_chat(body: bytes) -> DemoChatRequest:
    """Parse a body and check that its parameters are consistent. Raises DemoApiError."""
    chat = _parse(DemoChatRequest, body)
    wanted, choice, no_schema = chat.response_format, chat.tool_choice, "response_format.json_schema"
    named = choice.function.name if choice is not None and choice.function is not None else None
    names = [tool.function.name for tool in chat.tools or ()]
    defects = (
        (chat.n not in (None, 1), "n", Code.UNSUPPORTED_VALUE, "The demo model gives one answer: 'n' must be 1."),
        (
            chat.max_tokens is not None and chat.max_completion_tokens is not None,
            "max_tokens",
            Code.INVALID_PARAMETER_COMBINATION,
            "Set 'max_tokens' or 'max_completion_tokens', not both.",
        ),
        (
            chat.stream_options is not None and not chat.stream,
            "stream_options",
            Code.INVALID_VALUE,
            "'stream_options' needs 'stream': true.",
        ),
        (
            chat.top_logprobs is not None and not chat.logprobs,
            "top_logprobs",
            Code.INVALID_VALUE,
            "'top_logprobs' needs 'logprobs': true.",
        ),
        (
            wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None,
            no_schema,
            Code.MISSING_REQUIRED_PARAMETER,
            f"Missing required parameter: '{no_schema}'.",
        ),
        (choice is not None and not names, "tool_choice", Code.INVALID_VALUE, "'tool_choice' needs 'tools'."),
        (
            choice is not None and choice.type == "function" and named not in names,
            "tool_choice",
            Code.INVALID_VALUE,
            "'tool_choice' does not name an offered function.",
        ),
    )
    for is_wrong, param, code, message in defects:
        if is_wrong:
            raise DemoApiError(message, param=param, code=code)
    _check_tool_messages(chat.messages)
    return chat


def _parse(schema: type[Body], body: bytes) -> Body:
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        raise first_defect(error) from error


def _check_tool_messages(messages: list[DemoMessage]) -> None:
    # As OpenAI requires, tool messages directly follow the message with their calls.
    waiting: set[str] = set()
    for position, message in enumerate([*messages, None]):
        param = "messages" if message is None else f"messages[{position}]"
        if message is not None and message.role == "tool":
            if message.tool_call_id not in waiting:
                raise DemoApiError(
                    "A tool message must answer a preceding tool call.", param=param, code=Code.INVALID_VALUE
                )
            waiting.discard(message.tool_call_id)
        elif waiting:
            raise DemoApiError(
                f"No tool message answers the call {min(waiting)}.", param=param, code=Code.INVALID_VALUE
            )
        elif message is not None:
            waiting = {call.id for call in message.calls}

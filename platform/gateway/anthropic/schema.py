"""Bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`: parsed into typed values, or rejected.

Each parameter has an effect, or is rejected by name. `cache_control` is accepted everywhere: upstreams decide
themselves what they cache.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from conversations.items import MAX_ITEMS, MAX_TEXT
from core.errors import ModelNotFound, UnknownParameter, UnsupportedParameter
from core.http.nulls import validate_without_nulls
from core.http.validation import Schema, first_defect
from core.http.wire import BY_TYPE, STRING_OR, TAG, Wire, by_type
from responses.schema.tools import MAX_TOOLS, NAME

_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Data = Annotated[str, Field(min_length=1)]
_CacheControl = dict[str, Any]


class TextBlock(Wire):
    """Text. Citations are those of an earlier answer, which the model does not read again."""

    type: Literal["text"]
    text: _Text
    citations: list[dict[str, Any]] | None = None
    cache_control: _CacheControl | None = None


class Base64Source(Wire):
    """Base64 data of an image or a PDF."""

    type: Literal["base64"]
    media_type: Annotated[str, Field(max_length=100)]
    data: _Data


class UrlSource(Wire):
    """An address from which the content is downloaded."""

    type: Literal["url"]
    url: Annotated[str, Field(min_length=1)]


class FileSource(Wire):
    """A file of the team."""

    type: Literal["file"]
    file_id: str


class TextSource(Wire):
    """Plain text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: _Text


class ImageBlock(Wire):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource | FileSource, BY_TYPE]
    cache_control: _CacheControl | None = None


class ContentSource(Wire):
    """Content blocks of a document."""

    type: Literal["content"]
    content: Annotated[
        _Text | Annotated[list[Annotated[TextBlock | ImageBlock, BY_TYPE]], Field(max_length=MAX_ITEMS)], STRING_OR
    ]


class Citations(Wire):
    """Configuration of citations of documents, which this server does not support."""

    enabled: Literal[False] | None = None


class DocumentBlock(Wire):
    """A document."""

    type: Literal["document"]
    source: Annotated[Base64Source | TextSource | ContentSource | UrlSource | FileSource, BY_TYPE]
    title: Annotated[str, Field(max_length=500)] | None = None
    context: _Text | None = None
    citations: Citations | None = None
    cache_control: _CacheControl | None = None


class SearchResultBlock(Wire):
    """A result of the client's own search."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Field(max_length=MAX_ITEMS)]
    citations: Citations | None = None
    cache_control: _CacheControl | None = None


class ThinkingBlock(Wire):
    """Thinking of an earlier answer. The signature contains it in encrypted form."""

    type: Literal["thinking"]
    thinking: _Text
    signature: str


class RedactedThinkingBlock(Wire):
    """Thinking of an earlier answer that clients cannot read."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Wire):
    """A call of a client tool."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=64)]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    cache_control: _CacheControl | None = None


ResultBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock, BY_TYPE]


class ToolResultBlock(Wire):
    """The result of a call of a client tool."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[_Text | Annotated[list[ResultBlock], Field(max_length=MAX_ITEMS)], STRING_OR] | None = None
    is_error: bool | None = None
    cache_control: _CacheControl | None = None


class ServerToolUseBlock(Wire):
    """A call of a hosted tool in an earlier answer."""

    type: Literal["server_tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=255)]
    name: Literal["web_search", "web_fetch"]
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    cache_control: _CacheControl | None = None


class WebSearchResultBlock(Wire):
    """The results of a web search in an earlier answer, or its error."""

    type: Literal["web_search_tool_result"]
    tool_use_id: str
    content: Any
    caller: dict[str, Any] | None = None
    cache_control: _CacheControl | None = None


class WebFetchResultBlock(Wire):
    """The text of a web page in an earlier answer, or an error."""

    type: Literal["web_fetch_tool_result"]
    tool_use_id: str
    content: dict[str, Any]
    caller: dict[str, Any] | None = None
    cache_control: _CacheControl | None = None


ContentBlock = Annotated[
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ServerToolUseBlock
    | WebSearchResultBlock
    | WebFetchResultBlock,
    BY_TYPE,
]


class Message(Wire):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[_Text | Annotated[list[ContentBlock], Field(max_length=MAX_ITEMS, fail_fast=True)], STRING_OR]
    # The output settings of the request for this message, which Claude Code repeats.
    output_config: dict[str, Any] | None = None


class _Tool(Wire):
    cache_control: _CacheControl | None = None
    # Claude Code defers tools although it sends no search for them. There is none here, so they are all loaded.
    defer_loading: bool | None = None
    # Only with programs could this have an effect; this server has none here.
    allowed_callers: list[Literal["direct"]] | None = None
    strict: bool | None = None


class CustomTool(_Tool):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: Annotated[str, NAME]
    description: Annotated[str, Field(max_length=100_000)] | None = None
    input_schema: dict[str, Any]
    input_examples: Annotated[list[dict[str, Any]], Field(max_length=100)] | None = None
    # Input is always streamed as the model writes it.
    eager_input_streaming: bool | None = None


class BashTool(_Tool):
    """A shell that the client runs."""

    type: Literal["bash_20250124"]
    name: Literal["bash"]
    input_examples: Annotated[list[dict[str, Any]], Field(max_length=100)] | None = None


class TextEditorTool(_Tool):
    """An editor of text files that the client runs."""

    type: Literal["text_editor_20250124", "text_editor_20250429", "text_editor_20250728"]
    name: Literal["str_replace_editor", "str_replace_based_edit_tool"]
    max_characters: Annotated[int, Field(ge=1)] | None = None
    input_examples: Annotated[list[dict[str, Any]], Field(max_length=100)] | None = None


class MemoryTool(_Tool):
    """A folder of notes that the client keeps."""

    type: Literal["memory_20250818"]
    name: Literal["memory"]
    input_examples: Annotated[list[dict[str, Any]], Field(max_length=100)] | None = None


class SearchLocation(Wire):
    """The approximate location of the user."""

    type: Literal["approximate"]
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchTool(_Tool):
    """The web search of this server."""

    type: Literal["web_search_20250305", "web_search_20260209", "web_search_20260318"]
    name: Literal["web_search"]
    max_uses: Annotated[int, Field(ge=1)] | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: SearchLocation | None = None


Tool = CustomTool | BashTool | TextEditorTool | MemoryTool | WebSearchTool


def _tool_tag(value: Any) -> str | None:
    # Tools without a type are custom tools.
    return by_type({**value, "type": value.get("type") or "custom"} if isinstance(value, dict) else value)


_AnyTool = Annotated[
    Annotated[CustomTool, Tag(f"{TAG}custom")]
    | Annotated[BashTool, Tag(f"{TAG}bash_20250124")]
    | Annotated[TextEditorTool, Tag(f"{TAG}text_editor_20250124")]
    | Annotated[TextEditorTool, Tag(f"{TAG}text_editor_20250429")]
    | Annotated[TextEditorTool, Tag(f"{TAG}text_editor_20250728")]
    | Annotated[MemoryTool, Tag(f"{TAG}memory_20250818")]
    | Annotated[WebSearchTool, Tag(f"{TAG}web_search_20250305")]
    | Annotated[WebSearchTool, Tag(f"{TAG}web_search_20260209")]
    | Annotated[WebSearchTool, Tag(f"{TAG}web_search_20260318")],
    Discriminator(_tool_tag),
]


class _Choice(Wire):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Choice):
    """The model decides whether to use tools."""

    type: Literal["auto"]


class AnyChoice(_Choice):
    """The model must use one of the tools."""

    type: Literal["any"]


class ToolChoice(_Choice):
    """The model must use this tool."""

    type: Literal["tool"]
    name: str


class NoChoice(Wire):
    """The model must not use tools."""

    type: Literal["none"]


class ThinkingEnabled(Wire):
    """Thinking with a budget, in tokens."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1024)]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Wire):
    """Thinking as far as the model considers it useful, or only between tool calls."""

    type: Literal["adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Wire):
    """No thinking, if the model can be told so; its thinking is not shown."""

    type: Literal["disabled"]
    display: Literal["summarized", "omitted"] | None = None


class RequestMetadata(Wire):
    """Metadata of a request."""

    user_id: Annotated[str, Field(max_length=512)] | None = None


class JsonOutput(Wire):
    """Output as JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Wire):
    """Effort and format of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class ThinkingEdit(Wire):
    """Removal of earlier thinking from the context."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Wire):
    """Changes of the context before the model reads it."""

    edits: Annotated[list[ThinkingEdit], Field(max_length=1)] | None = None


class Diagnostics(Wire):
    """Request for information about the prompt cache."""

    previous_message_id: str | None = None


class CountTokens(Wire):
    """Body of a request to count the tokens of a message's input."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    system: Annotated[_Text | Annotated[list[TextBlock], Field(max_length=MAX_ITEMS)], STRING_OR] | None = None
    tools: Annotated[list[_AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[AutoChoice | AnyChoice | ToolChoice | NoChoice, BY_TYPE] | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, BY_TYPE] | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: _CacheControl | None = None

    @property
    def shows_thinking(self) -> bool:
        """True if the client asked for thinking. Other clients may not expect such blocks."""
        return isinstance(self.thinking, ThinkingEnabled | ThinkingAdaptive)

    @property
    def omits_thinking(self) -> bool:
        """True if the client wants only the signatures of thinking."""
        return getattr(self.thinking, "display", None) == "omitted"


class CreateMessage(CountTokens):
    """Body of a request for a message."""

    # With 0 the input is only checked; a response without an answer follows.
    max_tokens: Annotated[int, Field(ge=0)]
    stream: bool | None = None
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=1_000)]], Field(max_length=16)] | None
    ) = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None
    # From a beta of Claude Code: settings of Anthropic's own filters. This server applies those of the team.
    safeguards: Any = None


_MAX_NAME = 64
_MAX_MODEL = 200
_UNSUPPORTED = {
    "container": "code execution is only available in the Responses API",
    "mcp_servers": "MCP servers are only available in the Responses API",
    "inference_geo": "the operator decides where models run",
    "speed": "the upstream decides how fast a model runs",
    "thread": "send the whole conversation in 'messages'",
    "user_profile_id": "this server has no user profiles",
    "workspace_id": "the API key belongs to one team",
    "fallbacks": "the operator decides which models answer",
}


def parse_message(values: dict[str, Any]) -> CreateMessage:
    """Validate the body of `POST /v1/messages`; raises the API error of its first defect."""
    return _parse(CreateMessage, values)


def parse_count(values: dict[str, Any]) -> CountTokens:
    """Validate the body of `POST /v1/messages/count_tokens`; raises the API error of its first defect."""
    return _parse(CountTokens, values)


def _parse(schema: type[Schema], values: dict[str, Any]) -> Schema:
    known: Sequence[str] = [*schema.model_fields]
    for name, value in values.items():
        if name in _UNSUPPORTED and value is not None:
            raise UnsupportedParameter(
                f"The parameter '{name}' is not supported by this server: {_UNSUPPORTED[name]}.", param=name
            )
        if name not in known and value is not None:
            near = get_close_matches(name[:_MAX_NAME], known, n=1)
            raise UnknownParameter(name[:_MAX_NAME], suggestion=near[0] if near else None)
    required = {name for name, field in schema.model_fields.items() if field.is_required()}
    sent = {name: value for name, value in values.items() if value is not None or name in required}
    if isinstance(model := sent.get("model"), str) and len(model) > _MAX_MODEL:
        raise ModelNotFound(model[:_MAX_MODEL])
    try:
        return validate_without_nulls(schema, sent)
    except ValidationError as error:
        defect = first_defect(error)
        # Unlike in the Responses API, no union of objects has a string as its short form here.
        defect.message = defect.message.replace("expected one of an object or a string", "expected an object")
        raise defect from error

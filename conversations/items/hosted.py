"""Calls of hosted tools. Each item contains its own result."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import override

from conversations.items.base import ItemBase, WrittenFile
from core.http.wire import BY_TYPE, TAG, LongInteger, OpenWire


class HostedCall(ItemBase):
    """A call that the server runs. The id from the upstream that made the call is stored, but never shown."""

    upstream_call_id: SkipJsonSchema[str | None] = Field(default=None, repr=False)


# -- MCP servers -------------------------------------------------------------------------------------------------------


class McpTool(OpenWire):
    """A tool of an MCP server."""

    name: str
    input_schema: Any
    description: str | None = None
    annotations: Any = None


class McpListTools(ItemBase):
    """The tools that an MCP server listed, or the error of listing them."""

    prefix = "mcpl"

    type: Literal["mcp_list_tools"] = "mcp_list_tools"
    server_label: str
    tools: list[McpTool]
    error: str | None = None


class McpProtocolError(OpenWire):
    """The server violated the protocol or reported a protocol error."""

    type: Literal["mcp_protocol_error"] = "mcp_protocol_error"
    code: LongInteger
    message: str


class McpToolExecutionError(OpenWire):
    """The tool was executed and failed."""

    type: Literal["mcp_tool_execution_error"] = "mcp_tool_execution_error"
    content: Any


class McpHttpError(OpenWire):
    """The server answered with an HTTP error, or not at all."""

    type: Literal["http_error"] = "http_error"
    code: LongInteger
    message: str


McpError = Annotated[McpProtocolError | McpToolExecutionError | McpHttpError, BY_TYPE]


class McpCall(HostedCall):
    """A call of an MCP tool, with its output or error."""

    prefix = "mcp"
    nulls = frozenset({"approval_request_id", "output", "error"})

    type: Literal["mcp_call"] = "mcp_call"
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] | None = None
    server_label: str
    name: str
    arguments: str
    approval_request_id: str | None = None
    output: str | None = None
    error: McpError | None = None


class McpApprovalRequest(HostedCall):
    """A call that waits for the client's approval."""

    prefix = "mcpr"

    type: Literal["mcp_approval_request"] = "mcp_approval_request"
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(ItemBase):
    """The client's decision about a call that waits for approval."""

    prefix = "mcpa"
    from_clients = True
    nulls = frozenset({"reason"})

    type: Literal["mcp_approval_response"] = "mcp_approval_response"
    approval_request_id: str
    approve: bool
    reason: str | None = None


# -- searches ----------------------------------------------------------------------------------------------------------


def _attribute_tag(value: Any) -> str:
    # Values of other types are validated as strings, so that the error message asks for a string.
    return f"{TAG}{type(value).__name__ if isinstance(value, bool | int | float) else 'str'}"


Attribute = Annotated[
    Annotated[str, Tag(f"{TAG}str")]
    | Annotated[bool, Tag(f"{TAG}bool")]
    | Annotated[int, Tag(f"{TAG}int")]
    | Annotated[float, Tag(f"{TAG}float")],
    Discriminator(_attribute_tag),
]


class FileSearchResult(OpenWire):
    """A passage of a file that matches a query."""

    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    text: str | None = None
    attributes: dict[str, Attribute] | None = None


class FileSearchCall(HostedCall):
    """A file search call. Its results are stored, and shown on request (`include`)."""

    prefix = "fs"
    nulls = frozenset({"results"})

    type: Literal["file_search_call"] = "file_search_call"
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None
    queries: list[str]
    results: list[FileSearchResult] | None = None


class WebSource(OpenWire):
    """A page that a web search found."""

    type: Literal["url"] = "url"
    url: str


class WebSearch(OpenWire):
    """Search the web."""

    type: Literal["search"] = "search"
    query: str | None = None
    queries: list[str] | None = None
    sources: list[WebSource] | None = None


class OpenPage(OpenWire):
    """Open a page."""

    type: Literal["open_page"] = "open_page"
    url: str | None = None


class FindInPage(OpenWire):
    """Find a pattern in a page."""

    type: Literal["find_in_page"] = "find_in_page"
    url: str
    pattern: str


class WebResult(OpenWire):
    """A search result or the text of a page, or the reason why the step failed."""

    url: str
    title: str | None = None
    text: str | None = None


class WebSearchCall(HostedCall):
    """One step of a web search. Its results are stored, and shown on request (`include`).

    OpenAI lists `results` as a value of `include` but does not document their shape, so the platform defines its own.
    """

    prefix = "ws"

    type: Literal["web_search_call"] = "web_search_call"
    status: Literal["in_progress", "searching", "completed", "failed", "incomplete"] | None = None
    action: Annotated[WebSearch | OpenPage | FindInPage, BY_TYPE]
    results: list[WebResult] | None = None


# -- code and images ---------------------------------------------------------------------------------------------------


class CodeLogs(OpenWire):
    """The printed output of a program."""

    type: Literal["logs"] = "logs"
    logs: str


class CodeImage(OpenWire):
    """An image that a program created."""

    type: Literal["image"] = "image"
    url: str


class CodeInterpreterCall(HostedCall):
    """A program that the model wrote and the server ran. Its outputs are stored, and shown on request (`include`).

    `files` is an addition of the platform, used for citations: files that the program created or removed. It is never
    shown.
    """

    prefix = "ci"
    nulls = frozenset({"code", "outputs"})

    type: Literal["code_interpreter_call"] = "code_interpreter_call"
    status: Literal["in_progress", "completed", "incomplete", "interpreting", "failed"] | None = None
    container_id: str
    code: str | None = None
    outputs: list[Annotated[CodeLogs | CodeImage, BY_TYPE]] | None = None
    files: list[WrittenFile] | None = None


class ModerationDetails(OpenWire):
    """The moderation categories that blocked an image, and the stage at which it was blocked."""

    categories: list[str]
    moderation_stage: Literal["input", "output", "unknown"]


class ImageError(OpenWire):
    """The reason why no image was generated."""

    code: str | None = None
    message: str
    param: str | None = None
    type: str
    moderation_details: ModerationDetails | None = None


class SvgUsage(OpenWire):
    """Token usage of an image generated as SVG."""

    model: str
    input_tokens: LongInteger
    output_tokens: LongInteger
    reasoning_tokens: LongInteger
    total_tokens: LongInteger


class ImageGenerationCall(HostedCall):
    """An image generation call."""

    prefix = "ig"
    nulls = frozenset({"result"})

    type: Literal["image_generation_call"] = "image_generation_call"
    status: Literal["in_progress", "completed", "generating", "failed"] | None = None
    result: str | None = None
    action: Literal["generate", "edit", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: str | None = None
    revised_prompt: str | None = None
    error: ImageError | None = None
    svg_usage: SvgUsage | None = None

    @override
    def wire(self) -> dict[str, Any]:
        body = super().wire()
        # Clients expect text in a call that has ended. The AI SDK rejects the whole response otherwise.
        if body["result"] is None and body["status"] in ("completed", "failed"):
            body["result"] = ""
        return body

    @property
    def data_url(self) -> str | None:
        """The image as a data URL, or None without an image."""
        return f"data:image/{self.output_format or 'png'};base64,{self.result}" if self.result else None


class Program(ItemBase):
    """A program that the model wrote and that calls tools itself."""

    prefix = "prog"

    type: Literal["program"] = "program"
    call_id: str
    code: str
    fingerprint: str


class ProgramOutput(ItemBase):
    """The result of a program."""

    prefix = "progo"

    type: Literal["program_output"] = "program_output"
    status: Literal["completed", "incomplete"] | None = None
    call_id: str
    result: str


HOSTED_CALLS = frozenset(
    {
        "mcp_call",
        "mcp_approval_request",
        "file_search_call",
        "web_search_call",
        "code_interpreter_call",
        "image_generation_call",
    }
)
"""Types of items that are stored together with the upstream's id of the call."""

HISTORY_ONLY = frozenset({"mcp_approval_response"})
"""Types of items that a run may add to the history, but not to the output of its response.

OpenAI has them only in requests, and some clients refuse a response with one of them.
"""

"""The objects that the endpoints of `/v1/responses` and `/v1/models` return."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from conversations.objects import ItemBody
from core.http.objects import Deleted, Fields, ListPage, UnixTime, one_of
from responses.models import DecisionKind, Status


class InputTokensDetails(TypedDict):
    """Details of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """Details of the output tokens."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Numbers of tokens that a response used."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ToolQuestion(TypedDict):
    """A question of a tool, as in MCP: a form with the schema of its values, or the URL of a page to visit."""

    mode: Annotated[str, one_of("form", "url")]
    message: str
    requested_schema: NotRequired[dict[str, Any]]
    url: NotRequired[str]


class PendingDecision(TypedDict):
    """A decision of a person for which a response waits. A decision of the kind `question` has the question."""

    id: str
    kind: Annotated[str, one_of(*DecisionKind.values)]
    item_id: str
    expires_at: int | None
    question: NotRequired[ToolQuestion]


class Response(TypedDict):
    """A model response."""

    id: str
    object: Literal["response"]
    created_at: UnixTime
    completed_at: int | None
    status: Annotated[str, one_of(*Status.values)]
    background: bool
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[ItemBody]
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    moderation: dict[str, Any] | None
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: dict[str, Any] | None
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: Usage | None
    user: str | None
    metadata: dict[str, str]
    pending_decisions: NotRequired[list[PendingDecision]]


class AttemptEntry(TypedDict):
    """A request to a model's server that a run has made."""

    object: Literal["response.attempt"]
    turn: Annotated[int | None, Field(description="Number of the model call, from 0; null before the first one.")]
    model: str
    status: Annotated[str, Field(description="`failed`, or the outcome of the model call, such as `stop`.")]
    cause: Annotated[
        str | None, Field(description="Why it failed, such as `connection refused`, `no answer in time` or `HTTP 500`.")
    ]
    http_status: Annotated[int | None, Field(description="Status of the model's server, if it has answered.")]
    upstream_request_id: Annotated[
        str | None, Field(description="Id that the model's server has given the request; null without one.")
    ]
    started_at: UnixTime
    duration_ms: Annotated[int | None, Field(description="Null while it continues.")]


class TimelineEntry(TypedDict):
    """A timed step of a run."""

    object: Literal["response.timeline_entry"]
    type: Annotated[
        str,
        Field(
            description="`model_call`, `tool_call` or `approval`, or a part of the run that was measured: `prepare`, "
            "`connect` and `list` (an MCP server), `attempt` (a request to a model's server that failed or was "
            "repeated), `guardrail` or `storage`."
        ),
    ]
    name: str | None
    status: str | None
    began_ms: Annotated[int, Field(description="Milliseconds after the creation of the response.")]
    duration_ms: Annotated[int | None, Field(description="Null while it continues.")]


class AttemptList(TypedDict):
    """The requests of a run to model servers, oldest first."""

    object: Literal["list"]
    data: list[AttemptEntry]


class Timeline(TypedDict):
    """The timed steps of a run, in the order of their beginnings."""

    object: Literal["list"]
    data: list[TimelineEntry]


class InputTokens(TypedDict):
    """Number of input tokens of a request."""

    object: Literal["response.input_tokens"]
    input_tokens: Annotated[
        int, Field(description="Counted by the upstream if it can, otherwise estimated at four characters per token.")
    ]


class CompactedConversation(TypedDict):
    """A compacted context."""

    id: str
    object: Literal["response.compaction"]
    created_at: UnixTime
    output: Annotated[
        list[ItemBody],
        Field(description="The user messages and one compaction item. Use them as the beginning of the next input."),
    ]
    usage: Usage


class Model(TypedDict):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    shutdown_date: str | None


ModelBody = Annotated[dict[str, Any], Fields(Model)]


class ModelList(TypedDict):
    """List of models."""

    object: Literal["list"]
    data: list[ModelBody]


ResponseBody = Annotated[dict[str, Any], Fields(Response)]
ResponseList = ListPage[ResponseBody]
CompactedBody = Annotated[dict[str, Any], Fields(CompactedConversation)]
DeletedResponse = Deleted[ResponseBody, Literal["response"]]

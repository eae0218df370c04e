"""Request and result of a turn: values shared by the loop, the upstream adapters and the recorder."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from conversations.items import StoredItem
from core.errors import Failure
from core.records import record
from engine.attachments import Attachments
from engine.converter.segments import ReasoningCipher
from engine.events.types import Body, Event


@record
class Usage:
    """Tokens of one upstream call or of a whole run. `input_tokens` includes cached tokens.

    Tokens of audio and images are included in the input and output, `cache_write_1h_tokens` in the cache writes. Calls
    with audio may be billed by `audio_seconds`, the length of the input audio, or by `characters`, the length of the
    spoken text. `images` is the number of generated images. `service_tier` is the tier that the upstream reported.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    input_audio_tokens: int = 0
    cached_audio_tokens: int = 0
    input_image_tokens: int = 0
    cached_image_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    output_audio_tokens: int = 0
    output_image_tokens: int = 0
    estimated: bool = False
    audio_seconds: float = 0.0
    characters: int = 0
    images: int = 0
    service_tier: str = ""

    @property
    def has_tokens(self) -> bool:
        """True if any tokens were read or written."""
        return bool(self.input_tokens or self.output_tokens)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            estimated=self.estimated or other.estimated,
            service_tier=other.service_tier or self.service_tier,
        )


_SUMMED = tuple(count.name for count in fields(Usage) if count.name not in {"estimated", "service_tier"})


class Target(NamedTuple):
    """One of several models of upstreams that can answer a request.

    `model` is its public name, `upstream_model` the upstream's own name.
    """

    model: str
    upstream_id: str
    upstream_model: str


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One HTTP request of an upstream call.

    `status` is None without an answer. `request_id` is the upstream's id of the request. `was_sent` is false if there
    was no connection, so that the upstream has not received the request. `timed_out`: the upstream did not begin to
    answer in time, or stopped in the middle of it. `target` is None if there is only one. If the answer failed and the
    request was sent to another target, `usage` is the usage that the upstream has reported before, `output_tokens` is
    an estimate of the output that has arrived, and `cause` is the reason in few words. `on_usage` is called with the
    tokens of the usage if the target has a limit of tokens. `failure` has details of a failed request for
    operators.
    """

    began: datetime
    ended: datetime | None = None
    status: int | None = None
    request_id: str = ""
    was_sent: bool = True
    timed_out: bool = False
    target: Target | None = None
    usage: Usage | None = None
    output_tokens: int = 0
    cause: str = ""
    on_usage: Callable[[int], None] | None = None
    failure: Mapping[str, Any] | None = None

    def settle(self, usage: Usage) -> None:
        """Let the limit of the target count the tokens that were used instead of an estimate."""
        if self.on_usage is not None:
            self.on_usage(usage.input_tokens + usage.output_tokens)

    @property
    def may_be_charged(self) -> bool:
        """True unless the upstream answered with an error or was never reached: such requests are not charged."""
        return self.was_sent and (self.status is None or self.status < _ERRORS)


_ERRORS = 400  # HTTP statuses from here on


class CallForm(StrEnum):
    """Type of the output item that a call of a tool becomes.

    Chat-completions upstreams only know functions, so each form is offered to them as a function and converted back.
    """

    FUNCTION = "function_call"
    CUSTOM = "custom_tool_call"
    COMPUTER = "computer_call"  # several actions in one call
    COMPUTER_PREVIEW = "computer_call with one action"
    SHELL = "shell_call"
    LOCAL_SHELL = "local_shell_call"
    APPLY_PATCH = "apply_patch_call"
    TOOL_SEARCH = "tool_search_call"  # the client searches
    HOSTED = "hosted"  # the hosted tool creates the item when it runs
    UNKNOWN = "unknown"  # no such tool was offered; the call gets no item


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Grammar that the input of a custom tool must match."""

    syntax: Literal["lark", "regex"]
    definition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """Function offered to the model.

    `name` is the upstream's name of the function; `label` and `namespace` are the client's name if it is different.
    `parameters` is a JSON schema. `strict` None leaves strictness to the upstream. `form` decides which item a call
    becomes. `asynchronous`: the client may continue the conversation before it has answered a call.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    form: CallForm = CallForm.FUNCTION
    label: str = ""
    namespace: str | None = None
    grammar: Grammar | None = None
    asynchronous: bool = False


@record
class Sampling:
    """Sampling parameters of a turn. A None was not sent by the client and is not sent to the upstream."""

    tools: tuple[FunctionTool, ...] = ()
    tool_choice: str | FunctionTool | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    logprobs: bool = False
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    reasoning_context: str | None = None
    verbosity: str | None = None
    response_format: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    stop: tuple[str, ...] = ()  # enforced by the converters
    include: frozenset[str] = frozenset()  # optional fields that events show of an upstream's own tools
    extra: dict[str, Any] | None = None  # e.g. `top_k`, for upstreams that know it

    @property
    def max_calls(self) -> int | None:
        """Maximum number of calls in a turn; None: unlimited."""
        # Also enforced here, because some upstreams ignore both parameters.
        if self.tool_choice == "none":
            return 0
        return 1 if self.parallel_tool_calls is False else None


ReserveAgain = Callable[[str], Awaitable[bool]]


@record
class TurnRequest:
    """Input of one upstream call.

    `attachments` loads the images and files that the items reference, `cipher` encrypts and decrypts reasoning; each is
    None where it is not needed. `first_output_index` is the output index of the turn's first item. Without `streamed`,
    the upstream may answer with one document, because the answer is only used when it is complete.
    `answer_prefix` is the beginning of the answer, which another server has written, for a server that continues it.

    Without `may_repeat`, budgets cover only one request for which the upstream may charge. Before another one is sent,
    `reserve_again` must reserve it; it gets the text that is sent along and returns false if the budgets have no room.
    If it is None, no other request is sent.
    """

    model: str
    instructions: str | None
    items: Sequence[StoredItem]
    sampling: Sampling
    first_output_index: int
    attachments: Attachments | None = None
    cipher: ReasoningCipher | None = None
    streamed: bool = True
    may_repeat: bool = True
    reserve_again: "ReserveAgain | None" = None
    answer_prefix: str = ""


class Finish(StrEnum):
    """Reason why the model stopped."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    INTERRUPTED = "interrupted"


@record
class ToolInput:
    """Question of a hosted tool about a call, and the answer to it, both as JSON of the tool."""

    question: Body
    answer: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Tool call requested by the model. `arguments` is JSON text, or the input of a custom tool.

    `effect_id` identifies the effects of a hosted call that is being made: a tool that gets it twice acts once. `input`
    is the answer to a question that the tool has asked instead of returning a result.
    """

    item_id: str
    call_id: str
    name: str
    arguments: str
    effect_id: str = ""
    input: ToolInput | None = None


_SERVICE_TIERS = frozenset({"default", "flex", "scale", "priority", "fast", "ultrafast"})


@record
class TurnResult:
    """Result of a turn.

    `items` are final bodies in output order. `usage` is None if the upstream did not report it. `finish_reason` is the
    upstream's own word for `finish`. `stop_sequence` is the sequence that ended the text. `attempts` are the HTTP
    requests, the last of which is the request whose answer was read. They are empty if no request was begun, and None
    if they are unknown.
    """

    finish: Finish
    items: list[Body] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    usage: Usage | None = None
    failure: Failure | None = None
    finish_reason: str | None = None
    stop_sequence: str | None = None
    first_token_at: datetime | None = None
    upstream_request_id: str | None = None
    service_tier: str | None = None
    attempts: Sequence[Attempt] | None = None

    @property
    def may_be_charged(self) -> bool:
        """True if the upstream may have charged for the call although it has reported no usage."""
        if self.items:
            return True
        if self.attempts is None:
            return self.failure is None
        return bool(self.attempts) and self.attempts[-1].may_be_charged

    @property
    def target(self) -> Target | None:
        """The target of the last request. None if the model has only one target."""
        return self.attempts[-1].target if self.attempts else None

    @property
    def answered_by(self) -> Target | None:
        """The target whose answer the result is. None if the model has only one target, or if no target answered."""
        return None if self.finish is Finish.ERROR and not self.items else self.target

    @property
    def lost_attempts(self) -> Sequence[Attempt]:
        """Requests that were sent and repeated, because they failed or their answer was cut."""
        return [attempt for attempt in (self.attempts or ())[:-1] if attempt.was_sent]

    @property
    def reported_tier(self) -> str:
        """Service tier for the response object, "default" for a tier that OpenAI does not define."""
        # Some upstreams report their own tier names, which typed clients fail to parse.
        return self.service_tier if self.service_tier in _SERVICE_TIERS else "default"


class TurnStream(Protocol):
    """Turn in progress: iterate `events` once, then read `result`."""

    def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events in wire order, one list per network read.

        Closing the generator closes the connection to the upstream.
        """
        ...

    def result(self) -> TurnResult:
        """Return the result; only valid after the iteration has ended."""
        ...

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Stop the turn. Return the events that close the open item, and the partial result."""
        ...


class LanguageModel(Protocol):
    """Port to a model of an upstream."""

    def open(self, request: TurnRequest) -> TurnStream:
        """Start a turn. Failures of the upstream are part of its result and never raised."""
        ...

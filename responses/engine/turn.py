"""What goes into a turn and what comes out of it: values that the loop, the adapters and the recorder share."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Protocol

from conversations.items import StoredItem
from kernel.errors import Failure
from responses.engine.attachments import Attachments
from responses.engine.chat.reasoning import ReasoningCipher
from responses.engine.events.types import Body, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one upstream call or of a whole run. `input_tokens` includes the cached ones."""

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )


class CallForm(StrEnum):
    """As which item a call of a tool stands in the output. The upstream itself knows functions only."""

    FUNCTION = "function_call"
    CUSTOM = "custom_tool_call"
    COMPUTER = "computer_call"  # several actions in one call
    COMPUTER_PREVIEW = "computer_call with one action"
    SHELL = "shell_call"
    LOCAL_SHELL = "local_shell_call"
    APPLY_PATCH = "apply_patch_call"
    TOOL_SEARCH = "tool_search_call"  # the client searches
    HOSTED = "hosted"  # its tool makes the item, when it runs
    UNKNOWN = "unknown"  # there is no such tool, and no item


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What the input of a custom tool has to keep to."""

    syntax: Literal["lark", "regex"]
    definition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function that the model may call. `parameters` is a JSON schema; `strict` None: the upstream decides.

    `name` is what the upstream knows it by, `label` (with `namespace`) what the client does, where that is another one;
    `form` says what becomes of a call. `asynchronous`: the client may go on before it has answered a call.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the model is to write. What is None was not sent by the client and is not sent to the upstream."""

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
    extra: dict[str, Any] | None = None  # top_k and its like, for upstreams that know them

    @property
    def max_calls(self) -> int | None:
        """How many calls a turn may make, whatever the upstream thinks of it; None: any number."""
        if self.tool_choice == "none":
            return 0
        return 1 if self.parallel_tool_calls is False else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One upstream call: what the model is to read, and how it is to write.

    `content` finds what stands behind the items' images and files, None where there are none; `cipher` hides and opens
    reasoning, None where none is kept.
    """

    model: str
    instructions: str | None
    items: Sequence[StoredItem]
    sampling: Sampling
    first_output_index: int
    attachments: Attachments | None = None
    cipher: ReasoningCipher | None = None


class Finish(StrEnum):
    """Why the model stopped."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call that the model asked for."""

    item_id: str
    call_id: str
    name: str
    arguments: str


_SERVICE_TIERS = frozenset({"default", "flex", "scale", "priority", "fast", "ultrafast"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What a turn brought. `items` are final bodies in output order; `usage` None: the upstream did not say."""

    finish: Finish
    items: list[Body] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    usage: Usage | None = None
    failure: Failure | None = None
    finish_reason: str | None = None
    first_token_at: datetime | None = None
    upstream_request_id: str | None = None
    service_tier: str | None = None

    @property
    def reported_tier(self) -> str:
        """The tier for the response object: upstreams have names of their own, which typed clients do not know."""
        return self.service_tier if self.service_tier in _SERVICE_TIERS else "default"


class TurnStream(Protocol):
    """A turn that is being sampled: iterate its events once, then ask for its result."""

    def events(self) -> AsyncGenerator[list[Event], None]:
        """The events in the order of the wire, a list for each read. Closing it closes the upstream's connection."""
        ...

    def result(self) -> TurnResult:
        """What the turn brought; only after the iteration has ended."""
        ...

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """End the turn where it stands: the events that close the open item, and what there is."""
        ...


class LanguageModel(Protocol):
    """A model behind some upstream."""

    def open(self, request: TurnRequest) -> TurnStream:
        """Begin a turn. Failures of the upstream are part of the result, never raised."""
        ...

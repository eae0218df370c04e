"""The body of `POST /v1/responses`: JSON in, a typed and closed value out.

Fields stand in the order in which OpenAI reports their defects. A parameter is honoured, or stored and echoed because
that is its whole meaning, or refused by name; nothing is ignored. Source: section 1.1.1 of the API surface
specification.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from conversations.items import MAX_ITEMS, CompactionTrigger, Includable, InputItem, StoredItem, Wire
from kernel.errors import (
    BadRequest,
    Forbidden,
    InvalidType,
    InvalidValue,
    MissingParameter,
    MutuallyExclusive,
    UnknownParameter,
    UnsupportedParameter,
    UnsupportedValue,
)
from kernel.nulls import validate_without_nulls
from kernel.validation import TAG, Metadata, first_defect
from responses.schema.choices import ToolChoice, check_choice
from responses.schema.formats import JsonSchemaFormat, TextParam, check_schema
from responses.schema.messages import PreviousMessage, history
from responses.schema.options import (
    AccessPrograms,
    ContextManagement,
    ConversationReference,
    ImageOptions,
    ModerationParam,
    PromptCacheOptions,
    PromptParam,
    ReasoningParam,
    StreamOptions,
)
from responses.schema.tools import MAX_TOOLS, ToolParam, added_tools, check_tools, tool_defect
from responses.schema.updates import check_updates


def _input_tag(value: Any) -> str:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}items"


Input = Annotated[
    Annotated[str, Field(max_length=10_485_760), Tag(f"{TAG}text")]
    | Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True), Tag(f"{TAG}items")],
    Discriminator(_input_tag),
]


class CreateResponse(Wire):
    """A request to create a response. What was not sent is not in `model_fields_set`."""

    # Without input and model the prompt has to bring them.
    input: Input = ""
    previous_response_id: Annotated[str, Field(max_length=64)] | None = None
    conversation: ConversationReference | None = None
    prompt: PromptParam | None = None
    moderation: ModerationParam | None = None
    include: list[Includable] | None = None
    tools: Annotated[list[ToolParam], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Metadata | None = None
    text: TextParam | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=16)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    reasoning: ReasoningParam | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_key: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    instructions: str | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    image: ImageOptions | None = None
    access_programs: AccessPrograms | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    generate: bool | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_response_messages: bool | None = None
    previous_input_messages: Annotated[list[PreviousMessage], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None
    request_id: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[ -~]*$")] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] = ""

    @property
    def generates(self) -> bool:
        """Whether the model is to answer. A response that it does not answer can be followed all the same."""
        prewarms = self.prompt_cache_options is not None and self.prompt_cache_options.prewarm
        return self.generate is not False and not prewarms

    @property
    def compacts(self) -> bool:
        """Whether the response is to be a compaction of what came before, and nothing else."""
        return bool(self.input) and isinstance(self.input[-1], CompactionTrigger)

    def previous_items(self) -> list[StoredItem]:
        """The conversation before the input, where the request brings it as messages."""
        told = self.previous_input_messages or ()
        return history(told, instructed=bool(self.instructions), tools=self.tools or ())


_MAX_NAME = 64
_UNSUPPORTED = {"multi_agent"}
_EMPTY_INPUT = (
    "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided."  # OpenAI's quotes
)


def parse_create(values: dict[str, Any]) -> CreateResponse:
    """Validate a body; the first defect is raised as OpenAI words it.

    `null` means "not sent" for everything but `model` and `input`.
    """
    _refuse_by_name(values)
    sent = {name: value for name, value in values.items() if value is not None or name in {"model", "input"}}
    if "model" in sent and sent["model"] is None:
        raise InvalidType("model", expected="a string", got="null")
    if "input" not in sent:
        if "prompt" not in sent:
            raise MissingParameter("input")
        sent["input"] = []
    if sent["input"] == "" and sent.get("previous_input_messages"):
        sent["input"] = []
    elsewhere = {"previous_response_id", "conversation", "prompt"} & sent.keys() or sent.get("previous_input_messages")
    if sent["input"] in ("", []) and not elsewhere:
        raise BadRequest(_EMPTY_INPUT, code="missing_required_parameter", param="input")
    body = _validated(sent)
    # A prompt may bring what others need beside them.
    if body.prompt is None:
        check_combinations(body)
    return body


def _validated(sent: dict[str, Any]) -> CreateResponse:
    """`null` means "not sent" further down as well."""
    try:
        return validate_without_nulls(CreateResponse, sent)
    except ValidationError as error:
        raise tool_defect(error) or first_defect(error) from error


def check_combinations(body: CreateResponse) -> None:
    """What each parameter allows and the others forbid. Unchecked, it would be dropped on the way, or puzzle models."""
    if not body.model:
        raise MissingParameter("model")
    _refuse_unsupported_values(body)
    if body.moderation and not body.generates:
        message = "The parameter 'moderation' is about an answer, and no answer is asked for."
        raise InvalidValue(message, param="moderation")
    check_updates(body.input)
    _check_compaction_trigger(body)
    if body.conversation and body.previous_response_id:
        raise MutuallyExclusive("previous_response_id", "conversation")
    if body.conversation and body.previous_input_messages:
        raise MutuallyExclusive("conversation", "previous_input_messages")
    if body.previous_input_messages and body.previous_response_id:
        raise MutuallyExclusive("previous_response_id", "previous_input_messages")
    if body.background:
        _check_background(body)
    tools = body.tools or []
    check_tools(tools, param="tools")
    check_choice(body.tool_choice, [*tools, *added_tools(body.input)])
    if body.text and isinstance(body.text.format, JsonSchemaFormat):
        check_schema(body.text.format)
    if body.stream_options is not None and not body.stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise InvalidValue(message, param="stream_options")


def _check_compaction_trigger(body: CreateResponse) -> None:
    """What comes after a trigger would neither be compacted nor answered."""
    for index, item in enumerate(body.input[:-1]):
        if isinstance(item, CompactionTrigger):
            message = "An item of the type 'compaction_trigger' has to be the last one of the input."
            raise InvalidValue(message, param=f"input[{index}]")
    if body.compacts and not body.generates:
        message = "An item of the type 'compaction_trigger' asks for something, and 'generate' is false."
        raise InvalidValue(message, param="generate")


def _check_background(body: CreateResponse) -> None:
    """What is run later has to be found by then, and has to have something to run."""
    if body.store is False:
        message = "Background responses are read by their id, so they have to be stored: 'store' must not be false."
        raise InvalidValue(message, param="background")
    if not body.generates:
        message = "The parameter 'background' is about an answer, and no answer is asked for."
        raise InvalidValue(message, param="background")


def _refuse_unsupported_values(body: CreateResponse) -> None:
    """What OpenAI's own models can be asked for, and no model here."""
    if body.reasoning and body.reasoning.mode not in {None, "standard"}:
        message = "Reasoning modes other than 'standard' are not supported by this server."
        raise UnsupportedValue(message, param="reasoning.mode")
    if body.image and body.image.context_compression == "enabled":
        message = "Images are sent to models as they are: compressing them is not supported by this server."
        raise UnsupportedValue(message, param="image.context_compression")
    if body.access_programs and body.access_programs.cyber not in {None, "standard"}:
        raise Forbidden(
            f"This team is not part of the access program '{body.access_programs.cyber}'.",
            param="access_programs.cyber",
            code="access_program_not_granted",
        )


def _refuse_by_name(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "messages":
            message = "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to 'input'."
            raise UnsupportedParameter(message, param=name)
        if name in _UNSUPPORTED and value is not None:
            raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)
        if name not in CreateResponse.model_fields and name not in _UNSUPPORTED:
            near = get_close_matches(name[:_MAX_NAME], CreateResponse.model_fields, n=1)
            raise UnknownParameter(name[:_MAX_NAME], suggestion=near[0] if near else None)

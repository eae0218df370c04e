"""Body of `POST /v1/responses`: parsed from JSON into typed values, or rejected with OpenAI's errors.

The fields are in the order in which OpenAI reports their errors. Every parameter has an effect, or is only stored and
returned because it has no other meaning, or is rejected by name. No parameter is ignored.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from conversations.items import MAX_ITEMS, CompactionTrigger, Includable, InputItem, StoredItem
from core.errors import (
    AccessProgramNotGranted,
    InvalidType,
    InvalidValue,
    MissingParameter,
    MutuallyExclusive,
    UnknownParameter,
    UnsupportedParameter,
    UnsupportedValue,
)
from core.http.nulls import lenient_validator, validate_without_nulls
from core.http.validation import Metadata, ResponseId, first_defect
from core.http.wire import STRING_OR, Wire
from responses.schema.choices import AllowedTools, KindChoice, ToolChoice, check_choice
from responses.schema.messages import PreviousMessage, history
from responses.schema.options import (
    AccessPrograms,
    BackgroundOptions,
    ClientMetadata,
    ContextManagement,
    ConversationReference,
    ImageOptions,
    JsonSchemaFormat,
    ModerationParam,
    PromptCacheOptions,
    PromptParam,
    ReasoningParam,
    StreamOptions,
    TextParam,
    check_schema,
    check_updates,
)
from responses.schema.tools import (
    MAX_TOOLS,
    TOOLS,
    AnyTool,
    LoadedTools,
    ToolParam,
    added_tools,
    check_tools,
    tool_defect,
)

Input = Annotated[
    Annotated[str, Field(max_length=10_485_760)]
    | Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True)],
    STRING_OR,
]


def _without_default(schema: dict[str, Any]) -> None:
    # An empty string stands for a value that the prompt provides; clients cannot send it.
    schema.pop("default", None)


class CreateResponse(Wire):
    """Create a model response."""

    # Input and model may be missing if the prompt provides them.
    input: Annotated[Input, Field(json_schema_extra=_without_default)] = ""
    previous_response_id: ResponseId | None = None
    conversation: ConversationReference | None = None
    prompt: PromptParam | None = None
    moderation: ModerationParam | None = None
    include: list[Includable] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Metadata | None = None
    client_metadata: ClientMetadata | None = None
    text: TextParam | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    # 16 is the minimum of OpenAI's API.
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
    # The following parameters belong to vLLM and similar servers. All except `stop` are forwarded to the upstream.
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=1_000)]], Field(max_length=16)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_response_messages: bool | None = None
    previous_input_messages: Annotated[list[PreviousMessage], Field(max_length=MAX_ITEMS, fail_fast=True)] | None = None
    # Printable ASCII, like the header X-Client-Request-Id, which this parameter replaces.
    request_id: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[ -~]*$")] | None = None
    model: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra=_without_default)] = ""

    @property
    def generates(self) -> bool:
        """True if the model should answer. A response without an answer can still be continued."""
        prewarms = self.prompt_cache_options is not None and self.prompt_cache_options.prewarm
        return self.generate is not False and not prewarms

    @property
    def may_wait(self) -> bool:
        """True if the run may wait for a cheaper time within its completion window."""
        return self.background_options is not None and self.background_options.completion_window in {"2h", "8h"}

    @property
    def compacts(self) -> bool:
        """True if the response only compacts the preceding context."""
        return bool(self.input) and isinstance(self.input[-1], CompactionTrigger)

    def previous_items(self) -> list[StoredItem]:
        """Return the context before the input, if the request contains it as messages."""
        messages = self.previous_input_messages or ()
        return history(messages, instructed=bool(self.instructions), tools=self.tools or ())


_MAX_NAME = 64
# Part of OpenAI's API but not of the schema, so that it does not appear in /openapi.json.
_UNSUPPORTED = {"multi_agent"}
_EMPTY_INPUT = (
    "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided."  # OpenAI's quotes
)


def parse_create(values: dict[str, Any]) -> CreateResponse:
    """Validate a body. Raises the API error of the first defect, in OpenAI's wording.

    Null means "not sent" for every parameter except `model` and `input`.
    """
    for name, value in values.items():
        # Clients of Chat Completions make this mistake; OpenAI answers it with the same message.
        if name == "messages":
            raise UnsupportedParameter(
                "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to 'input'.",
                param=name,
            )
        if name in _UNSUPPORTED and value is not None:
            raise UnsupportedParameter(f"The parameter '{name}' is not supported by this server.", param=name)
        if name not in CreateResponse.model_fields and name not in _UNSUPPORTED:
            # Cut to a bounded length: names come from the client, and fuzzy matching is quadratic.
            near = get_close_matches(name[:_MAX_NAME], CreateResponse.model_fields, n=1)
            raise UnknownParameter(name[:_MAX_NAME], suggestion=near[0] if near else None)
    # For `model` and `input` null is a type error, as in OpenAI's API.
    sent = {name: value for name, value in values.items() if value is not None or name in {"model", "input"}}
    if "model" in sent and sent["model"] is None:
        raise InvalidType("model", expected="a string", got="null")
    if "input" not in sent:
        if "prompt" not in sent:
            raise MissingParameter("input")
        sent["input"] = []
    # No input is needed if the request contains previous messages.
    if sent["input"] == "" and sent.get("previous_input_messages"):
        sent["input"] = []
    # A request without input must have some other source of context.
    elsewhere = {"previous_response_id", "conversation", "prompt"} & sent.keys() or sent.get("previous_input_messages")
    if sent["input"] in ("", []) and not elsewhere:
        raise MissingParameter("input", message=_EMPTY_INPUT)
    try:
        body = validate_without_nulls(CreateResponse, sent)
    except ValidationError as error:
        raise tool_defect(error) or first_defect(error) from error
    # A prompt may provide parameters on which others depend, so a request with a prompt is checked after the prompt is
    # resolved.
    if body.prompt is None:
        check_combinations(body)
    return body


def add_tools(*tools: type[ToolParam]) -> None:
    """Add the schemas of hosted tools, each under all values of its `type`.

    Call it before the first request. The schema of the hosted shell replaces the schema of the client's shell, because
    it includes both.
    """
    for tool in tools:
        TOOLS.update(dict.fromkeys(get_args(tool.model_fields["type"].annotation), tool))
    for model in (KindChoice, AllowedTools, LoadedTools, CreateResponse):
        model.model_rebuild(force=True)
    lenient_validator.cache_clear()


def check_combinations(body: CreateResponse) -> None:
    """Raise the API error of parameters that are invalid together or not supported.

    Without these checks, a parameter would be ignored silently or would confuse the model.
    """
    if not body.model:
        raise MissingParameter("model")
    _refuse_unsupported_values(body)
    if body.moderation and not body.generates:
        raise InvalidValue(
            "The parameter 'moderation' requires generated output, but the request does not generate any.",
            param="moderation",
        )
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
        raise InvalidValue(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )


def _check_compaction_trigger(body: CreateResponse) -> None:
    # Items after a trigger would be neither compacted nor answered. A text has no items: iterating over its characters
    # took 0.8 s for 9 MB.
    items = () if isinstance(body.input, str) else body.input[:-1]
    for index, item in enumerate(items):
        if isinstance(item, CompactionTrigger):
            raise InvalidValue(
                "An item of type 'compaction_trigger' must be the last item of the input.", param=f"input[{index}]"
            )
    if body.compacts and not body.generates:
        raise InvalidValue(
            "An item of type 'compaction_trigger' cannot be used when 'generate' is false.", param="generate"
        )


def _check_background(body: CreateResponse) -> None:
    # The client can read a background response only by its id.
    if body.store is False:
        raise InvalidValue(
            "Background sampling requires `store=true`; stateless requests are rejected.", param="background"
        )
    if not body.generates:
        raise InvalidValue(
            "The parameter 'background' requires generated output, but the request does not generate any.",
            param="background",
        )


def _refuse_unsupported_values(body: CreateResponse) -> None:
    if body.reasoning and body.reasoning.mode not in {None, "standard"}:
        raise UnsupportedValue(
            "Reasoning modes other than 'standard' are not supported by this server.", param="reasoning.mode"
        )
    if body.may_wait and not body.background:
        raise InvalidValue(
            "Completion windows other than 'soonest' require `background=true`.",
            param="background_options.completion_window",
        )
    if body.background_options and body.background_options.continuation_id is not None:
        # The parameter determines the order of requests with longer completion windows.
        raise UnsupportedParameter(
            "The parameter 'background_options.continuation_id' is not supported by this server.",
            param="background_options.continuation_id",
        )
    if body.background_options and body.background_options.wait_for_approval and not body.background:
        raise InvalidValue(
            "The parameter 'background_options.wait_for_approval' requires 'background' to be true.",
            param="background_options.wait_for_approval",
        )
    if body.image and body.image.context_compression == "enabled":
        raise UnsupportedValue("Image compression is not supported by this server.", param="image.context_compression")
    if body.access_programs and body.access_programs.cyber not in {None, "standard"}:
        raise AccessProgramNotGranted(
            f"This team is not part of the access program '{body.access_programs.cyber}'.",
            param="access_programs.cyber",
        )

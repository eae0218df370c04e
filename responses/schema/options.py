"""Objects among the parameters: reasoning, stream, caching, compaction, moderation, prompts and text formats."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    GetPydanticSchema,
    ValidationError,
    WithJsonSchema,
)

from conversations.items import MAX_ITEMS, MAX_TEXT, ConfigurationUpdate, InputPart, reject_additional_fields
from core.errors import InvalidJsonSchema
from core.http.nulls import validate_without_nulls
from core.http.validation import ConversationId, PromptId, ResponseId, Schema, first_defect
from core.http.wire import BY_TYPE, STRING_OR, Wire
from engine.constraints.json_schema import schema_defect
from responses.schema.tools import NAME

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryStyle = Literal["auto", "concise", "detailed"]


# More generous than `metadata`: Codex describes its session and the repository in values of several kilobytes.
ClientMetadata = Annotated[
    dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=65_536)]], Field(max_length=64)
]
"""Information that a client sends about itself, such as its session."""


class StreamOptions(Wire):
    """Options for streaming responses."""

    include_obfuscation: bool | None = None
    # Any string, because it has no effect: summaries are always sent in full and in order.
    reasoning_summary_delivery: Annotated[str, Field(max_length=64)] | None = None


class ConversationParam(Wire):
    """The conversation that this response belongs to, given as an object or by its id alone."""

    id: ConversationId


# An id alone is converted to an object, so that the rest of the code handles only one form.
def _from_id(value: str) -> ConversationParam:
    return ConversationParam.model_construct(id=value)


# This JSON Schema is written by hand, because the generated one would repeat the object without its name.
_ID_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 64}
_REFERENCE_SCHEMA = {
    "type": "object",
    "properties": {"id": _ID_SCHEMA},
    "required": ["id"],
    "additionalProperties": False,
}
_IdOrObject = Annotated[Annotated[ConversationId, AfterValidator(_from_id)] | ConversationParam, STRING_OR]
# After validation, both forms have the same type.
ConversationReference = Annotated[
    ConversationParam,
    GetPydanticSchema(lambda _, handler: handler.generate_schema(_IdOrObject)),
    WithJsonSchema({"anyOf": [_ID_SCHEMA, _REFERENCE_SCHEMA]}),
]


class ReasoningParam(Wire):
    """Configuration options for reasoning models."""

    effort: Effort | None = None
    summary: SummaryStyle | None = None
    # The deprecated name of `summary`, which older SDKs still send.
    generate_summary: SummaryStyle | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    # Any string, so that an unsupported mode can be reported by name.
    mode: str | None = None

    @property
    def style(self) -> str | None:
        """The style of the reasoning summary, from `summary` or the deprecated `generate_summary`."""
        return self.summary or self.generate_summary


class PromptCacheOptions(Wire):
    """Options for caching the prompt upstream."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: ResponseId | None = None


class ImageOptions(Wire):
    """Options for processing input images."""

    context_compression: Literal["auto", "enabled", "disabled"] | None = None


class AccessPrograms(Wire):
    """OpenAI programs that grant access to more capabilities of a model."""

    cyber: Literal["standard", "daybreak_blue", "daybreak_red"] | None = None


MAX_WAIT_SECONDS = 90 * 24 * 3600
"""Maximum time for which a response can wait for a decision."""


class BackgroundOptions(Wire):
    """Options of a background response."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = None
    # Not part of OpenAI's API.
    wait_for_approval: bool | None = None
    approval_wait_seconds: Annotated[int, Field(ge=1, le=MAX_WAIT_SECONDS)] | None = None


class ContextManagement(Wire):
    """Context management configuration. Without a threshold, compaction depends on the model's context window."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1000)] | None = None


class ModerationMode(Wire):
    """Moderation mode: `score` only reports flagged content, `block` also stops the response."""

    mode: Literal["score", "block"]


class ModerationPolicy(Wire):
    """Moderation modes for the input and the output."""

    input: ModerationMode | None = None
    output: ModerationMode | None = None


class ModerationParam(Wire):
    """Moderation of the input and the output of a response with a moderation model."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    policy: ModerationPolicy | None = None

    def blocks(self, side: Literal["input", "output"]) -> bool:
        """Return True if flagged content on this side stops the response."""
        mode = getattr(self.policy, side) if self.policy else None
        return mode is not None and mode.mode == "block"


Variable = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT)] | Annotated[InputPart, AfterValidator(reject_additional_fields)],
    STRING_OR,
]


class PromptParam(Wire):
    """Reference to a prompt template and its variables."""

    id: PromptId
    version: Annotated[str, Field(max_length=20)] | None = None
    variables: Annotated[dict[str, Variable], Field(max_length=MAX_ITEMS)] | None = None


class TextFormat(Wire):
    """Default response format. Used to generate text responses."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """JSON object response format. An older method of generating JSON responses; `json_schema` is recommended."""

    type: Literal["json_object"]


class JsonSchemaFormat(Wire):
    """JSON Schema response format. Used to generate structured JSON responses."""

    type: Literal["json_schema"]
    name: Annotated[str, NAME]
    # The SDK dumps `schema` as `schema_`, because pydantic reserves the name.
    json_schema: dict[str, Any] = Field(
        validation_alias=AliasChoices("schema", "schema_"), serialization_alias="schema"
    )
    description: str | None = None
    strict: bool | None = None


Format = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, BY_TYPE]


class TextParam(Wire):
    """Configuration options for a text response from the model."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def check_schema(given: JsonSchemaFormat, *, param: str = "text.format.schema") -> None:
    """Raise `BadRequest` for an invalid JSON Schema, which no output could match."""
    # Checked here, because otherwise an upstream would reject the schema later with its own message.
    if (wrong := schema_defect(given.json_schema)) is not None:
        raise InvalidJsonSchema(f"Invalid schema for response_format '{given.name}': {wrong}.", param=param)


class ReasoningUpdate(Wire):
    """Reasoning options from this item on."""

    effort: Effort | None = None


class TextUpdate(Wire):
    """Text format of the output from this item on."""

    format: Annotated[TextFormat | JsonSchemaFormat, BY_TYPE]


def check_updates(given: Any, *, param: str = "input") -> None:
    """Raise the API error of an invalid update among the items; `param` is the path of the items."""
    if isinstance(given, str):
        return
    for index, item in enumerate(given):
        if isinstance(item, ConfigurationUpdate):
            where = f"{param}[{index}]"
            if item.reasoning is not None:
                _validated(ReasoningUpdate, item.reasoning, f"{where}.reasoning.")
            if item.text is not None:
                # Validation also removes nulls that SDK clients send for unset fields.
                text = _validated(TextUpdate, item.text, f"{where}.text.")
                if isinstance(text.format, JsonSchemaFormat):
                    check_schema(text.format, param=f"{where}.text.format.schema")
                    # Clients that dump the SDK's objects send pydantic's alias of the field.
                    if "schema_" in item.text["format"]:
                        item.text["format"]["schema"] = item.text["format"].pop("schema_")


def _validated(schema: type[Schema], values: dict[str, Any], prefix: str) -> Schema:
    try:
        return validate_without_nulls(schema, values)
    except ValidationError as error:
        raise first_defect(error, prefix=prefix) from error

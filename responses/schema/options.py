"""The objects among the parameters: of reasoning, of the stream, of caching and compaction, of judging, of a prompt.

Source: sections 1.1.1 and 3.5 of the API surface specification.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, WithJsonSchema, model_validator

from conversations.items import MAX_ITEMS, MAX_TEXT, InputPart, Wire
from kernel.validation import TAG

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryStyle = Literal["auto", "concise", "detailed"]


class StreamOptions(Wire):
    """Options of the stream itself."""

    include_obfuscation: bool | None = None


class ConversationParam(Wire):
    """The conversation that a response continues; its id alone is enough."""

    id: Annotated[str, Field(min_length=1, max_length=64)]

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value


_ID_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 64}
_REFERENCE_SCHEMA = {
    "type": "object",
    "properties": {"id": _ID_SCHEMA},
    "required": ["id"],
    "additionalProperties": False,
}
ConversationReference = Annotated[ConversationParam, WithJsonSchema({"anyOf": [_ID_SCHEMA, _REFERENCE_SCHEMA]})]


class ReasoningParam(Wire):
    """How hard the model is to think, and what is shown of it."""

    effort: Effort | None = None
    summary: SummaryStyle | None = None
    generate_summary: SummaryStyle | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None

    @property
    def style(self) -> str | None:
        """How it is to be summarised, under the name of today or under the old one."""
        return self.summary or self.generate_summary


class PromptCacheOptions(Wire):
    """What the upstream may keep of a prompt, and for how long."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: Annotated[str, Field(max_length=64)] | None = None


class ImageOptions(Wire):
    """What may be done to images on their way."""

    context_compression: Literal["auto", "enabled", "disabled"] | None = None


class AccessPrograms(Wire):
    """Programs of OpenAI's that open more of a model."""

    cyber: Literal["standard", "daybreak_blue", "daybreak_red"] | None = None


class ContextManagement(Wire):
    """What becomes of a conversation that grows long. Without a threshold the model's window says what long is."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1000)] | None = None


class ModerationMode(Wire):
    """Whether what is flagged is only shown, or stops the response."""

    mode: Literal["score", "block"]


class ModerationPolicy(Wire):
    """What becomes of a judgement."""

    input: ModerationMode | None = None
    output: ModerationMode | None = None


class ModerationParam(Wire):
    """Which model judges the input and the output of a response."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    policy: ModerationPolicy | None = None

    def blocks(self, side: Literal["input", "output"]) -> bool:
        """Whether what is flagged on this side stops the response."""
        mode = getattr(self.policy, side) if self.policy else None
        return mode is not None and mode.mode == "block"


def _variable_tag(value: Any) -> str:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}part"


Variable = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT), Tag(f"{TAG}text")] | Annotated[InputPart, Tag(f"{TAG}part")],
    Discriminator(_variable_tag),
]


class PromptParam(Wire):
    """A prompt that the team has stored, and what its variables stand for."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    version: Annotated[str, Field(max_length=20)] | None = None
    variables: Annotated[dict[str, Variable], Field(max_length=MAX_ITEMS)] | None = None

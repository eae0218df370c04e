"""Messages, reasoning, and items that change how a conversation continues."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from conversations.items.base import MAX_ID, ItemBase, Status
from conversations.items.parts import (
    InputContent,
    InputPart,
    InputText,
    OutputContent,
    OutputPart,
    OutputText,
    ReasoningText,
    SummaryText,
    input_part,
    output_part,
)
from core.http.wire import Wire

Phase = Literal["commentary", "final_answer"]


class InputMessage(ItemBase):
    """A message of the user, system or developer."""

    prefix = "msg"
    from_clients = True

    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "developer"]
    content: InputContent
    status: Status | None = None
    # OpenAI's schema has this field for every role, though only assistant messages use it.
    phase: Phase | None = None

    def parts(self) -> list[InputPart]:
        """Return the content as parts. A string becomes one text part."""
        return [InputText(text=self.content)] if isinstance(self.content, str) else list(self.content)

    @override
    def wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "status": self.status or "completed",
            "role": self.role,
            "content": [input_part(part) for part in self.parts()],
        }
        if self.phase is not None:
            body["phase"] = self.phase
        return {**body, **self.additional} if self.model_extra else body


class AssistantMessage(ItemBase):
    """A message of the model."""

    prefix = "msg"

    type: Literal["message"] | None = "message"
    role: Literal["assistant"] = "assistant"
    content: OutputContent
    status: Status | None = None
    phase: Phase | None = None

    def parts(self) -> list[OutputPart]:
        """Return the content as parts. A string becomes one text part."""
        return [OutputText(text=self.content)] if isinstance(self.content, str) else list(self.content)

    @override
    def wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "status": self.status or "completed",
            "role": "assistant",
            "content": [output_part(part) for part in self.parts()],
        }
        if self.phase is not None:
            body["phase"] = self.phase
        return {**body, **self.additional} if self.model_extra else body


class Reasoning(ItemBase):
    """Reasoning of the model, raw (`content`) or summarized (`summary`)."""

    prefix = "rs"

    type: Literal["reasoning"] = "reasoning"
    status: Status | None = None
    summary: list[SummaryText] = Field(default_factory=list)
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class Compaction(ItemBase):
    """The compacted conversation up to this point, encrypted for the server."""

    prefix = "cmp"

    type: Literal["compaction"] = "compaction"
    encrypted_content: str
    created_by: str | None = None


class CompactionTrigger(Wire):
    """A request to compact everything before it. Never stored."""

    type: Literal["compaction_trigger"] = "compaction_trigger"
    id: str | None = None


class ConfigurationUpdate(ItemBase):
    """A change of the reasoning or text settings for all later turns. The values are validated when they are used."""

    prefix = "cfg"
    from_clients = True

    type: Literal["configuration_update"] = "configuration_update"
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "ConfigurationUpdate":
        if self.reasoning is None and self.text is None:
            raise ValueError("at least one of 'reasoning' and 'text' must be given.")
        return self


class AdditionalTools(ItemBase):
    """Tools that the model can call in all later turns. They are validated when they are offered to the model."""

    prefix = "at"
    from_clients = True

    type: Literal["additional_tools"] = "additional_tools"
    role: Literal["developer"]
    tools: list[dict[str, Any]]


class ItemReference(Wire):
    """A reference to a stored item of the team. Resolved before anything else, and never stored itself."""

    type: Literal["item_reference"] | None = "item_reference"
    id: Annotated[str, Field(max_length=MAX_ID)]

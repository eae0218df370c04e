"""Messages and reasoning."""

from typing import Any, Literal

from pydantic import Field
from typing_extensions import override

from conversations.items.base import ItemBase, Status
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


class InputMessage(ItemBase):
    """A message of the user, system or developer."""

    prefix = "msg"

    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "developer"]
    content: InputContent
    status: Status | None = None

    def parts(self) -> list[InputPart]:
        """Return the content as parts. A string becomes one text part."""
        return [InputText(text=self.content)] if isinstance(self.content, str) else list(self.content)

    @override
    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": self.status or "completed",
            "role": self.role,
            "content": [input_part(part) for part in self.parts()],
        }


class AssistantMessage(ItemBase):
    """A message of the model."""

    prefix = "msg"

    type: Literal["message"] | None = "message"
    role: Literal["assistant"] = "assistant"
    content: OutputContent
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None

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
        return body


class Reasoning(ItemBase):
    """Reasoning of the model, raw (`content`) or summarized (`summary`)."""

    prefix = "rs"

    type: Literal["reasoning"] = "reasoning"
    status: Status | None = None
    summary: list[SummaryText] = Field(default_factory=list)
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None

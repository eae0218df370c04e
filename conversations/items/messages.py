"""What was said and thought: messages of both sides, and reasoning."""

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
    """Something said by the user, or by whoever wrote the system."""

    prefix = "msg"

    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "developer"]
    content: InputContent
    status: Status | None = None

    def parts(self) -> list[InputPart]:
        """The content as parts, whichever form it came in."""
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
    """Something the model said."""

    prefix = "msg"

    type: Literal["message"] | None = "message"
    role: Literal["assistant"] = "assistant"
    content: OutputContent
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    def parts(self) -> list[OutputPart]:
        """The content as parts, whichever form it came in."""
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
    """The model's thinking, raw (`content`) or summarised (`summary`)."""

    prefix = "rs"

    type: Literal["reasoning"] = "reasoning"
    status: Status | None = None
    summary: list[SummaryText] = Field(default_factory=list)
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None

"""A chat request as the rules see it: what was asked last, what was said before, what the tools answered."""

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from demo_upstream.models import DemoModel
from demo_upstream.request import DemoChatRequest


@dataclass(frozen=True)
class DemoToolResult:
    """What a tool answered."""

    tool: str
    text: str


@dataclass(frozen=True)
class DemoConversation:
    """The request and the model that it is for."""

    request: DemoChatRequest
    model: DemoModel

    @cached_property
    def asked(self) -> str:
        """The text of the last user message; empty without one."""
        return self.told[-1] if self.told else ""

    @cached_property
    def told(self) -> list[str]:
        """All that the user has said, oldest first."""
        return [message.text for message in self.request.messages if message.role == "user"]

    @cached_property
    def instructions(self) -> str:
        """The system and developer messages, one per line."""
        return "\n".join(message.text for message in self.request.messages if message.role in ("system", "developer"))

    @cached_property
    def previous_answer(self) -> str | None:
        """What the assistant said last."""
        said = [message.text for message in self.request.messages if message.role == "assistant" and message.text]
        return said[-1] if said else None

    @cached_property
    def results(self) -> list[DemoToolResult]:
        """The tool messages at the end of the history: those that nobody has reacted to."""
        names = {call.id: call.function.name for message in self.request.messages for call in message.calls}
        latest = list(takewhile(lambda message: message.role == "tool", reversed(self.request.messages)))
        return [DemoToolResult(names[message.tool_call_id or ""], message.text) for message in reversed(latest)]

    def attachments(self, kind: str) -> int:
        """How many parts of that type the last user message has."""
        asking = [message for message in self.request.messages if message.role == "user"][-1:]
        return sum(part.type == kind for message in asking for part in message.content)

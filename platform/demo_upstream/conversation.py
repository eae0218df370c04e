"""The view of a chat request that the rules use: last question, history and tool results."""

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from demo_upstream.models import DemoModel
from demo_upstream.request import DemoChatRequest


@dataclass(frozen=True)
class DemoToolResult:
    """Result of a tool call."""

    tool: str
    text: str


@dataclass(frozen=True)
class DemoConversation:
    """A chat request with the model that it is for."""

    request: DemoChatRequest
    model: DemoModel

    @cached_property
    def asked(self) -> str:
        """Text of the last user message, or an empty string."""
        return self.user_texts[-1] if self.user_texts else ""

    @cached_property
    def user_texts(self) -> list[str]:
        """Texts of all user messages, oldest first."""
        return [message.text for message in self.request.messages if message.role == "user"]

    @cached_property
    def instructions(self) -> str:
        """Texts of the system and developer messages, one per line."""
        return "\n".join(message.text for message in self.request.messages if message.role in ("system", "developer"))

    @cached_property
    def previous_answer(self) -> str | None:
        """Text of the last assistant message, if any."""
        texts = [message.text for message in self.request.messages if message.role == "assistant" and message.text]
        return texts[-1] if texts else None

    @cached_property
    def results(self) -> list[DemoToolResult]:
        """Tool messages at the end of the history, which have not been answered yet."""
        names = {call.id: call.function.name for message in self.request.messages for call in message.calls}
        latest = list(takewhile(lambda message: message.role == "tool", reversed(self.request.messages)))
        return [DemoToolResult(names[message.tool_call_id or ""], message.text) for message in reversed(latest)]

    def attachments(self, kind: str) -> int:
        """Return the number of parts of a type in the last user message."""
        asking = [message for message in self.request.messages if message.role == "user"][-1:]
        return sum(part.type == kind for message in asking for part in message.content)

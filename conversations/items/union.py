"""The closed union of all items. One function tells them apart, so that OpenAI's short forms (a message without `type`,
a reference with nothing but an `id`) are read as well."""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Discriminator, Tag, TypeAdapter

from conversations.items.base import by_type
from conversations.items.calls import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    LocalShellCall,
    LocalShellCallOutput,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
)
from conversations.items.hosted import (
    CodeInterpreterCall,
    FileSearchCall,
    ImageGenerationCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Program,
    ProgramOutput,
    WebSearchCall,
)
from conversations.items.messages import AssistantMessage, InputMessage, Reasoning
from conversations.items.settings import (
    AdditionalTools,
    Compaction,
    CompactionTrigger,
    ConfigurationUpdate,
    ItemReference,
)
from kernel.validation import TAG

_Message = InputMessage | AssistantMessage
_Typed = (
    Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | ComputerCall
    | ComputerCallOutput
    | ShellCall
    | ShellCallOutput
    | LocalShellCall
    | LocalShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | McpListTools
    | McpCall
    | McpApprovalRequest
    | McpApprovalResponse
    | FileSearchCall
    | WebSearchCall
    | CodeInterpreterCall
    | ImageGenerationCall
    | Program
    | ProgramOutput
    | Compaction
    | ConfigurationUpdate
    | AdditionalTools
)
StoredItem = _Message | _Typed
"""What the store holds, and what a model's context is made of."""


def _item_tag(item: Any) -> str | None:
    """The branch of an item: by `type`; a `role` alone makes a message, an `id` alone a reference."""
    tag = by_type(item)
    if tag is not None or not isinstance(item, dict):
        return tag
    if "role" in item:
        return f"{TAG}message"
    return f"{TAG}item_reference" if "id" in item else None


def _role_tag(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return f"{TAG}assistant" if role == "assistant" else f"{TAG}input"


def _tagged(classes: Iterable[Any]) -> Any:
    """The union of these items and of messages, told apart by `_item_tag`."""
    messages = Annotated[
        Annotated[InputMessage, Tag(f"{TAG}input")] | Annotated[AssistantMessage, Tag(f"{TAG}assistant")],
        Discriminator(_role_tag),
    ]
    branches: list[Any] = [Annotated[messages, Tag(f"{TAG}message")]]
    for cls in classes:
        kind = cls.model_fields["type"].default
        branches.append(Annotated[cls, Tag(f"{TAG}{kind}")])
    return Annotated[reduce(or_, branches), Discriminator(_item_tag)]


if TYPE_CHECKING:
    InputItem = StoredItem | CompactionTrigger | ItemReference
    """What a request may put into `input`."""
else:
    # Each class is named once, above: type checkers read that list as it stands, pydantic with the tags.
    InputItem = _tagged([*get_args(_Typed), CompactionTrigger, ItemReference])

_STORED: TypeAdapter[StoredItem] = TypeAdapter(_tagged(get_args(_Typed)))


def from_wire(body: dict[str, Any]) -> StoredItem:
    """A stored item's body as its typed value; raises `ValidationError` if the store holds something else."""
    return _STORED.validate_python(body)

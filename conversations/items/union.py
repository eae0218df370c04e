"""The closed union of all items.

Branches are chosen by a function instead of pydantic's discriminator field, because OpenAI accepts short forms: a
message without `type`, and a reference with only an `id`.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import AfterValidator, TypeAdapter

from conversations.items.base import MAX_TEXT, ItemBase, reject_additional_fields
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
from conversations.items.messages import (
    AdditionalTools,
    AssistantMessage,
    Compaction,
    CompactionTrigger,
    ConfigurationUpdate,
    InputMessage,
    ItemReference,
    Reasoning,
)
from core.http.wire import TAG, by_type, tagged

logger = logging.getLogger(__name__)
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
"""The items that are stored and make up a model's context."""


def _item_tag(item: Any) -> str | None:
    # Without a `type`, an object with a `role` is a message, and one with only an `id` is a reference.
    tag = by_type(item)
    if tag is not None or not isinstance(item, dict):
        return tag
    if "role" in item:
        return f"{TAG}message"
    return f"{TAG}item_reference" if "id" in item else None


def _role_tag(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return f"{TAG}assistant" if role == "assistant" else f"{TAG}input"


def _reject_additional_fields(item: Any) -> Any:
    # Items with an id were made by a server, whose fields may be newer than ours.
    if isinstance(item, ItemBase) and item.from_clients and item.id is None:
        reject_additional_fields(item)
    return item


def _tagged(classes: Iterable[Any]) -> Any:
    messages = tagged({"input": InputMessage, "assistant": AssistantMessage}, _role_tag)
    return tagged({"message": messages} | {cls.model_fields["type"].default: cls for cls in classes}, _item_tag)


if TYPE_CHECKING:
    InputItem = StoredItem | CompactionTrigger | ItemReference
    """The items that a request may send in `input`."""
else:
    # The classes are listed only once, above: type checkers read the plain union, pydantic the one with tags.
    InputItem = Annotated[
        _tagged([*get_args(_Typed), CompactionTrigger, ItemReference]), AfterValidator(_reject_additional_fields)
    ]

_STORED: TypeAdapter[StoredItem] = TypeAdapter(_tagged(get_args(_Typed)))
_CLASSES: Mapping[str, type[StoredItem]] = {cls.model_fields["type"].default: cls for cls in get_args(_Typed)}


def from_wire(body: dict[str, Any]) -> StoredItem:
    """Return a stored body as a typed item. Raises pydantic's `ValidationError` for anything else."""
    # A stored item names its class. With it, a message takes 2.3 us; the union, which calls Python functions for its
    # tags, takes 3.2 us.
    kind = body.get("type")
    if kind == "message":
        return (AssistantMessage if body.get("role") == "assistant" else InputMessage).model_validate(body)
    found = _CLASSES.get(kind) if isinstance(kind, str) else None
    return _STORED.validate_python(body) if found is None else found.model_validate(body)


def readable_items(bodies: Iterable[dict[str, Any]]) -> list[StoredItem]:
    """Return the readable stored bodies as typed items. Texts are cut at the length that a request may contain."""
    items: list[StoredItem] = []
    for body in bodies:
        item = _readable(body) or _readable(_shortened(body))
        if item is not None:
            items.append(item)
        else:
            # The item's conversation must remain usable. The content may be confidential and is not logged.
            logger.warning(
                "Skipped a stored item that cannot be read: %s of the type %s", body.get("id"), body.get("type")
            )
    return items


def _readable(body: dict[str, Any]) -> StoredItem | None:
    try:
        return from_wire(body)
    except ValueError:
        return None


def _shortened(value: Any) -> Any:
    """Return a body with its texts cut at the length that a request may contain. Models may write longer texts."""
    match value:
        case str():
            return value[:MAX_TEXT]
        case dict():
            return {name: _shortened(entry) for name, entry in value.items()}
        case list():
            return [_shortened(entry) for entry in value]
    return value

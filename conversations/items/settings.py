"""Items that change how the rest of a conversation is read or answered, and pointers to items."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conversations.items.base import MAX_ID, ItemBase, Wire


class Compaction(ItemBase):
    """What was said before, in a form that only the server can read."""

    prefix = "cmp"

    type: Literal["compaction"] = "compaction"
    encrypted_content: str
    created_by: str | None = None


class CompactionTrigger(Wire):
    """Asks for everything before it to be compacted; never stored."""

    type: Literal["compaction_trigger"] = "compaction_trigger"
    id: str | None = None


class ConfigurationUpdate(ItemBase):
    """How hard the model thinks, or in which format it answers, from here on. Checked where it takes effect."""

    prefix = "cfg"

    type: Literal["configuration_update"] = "configuration_update"
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "ConfigurationUpdate":
        if self.reasoning is None and self.text is None:
            message = "at least one of 'reasoning' and 'text' must be given."
            raise ValueError(message)
        return self


class AdditionalTools(ItemBase):
    """Tools that can be called from here on. Checked where they are offered."""

    prefix = "at"

    type: Literal["additional_tools"] = "additional_tools"
    role: Literal["developer"]
    tools: list[dict[str, Any]]


class ItemReference(Wire):
    """Points at an item that the team has stored; resolved before anything else happens, never stored itself."""

    type: Literal["item_reference"] | None = "item_reference"
    id: Annotated[str, Field(max_length=MAX_ID)]

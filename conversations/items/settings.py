"""Items that change how a conversation continues, and references to items."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conversations.items.base import MAX_ID, ItemBase, Wire


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
    """A change of reasoning or text settings from here on. Their values are validated where they take effect."""

    prefix = "cfg"

    type: Literal["configuration_update"] = "configuration_update"
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "ConfigurationUpdate":
        if self.reasoning is None and self.text is None:
            message = "at least one of 'reasoning' and 'text' must be given."
            raise ValueError(message)
        return self


class AdditionalTools(ItemBase):
    """Tools that the model can call from here on. They are validated where they are offered."""

    prefix = "at"

    type: Literal["additional_tools"] = "additional_tools"
    role: Literal["developer"]
    tools: list[dict[str, Any]]


class ItemReference(Wire):
    """A reference to a stored item of the team. Resolved before anything else, and never stored itself."""

    type: Literal["item_reference"] | None = "item_reference"
    id: Annotated[str, Field(max_length=MAX_ID)]

"""Detection of what models can do, from the documented fields in which servers describe them.

- vLLM, SGLang: `max_model_len`. llama.cpp: `meta.n_ctx`. Groq: `context_window`.
- OpenRouter: `context_length`, `architecture.input_modalities`, `supported_parameters`.
- Mistral: `max_context_length`, `capabilities.function_calling`, `.vision`, `.reasoning`.
- Anthropic: `max_input_tokens`, `capabilities.image_input.supported`, `.thinking.supported`.
- Fireworks: `context_length`, `supports_tools`, `supports_image_input`.
- Ollama and LM Studio describe their models in APIs of their own, see `routing.native_lists`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

_WINDOWS = ("max_model_len", "context_window", "context_length", "max_context_length", "max_input_tokens")
# The column of a model's context window.
_MOST_TOKENS = 2**31 - 1


class Support(StrEnum):
    """Support of a model for tools, images or reasoning.

    LIMITED: tools only with `tool_choice: auto`; reasoning only between <think> tags in the text.
    """

    YES = "yes"
    LIMITED = "limited"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """The known properties of a model."""

    context_window: int | None = None
    tools: Support = Support.UNKNOWN
    images: Support = Support.UNKNOWN
    reasoning: Support = Support.UNKNOWN

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities that differ from the defaults, for `Model`'s columns."""
        values: dict[str, Any] = {}
        if self.context_window is not None:
            values["context_window"] = self.context_window
        if self.tools in {Support.LIMITED, Support.NO}:
            values["forced_tool_choice"] = False
        if self.images is Support.NO:
            values["vision"] = False
        if self.reasoning is Support.LIMITED:
            values["think_tags"] = True
        elif self.reasoning is Support.NO:
            values["reasoning_efforts"] = ["none"]
        return values

    def with_known(self, other: "ModelDetails") -> "ModelDetails":
        """Return these details, replaced by those that are known in `other`."""
        unknown = (None, Support.UNKNOWN)
        values = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in values.items() if value not in unknown})


def details_of(entry: Mapping[str, Any]) -> ModelDetails:
    """Return what an entry of a list of models says about the model."""
    meta, architecture = _object(entry, "meta"), _object(entry, "architecture")
    windows = [*(entry.get(name) for name in _WINDOWS), meta.get("n_ctx")]
    abilities = _object(entry, "capabilities")
    parameters, modalities = entry.get("supported_parameters"), architecture.get("input_modalities")
    return ModelDetails(
        context_window=next((window for window in map(tokens, windows) if window is not None), None),
        tools=_first(
            contained("tools", parameters),
            stated(abilities.get("function_calling")),
            stated(entry.get("supports_tools")),
        ),
        images=_first(
            contained("image", modalities),
            stated(abilities.get("vision")),
            stated(_object(abilities, "image_input").get("supported")),
            stated(entry.get("supports_image_input")),
        ),
        reasoning=_first(
            contained("reasoning", parameters),
            stated(abilities.get("reasoning")),
            stated(_object(abilities, "thinking").get("supported")),
        ),
    )


def tokens(value: object) -> int | None:
    """Return a positive number of tokens, or None for any other value."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 < value <= _MOST_TOKENS else None  # type: ignore[operator, return-value]


def contained(name: str, names: object) -> Support:
    """Return whether a list of names contains a name; unknown if it is not a list."""
    return stated(name in names) if isinstance(names, list) else Support.UNKNOWN


def stated(value: object) -> Support:
    """Return the meaning of a boolean field; unknown if it has another type."""
    if not isinstance(value, bool):
        return Support.UNKNOWN
    return Support.YES if value else Support.NO


def _first(*found: Support) -> Support:
    return next((support for support in found if support is not Support.UNKNOWN), Support.UNKNOWN)


def _object(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def entries_of(body: object) -> Sequence[Mapping[str, Any]] | None:
    """Return the entries with an id in a list of models, or None if the document is not a list of models."""
    rows = body.get("data") if isinstance(body, dict) else None
    # Ollama without models returns null, beside the type of the document.
    if rows is None and isinstance(body, dict) and body.get("object") == "list" and "data" in body:
        rows = []
    if not isinstance(rows, list):
        return None
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

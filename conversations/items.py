"""Items: the closed union of what can stand in an input, an output or a conversation, as the wire writes it.

One class per shape; `InputItem` is their union, told apart by one function so that OpenAI's short forms (a message
without `type`, a reference with nothing but an `id`) are read as well. Ids and statuses are optional on the way in, so
that every output can be fed back unchanged; `wire()` fills what a stored item must have.
Source: sections 3.0 to 3.1c of the API surface specification.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter
from typing_extensions import override

from kernel.ids import new_id
from kernel.validation import TAG

Status = Literal["in_progress", "completed", "incomplete"]
MAX_ID = 255
# Of one list: validating takes time that everybody else waits for.
MAX_ITEMS = 10_000
MAX_TEXT = 10_485_760
MAX_IMAGE_URL = 20_971_520


class Wire(BaseModel):
    """A JSON object of the wire: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# -- content parts -----------------------------------------------------------------------------------------------------


class InputText(Wire):
    """Text that somebody gave to the model."""

    type: Literal["input_text"] = "input_text"
    text: Annotated[str, Field(max_length=MAX_TEXT)]


class InputImage(Wire):
    """An image by URL or data URL."""

    type: Literal["input_image"] = "input_image"
    image_url: Annotated[str, Field(max_length=MAX_IMAGE_URL)]
    detail: Literal["low", "high", "auto", "original"] | None = None
    file_id: None = None


class OutputText(Wire):
    """Text that the model wrote."""

    type: Literal["output_text"] = "output_text"
    text: Annotated[str, Field(max_length=MAX_TEXT)]
    annotations: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None


class Refusal(Wire):
    """The model's words when it declines."""

    type: Literal["refusal"] = "refusal"
    refusal: str


class SummaryText(Wire):
    """One paragraph of a reasoning summary."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class ReasoningText(Wire):
    """Raw reasoning."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


def _part_tag(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return None if kind is None else f"{TAG}{kind}"


InputPart = Annotated[
    Annotated[InputText, Tag(f"{TAG}input_text")] | Annotated[InputImage, Tag(f"{TAG}input_image")],
    Discriminator(_part_tag),
]
OutputPart = Annotated[
    Annotated[OutputText, Tag(f"{TAG}output_text")] | Annotated[Refusal, Tag(f"{TAG}refusal")],
    Discriminator(_part_tag),
]


def _text_tag(value: Any) -> str:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}parts"


InputContent = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT), Tag(f"{TAG}text")]
    | Annotated[list[InputPart], Field(max_length=MAX_ITEMS, fail_fast=True), Tag(f"{TAG}parts")],
    Discriminator(_text_tag),
]
OutputContent = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT), Tag(f"{TAG}text")]
    | Annotated[list[OutputPart], Field(max_length=MAX_ITEMS, fail_fast=True), Tag(f"{TAG}parts")],
    Discriminator(_text_tag),
]

# -- items -------------------------------------------------------------------------------------------------------------


class ItemBase(Wire):
    """What all stored items share."""

    prefix: ClassVar[str]

    id: Annotated[str, Field(max_length=MAX_ID)] | None = None

    def wire(self) -> dict[str, Any]:
        """The item as the API shows it: with an id and a status, without keys that nobody set."""
        raise NotImplementedError

    def with_id(self) -> dict[str, Any]:
        """`wire()` with a fresh id where the client gave none."""
        body = self.wire()
        if not body.get("id"):
            body["id"] = new_id(self.prefix)
        return body


class InputMessage(ItemBase):
    """Something said by the user, or by whoever wrote the system."""

    prefix = "msg"

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    content: InputContent
    status: Status | None = None

    def parts(self) -> list[InputText | InputImage]:
        """The content as parts, whichever form it came in."""
        return [InputText(text=self.content)] if isinstance(self.content, str) else list(self.content)

    @override
    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": self.status or "completed",
            "role": self.role,
            "content": [_input_part(part) for part in self.parts()],
        }


class AssistantMessage(ItemBase):
    """Something the model said."""

    prefix = "msg"

    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: OutputContent
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    def parts(self) -> list[OutputText | Refusal]:
        """The content as parts, whichever form it came in."""
        return [OutputText(text=self.content)] if isinstance(self.content, str) else list(self.content)

    @override
    def wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "status": self.status or "completed",
            "role": "assistant",
            "content": [_output_part(part) for part in self.parts()],
        }
        if self.phase is not None:
            body["phase"] = self.phase
        return body


class FunctionCall(ItemBase):
    """The model asks the client to call a function."""

    prefix = "fc"

    type: Literal["function_call"] = "function_call"
    call_id: Annotated[str, Field(min_length=1, max_length=64)]
    name: str
    arguments: str
    status: Status | None = None
    namespace: None = None
    caller: None = None
    created_by: str | None = None

    @override
    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status or "completed",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


class FunctionCallOutput(ItemBase):
    """The client's answer to a function call."""

    prefix = "fco"

    type: Literal["function_call_output"] = "function_call_output"
    call_id: Annotated[str, Field(min_length=1, max_length=64)]
    output: InputContent
    status: Status | None = None
    name: str | None = None
    namespace: None = None
    caller: None = None
    created_by: str | None = None

    @override
    def wire(self) -> dict[str, Any]:
        output = self.output if isinstance(self.output, str) else [_input_part(part) for part in self.output]
        return {
            "id": self.id,
            "type": "function_call_output",
            "status": self.status or "completed",
            "call_id": self.call_id,
            "output": output,
        }


class Reasoning(ItemBase):
    """The model's thinking, raw (`content`) or summarised (`summary`)."""

    prefix = "rs"

    type: Literal["reasoning"] = "reasoning"
    summary: list[SummaryText]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None

    @override
    def wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "type": "reasoning",
            "status": self.status or "completed",
            "summary": [{"type": "summary_text", "text": part.text} for part in self.summary],
        }
        if self.content is not None:
            body["content"] = [{"type": "reasoning_text", "text": part.text} for part in self.content]
        return body


class ItemReference(Wire):
    """Points at an item that the team has stored; resolved before anything else happens, never stored itself."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(max_length=MAX_ID)]


StoredItem = InputMessage | AssistantMessage | FunctionCall | FunctionCallOutput | Reasoning

_TYPED: dict[str, type[BaseModel]] = {
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": Reasoning,
    "item_reference": ItemReference,
}


def _item_tag(item: Any) -> str | None:
    """The branch of the union: by `type`, by `role` for messages, by a lone `id` for references."""
    if isinstance(item, BaseModel):
        return next(tag for cls, tag in _TAGS.items() if isinstance(item, cls))
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        return f"{TAG}assistant" if item.get("role") == "assistant" else f"{TAG}message"
    if kind is None:
        return f"{TAG}item_reference" if "id" in item else None
    return f"{TAG}{kind}"


_TAGS: dict[type[BaseModel], str] = {
    InputMessage: f"{TAG}message",
    AssistantMessage: f"{TAG}assistant",
    **{cls: f"{TAG}{kind}" for kind, cls in _TYPED.items()},
}

InputItem = Annotated[
    Annotated[InputMessage, Tag(f"{TAG}message")]
    | Annotated[AssistantMessage, Tag(f"{TAG}assistant")]
    | Annotated[FunctionCall, Tag(f"{TAG}function_call")]
    | Annotated[FunctionCallOutput, Tag(f"{TAG}function_call_output")]
    | Annotated[Reasoning, Tag(f"{TAG}reasoning")]
    | Annotated[ItemReference, Tag(f"{TAG}item_reference")],
    Discriminator(_item_tag),
]
"""What a request may put into `input`."""

_STORED: TypeAdapter[StoredItem] = TypeAdapter(
    Annotated[
        Annotated[InputMessage, Tag(f"{TAG}message")]
        | Annotated[AssistantMessage, Tag(f"{TAG}assistant")]
        | Annotated[FunctionCall, Tag(f"{TAG}function_call")]
        | Annotated[FunctionCallOutput, Tag(f"{TAG}function_call_output")]
        | Annotated[Reasoning, Tag(f"{TAG}reasoning")],
        Discriminator(_item_tag),
    ]
)


def from_wire(body: dict[str, Any]) -> StoredItem:
    """A stored item's body as its typed value; raises `ValidationError` if the store holds something else."""
    return _STORED.validate_python(body)


def plain_text(body: dict[str, Any]) -> str:
    """The words in an item's body, for previews; empty where there are none."""
    content = body.get("content") or body.get("summary") or body.get("output") or body.get("arguments") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _input_part(part: InputText | InputImage) -> dict[str, Any]:
    if isinstance(part, InputText):
        return {"type": "input_text", "text": part.text}
    return {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}


def _output_part(part: OutputText | Refusal) -> dict[str, Any]:
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": part.refusal}
    return {
        "type": "output_text",
        "text": part.text,
        "annotations": part.annotations or [],
        "logprobs": part.logprobs or [],
    }

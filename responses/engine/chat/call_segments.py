"""The calls of one turn while they are being written, each as the item that its tool makes of it.

A function's arguments and a custom tool's input leave piece by piece. A call with fields of its own (a computer's
actions, a patch) is shown once it is whole, since half of it could not be checked. Calls of hosted tools are not shown
here at all: the tool makes their items when it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson
from typing_extensions import override

from kernel.ids import new_id
from responses.engine.calls.client_tools import SHAPES, Shape, item_fields
from responses.engine.chat.json_string import StringProperty
from responses.engine.chat.segments import Segment
from responses.engine.events.types import (
    Body,
    CustomToolCallInputDelta,
    CustomToolCallInputDone,
    Event,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    ShellCallCommandAdded,
    ShellCallCommandDelta,
    ShellCallCommandDone,
)
from responses.engine.turn import Call, CallForm, FunctionTool

CUSTOM_INPUT = "input"
"""The property in which upstreams that know functions only write the input of a custom tool."""
Tools = Mapping[str, FunctionTool]
_WITHOUT_ITEM = {CallForm.HOSTED, CallForm.UNKNOWN}


class CallSegment(Segment):
    """A call: opened once its name is known for sure, which is when its arguments begin.

    `native`: the upstream knows custom tools, and sends their input as it is.
    """

    prefix = "fc"
    stays_open = True

    def __init__(
        self, *, upstream_id: str | None, call_id: str | None, tools: Tools | None = None, native: bool = False
    ) -> None:
        super().__init__()
        self.call_id = call_id or new_id("call")
        self.upstream_id = upstream_id
        self.name = ""
        self.arguments: list[str] = []
        self.native = native
        self._tools = tools or {}
        self._known: _Face | None = None

    @property
    @override
    def ready(self) -> bool:
        """Whether the call can be shown: until its arguments begin, more of its name may come."""
        return bool(self.name and self.arguments) and self._face.streams

    @property
    @override
    def hidden(self) -> bool:
        """Whether its tool makes the item, or nobody does."""
        return bool(self.name and self.arguments) and self.tool.form in _WITHOUT_ITEM

    @property
    @override
    def is_empty(self) -> bool:
        return not self.name or self.tool.form in _WITHOUT_ITEM or not self._face.is_showable

    @property
    @override
    def is_whole(self) -> bool:
        return self.native or not self.arguments or is_object("".join(self.arguments))

    @property
    def tool(self) -> FunctionTool:
        """The tool that is called. Where no tools were declared at all, it is some function of the client's."""
        found = self._tools.get(self.name)
        if found is not None:
            return found
        form = CallForm.CUSTOM if self.native else CallForm.FUNCTION
        return FunctionTool(name=self.name, form=CallForm.UNKNOWN if self._tools else form)

    @property
    def text(self) -> str:
        """What was called for: a custom tool's input, or the arguments as JSON."""
        return self._face.text if self.name else ""

    def as_call(self) -> Call:
        """A whole call, as the loop sees it: by the name that the upstream knows."""
        text = self.text if self.tool.form is CallForm.CUSTOM else self.text or "{}"
        return Call(item_id=self.id, call_id=self.call_id, name=self.name, arguments=text)

    def is_over(self, upstream_id: str | None, name: str | None, arguments: str | None) -> bool:
        """Whether a delta at this call's index begins another call: it has another id, or none and whole arguments."""
        if upstream_id and self.upstream_id:
            return upstream_id != self.upstream_id
        return bool(name and arguments and self.arguments) and self._may_be_whole and is_object("".join(self.arguments))

    @property
    def _may_be_whole(self) -> bool:
        """By the last character: reading all again for each piece of long arguments takes for ever."""
        last = next((piece for piece in reversed(self.arguments) if not piece.isspace()), "")
        return last.rstrip().endswith("}")

    def adopt(self, upstream_id: str, call_id: str | None) -> None:
        """Take an id that came late, unless another one has been shown already."""
        self.upstream_id = upstream_id
        if call_id and not self.live:
            self.call_id = call_id

    def write(self, name: str | None, arguments: str | None) -> list[Event]:
        """Append. A name may come in pieces, or again and again, whole or as far as it is known."""
        if name and not self.live:
            self.name = name if name.startswith(self.name) else self.name + name
        if not arguments:
            return []
        self.arguments.append(arguments)
        return self._face.grow(arguments) if self.live else []

    @override
    def open_at(self, output_index: int) -> list[Event]:
        self.id = new_id(self._face.prefix)
        return super().open_at(output_index)

    @override
    def flush(self) -> list[Event]:
        text = "".join(self.arguments)
        return self._face.grow(text) if text else []

    @override
    def finish(self) -> list[Event]:
        events: list[Event] = []
        if not self.arguments and self.status == "completed" and not self.native:
            self.arguments.append("{}")
            events += self._face.grow("{}")
        return [*events, *self._face.finish()]

    @override
    def body(self, *, empty: bool = False) -> Body:
        return self._face.body(empty=empty)

    @property
    def _face(self) -> "_Face":
        """How the call looks on the wire; final once it is live, which no more of the name can change."""
        if self._known is None or self._known.tool.name != self.name:
            shape = SHAPES.get(self.tool.form)
            if shape is not None:
                self._known = _Shaped(self, shape)
            else:
                self._known = _Custom(self) if self.tool.form is CallForm.CUSTOM else _Function(self)
        return self._known


class _Face(ABC):
    """One form of item that a call can take."""

    prefix = "fc"
    streams = True

    def __init__(self, call: CallSegment) -> None:
        self.call = call
        self.tool = call.tool

    @property
    def is_showable(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return "".join(self.call.arguments)

    def grow(self, arguments: str) -> list[Event]:
        """The events of some more arguments of a live call."""
        return []

    def finish(self) -> list[Event]:
        """The events before the item is done."""
        return []

    @abstractmethod
    def body(self, *, empty: bool) -> Body: ...

    def head(self, kind: str) -> Body:
        """What all calls have."""
        return {"id": self.call.id, "type": kind, "status": self.call.status, "call_id": self.call.call_id}

    def named(self, kind: str) -> Body:
        """What calls of tools have that the client has named."""
        body = {**self.head(kind), "name": self.tool.label or self.tool.name}
        if self.tool.namespace is not None:
            body["namespace"] = self.tool.namespace
        if self.tool.asynchronous:
            body["async"] = True
        return body


class _Function(_Face):
    """A function call, whose arguments are JSON."""

    @override
    def grow(self, arguments: str) -> list[Event]:
        call = self.call
        return [FunctionCallArgumentsDelta(item_id=call.id, output_index=call.output_index, delta=arguments)]

    @override
    def finish(self) -> list[Event]:
        call = self.call
        name = self.tool.label or self.tool.name
        return [
            FunctionCallArgumentsDone(item_id=call.id, output_index=call.output_index, name=name, arguments=self.text)
        ]

    @override
    def body(self, *, empty: bool) -> Body:
        return {**self.named("function_call"), "arguments": "" if empty else self.text}


class _Custom(_Face):
    """A custom tool call, whose input is free text."""

    prefix = "ctc"

    def __init__(self, call: CallSegment) -> None:
        super().__init__(call)
        self._read: list[str] = []
        self._property = StringProperty(CUSTOM_INPUT)

    @property
    @override
    def text(self) -> str:
        return "".join(self._read)

    @override
    def grow(self, arguments: str) -> list[Event]:
        return self._said(arguments if self.call.native else self._property.feed(arguments))

    @override
    def finish(self) -> list[Event]:
        call = self.call
        last = [] if call.native else self._said(self._property.end())
        return [*last, CustomToolCallInputDone(item_id=call.id, output_index=call.output_index, input=self.text)]

    @override
    def body(self, *, empty: bool) -> Body:
        return {**self.named("custom_tool_call"), "input": "" if empty else self.text}

    def _said(self, text: str) -> list[Event]:
        if not text:
            return []
        self._read.append(text)
        return [CustomToolCallInputDelta(item_id=self.call.id, output_index=self.call.output_index, delta=text)]


class _Shaped(_Face):
    """A call with fields of its own. Until it is whole nothing of it is shown; what was cut is shown without them."""

    streams = False

    def __init__(self, call: CallSegment, shape: Shape) -> None:
        super().__init__(call)
        self._shape = shape
        self._checked: tuple[str, Body | None] | None = None
        self.prefix = shape.prefix

    @property
    @override
    def is_showable(self) -> bool:
        return self._fields is not None

    @override
    def finish(self) -> list[Event]:
        index = self.call.output_index
        events: list[Event] = []
        commands = self._commands if self.tool.form is CallForm.SHELL else []
        for position, command in enumerate(commands):
            place: dict[str, Any] = {"output_index": index, "command_index": position}
            events += [
                ShellCallCommandAdded(**place, command=""),
                ShellCallCommandDelta(**place, delta=command),
                ShellCallCommandDone(**place, command=command),
            ]
        return events

    @override
    def body(self, *, empty: bool) -> Body:
        fields = self._fields or {}
        if empty and self.tool.form is CallForm.SHELL:
            fields = {**fields, "action": {**fields["action"], "commands": []}}
        return {**self.head(self._shape.item), **fields}

    @property
    def _commands(self) -> list[str]:
        fields = self._fields
        return list(fields["action"]["commands"]) if fields else []

    @property
    def _fields(self) -> Body | None:
        if self._checked is None or self._checked[0] != self.text:
            self._checked = (self.text, item_fields(self.tool, self.text))
        cut = self.call.outcome == "incomplete"
        return self._shape.truncated if cut and self._checked[1] is None else self._checked[1]


def is_object(text: str) -> bool:
    """Whether this is a whole JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False

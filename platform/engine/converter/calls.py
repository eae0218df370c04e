"""Segments of calls, each converted to the item type of its tool.

Arguments of functions and inputs of custom tools are streamed. A call whose item has specific fields (computer actions,
a patch) is emitted when it is complete, because a part of it cannot be validated. Calls of hosted tools emit nothing:
the tool creates their items when it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson
from typing_extensions import override

from core.ids import new_id
from engine.calls.client_tools import SHAPES, Shape, item_fields
from engine.converter.json_string import StringProperty
from engine.converter.segments import Segment
from engine.events.types import (
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
from engine.turn import Call, CallForm, FunctionTool

CUSTOM_INPUT = "input"
"""Property that holds the input of a custom tool when the upstream only knows functions."""
Tools = Mapping[str, FunctionTool]
_WITHOUT_ITEM = {CallForm.HOSTED, CallForm.UNKNOWN}


class CallSegment(Segment):
    """Call of a tool. It is opened when its arguments start, because until then its name may be continued.

    `native`: the upstream supports custom tools and sends their input without a JSON wrapper.
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
        self._cached_format: _CallFormat | None = None

    @property
    @override
    def ready(self) -> bool:
        return bool(self.name and self.arguments) and self._format.streams and not self.is_blank

    @property
    def is_blank(self) -> bool:
        """True if the arguments are an empty object that no client has seen, which the real arguments may replace."""
        return not self.live and len(self.arguments) == 1 and self.arguments[0].strip() == "{}"

    @property
    @override
    def hidden(self) -> bool:
        return bool(self.name and self.arguments) and self.tool.form in _WITHOUT_ITEM

    @property
    @override
    def is_empty(self) -> bool:
        return not self.name or self.tool.form in _WITHOUT_ITEM or not self._format.has_item

    @property
    @override
    def is_whole(self) -> bool:
        # A call without any arguments counts as incomplete: its arguments may be missing.
        return self.native or is_object("".join(self.arguments))

    @property
    def tool(self) -> FunctionTool:
        """The called tool. If no tools are declared, every call counts as a call of a client's tool."""
        found = self._tools.get(self.name)
        if found is not None:
            return found
        form = CallForm.CUSTOM if self.native else CallForm.FUNCTION
        return FunctionTool(name=self.name, form=CallForm.UNKNOWN if self._tools else form)

    @property
    def text(self) -> str:
        """Input of a custom tool, or the arguments as JSON text."""
        return self._format.text if self.name else ""

    def as_call(self) -> Call:
        """Return the complete call, with the upstream's name of the tool."""
        # Some models send no arguments at all for functions without parameters.
        text = self.text if self.tool.form is CallForm.CUSTOM else self.text or "{}"
        return Call(item_id=self.id, call_id=self.call_id, name=self.name, arguments=text)

    @property
    def may_be_whole(self) -> bool:
        """False if the arguments are certainly not a complete object."""
        # A cheap test by the last character, because parsing long arguments again for each piece takes quadratic time.
        last = next((piece for piece in reversed(self.arguments) if not piece.isspace()), "")
        return last.rstrip().endswith("}")

    @property
    def is_cut(self) -> bool:
        """True if the arguments are only the beginning of a JSON object."""
        text = "".join(self.arguments)
        return not self.native and text.lstrip().startswith("{") and not is_object(text)

    def adopt(self, upstream_id: str, call_id: str | None) -> None:
        """Set an id that arrived late. The call id stays if it was already emitted."""
        self.upstream_id = upstream_id
        if call_id and not self.live:
            self.call_id = call_id

    def write(self, name: str | None, arguments: str | None) -> list[Event]:
        """Append to the name and the arguments."""
        # Upstreams send a name once, in pieces, or repeat it in each delta.
        if name and not self.live:
            self.name = name if name.startswith(self.name) else self.name + name
        if not arguments:
            return []
        self.arguments.append(arguments)
        return self._format.extend(arguments) if self.live else []

    @override
    def open_at(self, output_index: int) -> list[Event]:
        # The prefix of the id depends on the item type, which is not known before.
        self.id = new_id(self._format.prefix)
        return super().open_at(output_index)

    @override
    def flush(self) -> list[Event]:
        text = "".join(self.arguments)
        return self._format.extend(text) if text else []

    @override
    def finish(self) -> list[Event]:
        events: list[Event] = []
        # Clients parse the arguments as JSON, so a call without any gets an empty object.
        if not self.arguments and self.status == "completed" and not self.native:
            self.arguments.append("{}")
            events += self._format.extend("{}")
        return [*events, *self._format.finish()]

    @override
    def body(self, *, empty: bool = False) -> Body:
        return self._format.body(empty=empty)

    @property
    def _format(self) -> "_CallFormat":
        # The format depends on the name, so it is final only when the call is live.
        if self._cached_format is None or self._cached_format.tool.name != self.name:
            shape = SHAPES.get(self.tool.form)
            if shape is not None:
                self._cached_format = _ShapedFormat(self, shape)
            else:
                self._cached_format = (
                    _CustomFormat(self) if self.tool.form is CallForm.CUSTOM else _FunctionFormat(self)
                )
        return self._cached_format


class _CallFormat(ABC):
    """Conversion of a call to one type of item."""

    prefix = "fc"
    streams = True

    def __init__(self, call: CallSegment) -> None:
        self.call = call
        self.tool = call.tool

    @property
    def has_item(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return "".join(self.call.arguments)

    def extend(self, arguments: str) -> list[Event]:
        """Return the events of further arguments of a live call."""
        return []

    def finish(self) -> list[Event]:
        """Return the events that precede `output_item.done`."""
        return []

    @abstractmethod
    def body(self, *, empty: bool) -> Body: ...

    def head(self, kind: str) -> Body:
        return {"id": self.call.id, "type": kind, "status": self.call.status, "call_id": self.call.call_id}

    def named(self, kind: str) -> Body:
        body = {**self.head(kind), "name": self.tool.label or self.tool.name}
        if self.tool.namespace is not None:
            body["namespace"] = self.tool.namespace
        if self.tool.asynchronous:
            body["async"] = True
        return body


class _FunctionFormat(_CallFormat):
    """Function call with JSON arguments."""

    @override
    def extend(self, arguments: str) -> list[Event]:
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


class _CustomFormat(_CallFormat):
    """Custom tool call with free text as its input."""

    prefix = "ctc"

    def __init__(self, call: CallSegment) -> None:
        super().__init__(call)
        self._input: list[str] = []
        self._property = StringProperty(CUSTOM_INPUT)

    @property
    @override
    def text(self) -> str:
        return "".join(self._input)

    @override
    def extend(self, arguments: str) -> list[Event]:
        return self._append_input(arguments if self.call.native else self._property.feed(arguments))

    @override
    def finish(self) -> list[Event]:
        call = self.call
        last = [] if call.native else self._append_input(self._property.end())
        return [*last, CustomToolCallInputDone(item_id=call.id, output_index=call.output_index, input=self.text)]

    @override
    def body(self, *, empty: bool) -> Body:
        return {**self.named("custom_tool_call"), "input": "" if empty else self.text}

    def _append_input(self, text: str) -> list[Event]:
        if not text:
            return []
        self._input.append(text)
        return [CustomToolCallInputDelta(item_id=self.call.id, output_index=self.call.output_index, delta=text)]


class _ShapedFormat(_CallFormat):
    """Call whose item has specific fields. It is only emitted when complete; a cut call has placeholder fields."""

    streams = False

    def __init__(self, call: CallSegment, shape: Shape) -> None:
        super().__init__(call)
        self._shape = shape
        self._checked: tuple[str, Body | None] | None = None
        self.prefix = shape.prefix

    @property
    @override
    def has_item(self) -> bool:
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
        # The commands of a shell call follow in events of their own, so `output_item.added` has none.
        if empty and self.tool.form is CallForm.SHELL:
            fields = {**fields, "action": {**fields["action"], "commands": []}}
        return {**self.head(self._shape.item), **fields}

    @property
    def _commands(self) -> list[str]:
        fields = self._fields
        return list(fields["action"]["commands"]) if fields else []

    @property
    def _fields(self) -> Body | None:
        # Validation against the schema is expensive, so its result is cached per text.
        if self._checked is None or self._checked[0] != self.text:
            self._checked = (self.text, item_fields(self.tool, self.text))
        cut = self.call.outcome == "incomplete"
        return self._shape.truncated if cut and self._checked[1] is None else self._checked[1]


def arguments_text(arguments: object) -> str | None:
    """Return arguments as text. Some servers send them as a JSON object."""
    return arguments if arguments is None or isinstance(arguments, str) else orjson.dumps(arguments).decode()


def is_object(text: str) -> bool:
    """Return True if the text is a complete JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False

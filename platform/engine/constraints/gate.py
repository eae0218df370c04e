"""Gate: holds back output that may turn out to be invalid until its turn has ended and was validated.

It holds back everything from the first doubtful item on: text when a format or a call is required, or a call whose
input has a grammar. Reasoning is never held back, and a turn without constraints needs no gate.
"""

from collections.abc import Callable, Sequence

from engine.events.types import Body, Event, OutputItemAdded
from engine.turn import CallForm, FunctionTool, Sampling

_NAMED = {CallForm.FUNCTION, CallForm.CUSTOM}


class Gate:
    """Gate of one turn.

    `text`: messages are validated. `choice`: the required call, or "required" for any call; the gate opens when the
    item of such a call arrives. `grammars`: tools whose calls are validated.
    """

    def __init__(self, *, text: bool, choice: str | FunctionTool | None, grammars: Sequence[FunctionTool]) -> None:
        self._text = text
        self._choice = choice
        self._grammars = grammars
        self._held: list[Event] = []
        self._holding = False
        self.shown = 0
        """Number of items of the turn that were let through."""

    def let_through(self, events: list[Event]) -> list[Event]:
        """Take events of the turn, and return all events that may be sent now, including events that were held back."""
        passed: list[Event] = []
        for event in events:
            if isinstance(event, OutputItemAdded):
                self._update(event.item, passed)
            if self._holding:
                self._held.append(event)
            else:
                passed.append(event)
                self.shown += isinstance(event, OutputItemAdded)
        return passed

    def release(self) -> list[Event]:
        """Open the gate and return the events that were held back."""
        held, self._held, self._holding = self._held, [], False
        self.shown += sum(isinstance(event, OutputItemAdded) for event in held)
        return held

    def replace_item(self, item_id: str, events: Callable[[int], list[Event]]) -> None:
        """Replace the held events of an item by the events that `events` returns for the item's output index."""
        index = next(e.output_index for e in self._held if isinstance(e, OutputItemAdded) and e.item["id"] == item_id)
        places = [place for place, event in enumerate(self._held) if getattr(event, "output_index", None) == index]
        # Events of different items never alternate.
        self._held[places[0] : places[-1] + 1] = events(index)

    def _update(self, item: Body, passed: list[Event]) -> None:
        # Text before a required call is acceptable once the call begins, unless the text itself is validated.
        if self._choice is not None and _answers(self._choice, item):
            self._choice = None
            if self._holding and not self._text:
                passed += self.release()
        is_due = self._choice is not None and item["type"] != "reasoning"
        is_text = self._text and item["type"] == "message"
        self._holding = self._holding or is_due or is_text or any(is_call_of(tool, item) for tool in self._grammars)


def gate_for(sampling: Sampling, *, text: bool, choice: str | FunctionTool | None) -> Gate | None:
    """Return the gate of a turn; None if nothing is validated. `text`: messages are validated."""
    grammars = [tool for tool in sampling.tools if tool.grammar is not None]
    if not text and choice is None and not grammars:
        return None
    return Gate(text=text, choice=choice, grammars=grammars)


def is_call_of(tool: FunctionTool, item: Body) -> bool:
    """Return True if the item is a call of this function or custom tool."""
    named = (item["type"], item.get("name"), item.get("namespace"))
    return tool.form in _NAMED and named == (tool.form, tool.label or tool.name, tool.namespace)


def _answers(choice: str | FunctionTool, item: Body) -> bool:
    # For other call forms (e.g. shell) any call is accepted here; the evaluation at the end of the turn is exact.
    return is_call_of(choice, item) if isinstance(choice, FunctionTool) else item["type"].endswith("_call")

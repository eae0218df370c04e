"""Holds back what may turn out unacceptable, until its turn is over and was checked.

Reasoning is never held, nor is anything before the first item in doubt: text where a format was promised or a call is
due, a call whose input has a grammar. A turn about which there is no doubt passes without a gate.
"""

from collections.abc import Sequence

from responses.engine.events.types import Body, Event, OutputItemAdded
from responses.engine.turn import CallForm, FunctionTool, Sampling

_NAMED = {CallForm.FUNCTION, CallForm.CUSTOM}


class Gate:
    """The gate of one turn.

    `text`: messages are checked. `choice`: the call that is due, or "required"; its item ends the wait for it.
    `grammars`: tools whose calls are checked.
    """

    def __init__(self, *, text: bool, choice: str | FunctionTool | None, grammars: Sequence[FunctionTool]) -> None:
        self._text = text
        self._choice = choice
        self._grammars = grammars
        self._held: list[Event] = []
        self._holding = False
        self.shown = 0
        """How many items of the turn were let through."""

    def let_through(self, events: list[Event]) -> list[Event]:
        """Those of these events, and of the ones before, that may go out now."""
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
        """The turn is accepted, or over anyway: what was held."""
        held, self._held, self._holding = self._held, [], False
        self.shown += sum(isinstance(event, OutputItemAdded) for event in held)
        return held

    def _update(self, item: Body, passed: list[Event]) -> None:
        """Whether to hold from this item on, or to hold no longer."""
        if self._choice is not None and _answers(self._choice, item):
            self._choice = None
            if self._holding and not self._text:
                passed += self.release()
        is_due = self._choice is not None and item["type"] != "reasoning"
        is_text = self._text and item["type"] == "message"
        self._holding = self._holding or is_due or is_text or any(is_call_of(tool, item) for tool in self._grammars)


def gate_for(sampling: Sampling, *, text: bool, choice: str | FunctionTool | None) -> Gate | None:
    """The gate that a turn needs. `text`: what the model says is checked before it is told."""
    grammars = [tool for tool in sampling.tools if tool.grammar is not None]
    if not text and choice is None and not grammars:
        return None
    return Gate(text=text, choice=choice, grammars=grammars)


def is_call_of(tool: FunctionTool, item: Body) -> bool:
    """Whether an item is a call of this tool, which the client has named."""
    named = (item["type"], item.get("name"), item.get("namespace"))
    return tool.form in _NAMED and named == (tool.form, tool.label or tool.name, tool.namespace)


def _answers(choice: str | FunctionTool, item: Body) -> bool:
    """Whether an item is the call that was due. Other forms of calls are told apart at the end of the turn only."""
    return is_call_of(choice, item) if isinstance(choice, FunctionTool) else item["type"].endswith("_call")

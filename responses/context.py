"""From a request to what the model reads: the chain before it, references resolved, calls and outputs paired."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from conversations.items import (
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    StoredItem,
    from_wire,
)
from kernel.errors import NotFound, ToolCallMismatch
from responses import access, selectors
from responses.engine.events import Body
from responses.schema import CreateResponse
from responses.wire import input_items
from tenants import scope
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """`history` is what stands before this response; `own` are its input items as they will be stored.

    `shared` maps positions in `own` to the keys of stored items that references pointed at: those are placed again, not
    copied.
    """

    history: Sequence[StoredItem] = ()
    own: Sequence[Body] = ()
    own_items: Sequence[StoredItem] = ()
    shared: dict[int, UUID] = field(default_factory=dict)

    @property
    def items(self) -> list[StoredItem]:
        """Everything that the model reads."""
        return [*self.history, *self.own_items]


def needs_database(body: CreateResponse) -> bool:
    """Whether the context of a request has to be looked up at all."""
    return bool(body.previous_response_id) or any(isinstance(item, ItemReference) for item in input_items(body))


def read(*, principal: Principal, body: CreateResponse) -> Reading:
    """Assemble the context of a request; in a database thread where `needs_database` says so."""
    if not needs_database(body):
        return _checked(Reading(own=[item.with_id() for item in input_items(body)], own_items=input_items(body)))
    with scope.team(principal.team_id):
        history = _history(principal, body.previous_response_id)
        return _checked(_resolved(principal, body, history))


def _history(principal: Principal, previous_id: str | None) -> list[StoredItem]:
    if previous_id is None:
        return []
    return [from_wire(body) for body in access.get_chain(principal=principal, response_id=previous_id)]


def _resolved(principal: Principal, body: CreateResponse, history: list[StoredItem]) -> Reading:
    given = input_items(body)
    wanted = [item.id for item in given if isinstance(item, ItemReference)]
    found = selectors.referenced(team_id=principal.team_id, item_ids=wanted) if wanted else {}
    own: list[Body] = []
    items: list[StoredItem] = []
    shared: dict[int, UUID] = {}
    for position, item in enumerate(given):
        if not isinstance(item, ItemReference):
            own.append(item.with_id())
            items.append(item)
            continue
        if item.id not in found:
            raise NotFound(f"Item with id '{item.id}' not found.", param="input")
        own.append(found[item.id].body)
        items.append(from_wire(found[item.id].body))
        shared[position] = found[item.id].key
    return Reading(history=history, own=own, own_items=items, shared=shared)


def _checked(reading: Reading) -> Reading:
    """Every output answers a call, every call has its output: models refuse anything else with obscure words."""
    calls: set[str] = set()
    answered: set[str] = set()
    for item in reading.items:
        match item:
            case FunctionCall():
                calls.add(item.call_id)
            case FunctionCallOutput():
                if item.call_id not in calls:
                    message = f"No tool call found for function call output with call_id {item.call_id}."
                    raise ToolCallMismatch(message)
                answered.add(item.call_id)
    for item in reading.items:
        if isinstance(item, FunctionCall) and item.call_id not in answered:
            raise ToolCallMismatch(f"No tool output found for function call {item.call_id}.")
    return reading

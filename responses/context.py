"""From a request to what the model reads: the chain before it, references resolved, calls and outputs paired."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import orjson

from conversations.items import (
    CompactionTrigger,
    ItemReference,
    StoredItem,
    from_wire,
)
from conversations.selectors import referenced
from kernel.errors import NotFound, UnsupportedValue
from responses import access, pairing, selectors
from responses.engine.events import Body
from responses.schema import CreateResponse
from responses.wire import input_items
from tenants import scope
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """`history` is what stands before this response; `own` are its input items as they will be stored.

    `shared` maps positions in `own` to the keys of stored items that references pointed at: those are placed again, not
    copied. `follows` is the response whose stored chain is the history, or begins it. `preface` is what a prompt puts
    before everything else; it belongs to the instructions, and is not stored with the items.
    """

    preface: Sequence[StoredItem] = ()
    history: Sequence[StoredItem] = ()
    own: Sequence[Body] = ()
    own_items: Sequence[StoredItem] = ()
    shared: dict[int, UUID] = field(default_factory=dict)
    follows: str | None = None

    @property
    def items(self) -> list[StoredItem]:
        """Everything that the model reads."""
        return [*self.preface, *self.history, *self.own_items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A finished response that was not stored, as the connection that asked for it keeps it in memory.

    `history` is what the stored chain of `follows` holds; `unstored` are the items after it, which nothing else holds,
    the response's own output last.
    """

    response_id: str
    follows: str | None
    history: Sequence[StoredItem]
    unstored: Sequence[Body]


def needs_database(body: CreateResponse, previous: Remembered | None = None) -> bool:
    """Whether the context of a request has to be looked up at all."""
    chained = bool(body.previous_response_id) and previous is None
    return chained or any(isinstance(item, ItemReference) for item in input_items(body))


def read(*, principal: Principal, body: CreateResponse, previous: Remembered | None = None) -> Reading:
    """Assemble the context of a request; in a database thread where `needs_database` says so.

    `previous` is the response of `previous_response_id` where the caller has it in memory.
    """
    _refuse_triggers(body)
    if body.previous_input_messages:
        # Nothing holds them but the request, like a response that was not stored.
        told = [item.with_id() for item in body.previous_items()]
        previous = Remembered(response_id="", follows=None, history=(), unstored=told)
    if not needs_database(body, previous):
        own = Reading(own=[item.with_id() for item in input_items(body)], own_items=input_items(body))
        return _paired(_after(previous, own, body) if previous else own)
    with scope.team(principal.team_id):
        if previous is not None:
            return _paired(_after(previous, _resolved(principal, body, []), body))
        history = _history(principal, body.previous_response_id)
        return _paired(replace(_resolved(principal, body, history), follows=body.previous_response_id))


def _refuse_triggers(body: CreateResponse) -> None:
    for index, item in enumerate(input_items(body)):
        if isinstance(item, CompactionTrigger):
            message = "Items of the type 'compaction_trigger' are not supported by this server."
            raise UnsupportedValue(message, param=f"input[{index}].type")


def _after(previous: Remembered, own: Reading, body: CreateResponse) -> Reading:
    """The request behind what is in memory. One that is stored takes over, as its own input, what nothing else holds:
    its chain must be whole for whoever reads it from the database."""
    unstored = [from_wire(item) for item in previous.unstored]
    if body.store is False:
        return replace(own, history=[*previous.history, *unstored], follows=previous.follows)
    return Reading(
        history=previous.history,
        own=[*previous.unstored, *own.own],
        own_items=[*unstored, *own.own_items],
        shared={position + len(unstored): key for position, key in own.shared.items()},
        follows=previous.follows,
    )


def _history(principal: Principal, previous_id: str | None) -> list[StoredItem]:
    if previous_id is None:
        return []
    return [from_wire(body) for body in access.get_chain(principal=principal, response_id=previous_id)]


def _resolved(principal: Principal, body: CreateResponse, history: list[StoredItem]) -> Reading:
    given = input_items(body)
    wanted = [item.id for item in given if isinstance(item, ItemReference)]
    found = referenced(team_id=principal.team_id, item_ids=wanted) if wanted else {}
    sizes = {name: len(orjson.dumps(item.body)) for name, item in found.items()}
    selectors.refuse_endless(sum(sizes.get(name, 0) for name in wanted))
    own: list[Body] = []
    items: list[StoredItem] = []
    shared: dict[int, UUID] = {}
    for position, item in enumerate(given):
        if not isinstance(item, ItemReference):
            own.append(item.with_id())
            items.append(item)
            continue
        if item.id not in found:
            message = f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to false."
            raise NotFound(message, param="input")
        own.append(found[item.id].body)
        items.append(from_wire(found[item.id].body))
        shared[position] = found[item.id].key
    return Reading(history=history, own=own, own_items=items, shared=shared)


def _paired(reading: Reading) -> Reading:
    pairing.check(reading.items)
    return reading

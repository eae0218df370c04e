"""From a request to what the model reads: the chain before it, references resolved, calls and outputs paired."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import orjson

from conversations.items import (
    ItemReference,
    StoredItem,
    from_wire,
)
from conversations.selectors import (
    context_items,
    find_conversation,
    referenced,
    refuse_duplicates,
    unknown_conversation,
)
from kernel.errors import InvalidValue, NotFound
from responses.engine.compaction.items import CompactedContext, from_latest_compaction
from responses.engine.events.types import Body
from responses.models import Response
from responses.requests import pairing
from responses.requests.encrypted_content import TeamCipher
from responses.requests.parameters import input_items
from responses.runs import access, conversation_lock, selectors
from responses.runs.selectors import Chain
from responses.schema import CreateResponse
from tenants import scope
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """`history` is what stands before this response; `own` are its input items as they will be stored.

    `shared` maps positions in `own` to the keys of stored items that references pointed at: those are placed again, not
    copied. `follows` is the response whose stored chain is the history, or begins it. Of a response that continues a
    conversation the history is what stands in that before `history_end`. `answered` is the response whose calls the
    outputs among the input answer. `preface` is what a prompt puts before everything else; it belongs to the
    instructions, and is not stored with the items. `said` is how history and input are read where a compaction item
    among them has made short what came before it.
    """

    preface: Sequence[StoredItem] = ()
    history: Sequence[StoredItem] = ()
    own: Sequence[Body] = ()
    own_items: Sequence[StoredItem] = ()
    shared: dict[int, UUID] = field(default_factory=dict)
    follows: str | None = None
    conversation_id: str | None = None
    history_end: int | None = None
    answered: str | None = None
    said: CompactedContext | None = None

    @property
    def items(self) -> list[StoredItem]:
        """Everything that the model reads."""
        said = self.said.items if self.said else [*self.history, *self.own_items]
        return [*self.preface, *said]

    @property
    def compacted(self) -> int:
        """How many of the items, behind the preface, stand for what was made short."""
        return len(self.said.compacted) if self.said else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredResponse:
    """A finished response that was not stored, as the connection that asked for it keeps it in memory.

    `history` is what the stored chain of `follows` holds; `unstored` are the items after it, which nothing else holds,
    the response's own output last.
    """

    response_id: str
    follows: str | None
    history: Sequence[StoredItem]
    unstored: Sequence[Body]


def needs_database(body: CreateResponse, previous: UnstoredResponse | None = None) -> bool:
    """Whether the context of a request has to be looked up at all."""
    chained = bool(body.previous_response_id) and previous is None
    refers = any(isinstance(item, ItemReference) for item in input_items(body))
    return chained or refers or body.conversation is not None


def read(
    *,
    principal: Principal,
    body: CreateResponse,
    previous: UnstoredResponse | None = None,
    holder: str | None = None,
) -> RequestContext:
    """Assemble the context of a request; in a database thread where `needs_database` says so.

    `previous` is the response of `previous_response_id` where the caller has it in memory. `holder` is the new response
    that is to hold the conversation of the request; without one, the conversation is only read.
    """
    if body.previous_input_messages:
        # Nothing holds them but the request, like a response that was not stored.
        brought = [item.with_id() for item in body.previous_items()]
        previous = UnstoredResponse(response_id="", follows=None, history=(), unstored=brought)
    if not needs_database(body, previous):
        own = RequestContext(own=[item.with_id() for item in input_items(body)], own_items=input_items(body))
        return _checked(principal, body, _after(previous, own, body) if previous else own)
    with scope.team(principal.team_id):
        if previous is not None:
            return _checked(principal, body, _after(previous, _resolved(principal, body, []), body))
        if body.conversation is not None:
            return _checked(principal, body, _conversed(principal, body, body.conversation.id, holder))
        history = _history(principal, body.previous_response_id)
        return _checked(
            principal, body, replace(_resolved(principal, body, history), follows=body.previous_response_id)
        )


def _after(previous: UnstoredResponse, own: RequestContext, body: CreateResponse) -> RequestContext:
    """The request behind what is in memory. One that is stored takes over, as its own input, what nothing else holds:
    its chain must be whole for whoever reads it from the database."""
    unstored = [from_wire(item) for item in previous.unstored]
    if body.store is False:
        return replace(own, history=[*previous.history, *unstored], follows=previous.follows)
    return RequestContext(
        history=previous.history,
        own=[*previous.unstored, *own.own],
        own_items=[*unstored, *own.own_items],
        shared={position + len(unstored): key for position, key in own.shared.items()},
        follows=previous.follows,
    )


def _history(principal: Principal, previous_id: str | None) -> list[StoredItem]:
    if previous_id is None:
        return []
    return _whole(access.get_chain(principal=principal, response_id=previous_id))


def _whole(chain: Chain) -> list[StoredItem]:
    """The chain as it is without the responses that were deleted from it."""
    return pairing.without_orphans([from_wire(body) for body in chain.items], settled=chain.settled)


def _conversed(principal: Principal, body: CreateResponse, name: str, holder: str | None) -> RequestContext:
    """The request behind the items of its conversation. The hold comes before they are read, so that nobody else's
    come in between."""
    team_id = principal.team_id
    if find_conversation(team_id=team_id, conversation_id=name) is None:
        raise unknown_conversation(name)
    if holder is not None:
        conversation_lock.take(team_id=team_id, conversation_id=name, response_id=holder)
    found = context_items(team_id=team_id, conversation_id=name)
    if found is None:
        raise unknown_conversation(name)
    selectors.refuse_endless(sum(len(text) for text in found.texts))
    refuse_duplicates(team_id=team_id, conversation_id=name, items=input_items(body), param="input")
    reading = _resolved(principal, body, [from_wire(orjson.loads(text)) for text in found.texts])
    answered = _latest(name) if any(pairing.answer(item) for item in reading.own) else None
    return replace(reading, conversation_id=name, history_end=found.end, answered=answered)


def _latest(conversation_id: str) -> str | None:
    """The last response that continued a conversation: what it called has to be answered by the next one."""
    made = Response.objects.filter(conversation_id=conversation_id).order_by("-created_at")
    return made.values_list("pk", flat=True).first()


def history_of(response: Response) -> list[StoredItem]:
    """What stood before a stored response when it began, as far as it still stands there. Runs inside a scope that sees
    the response's team."""
    team_id = response.team_id
    if response.previous_response_id is not None:
        chain = selectors.chain(team_id=team_id, response_id=response.previous_response_id)
        return _whole(chain) if chain else []
    if response.history_id is None:
        return []
    found = context_items(team_id=team_id, conversation_id=response.history_id, end=response.history_end)
    return [from_wire(orjson.loads(text)) for text in found.texts] if found else []


def _resolved(principal: Principal, body: CreateResponse, history: list[StoredItem]) -> RequestContext:
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
    return RequestContext(history=history, own=own, own_items=items, shared=shared)


def _checked(principal: Principal, body: CreateResponse, reading: RequestContext) -> RequestContext:
    """The context from its latest compaction on, which is where it starts; calls and outputs in it are paired."""
    said = from_latest_compaction(
        [*reading.history, *reading.own_items], TeamCipher(principal.team_id).decrypt_compaction
    )
    if said.compacted:
        reading = replace(reading, said=said)
    if body.compacts and not reading.items:
        message = "There is nothing before the 'compaction_trigger' that could be compacted."
        raise InvalidValue(message, param="input")
    pairing.check(reading.items)
    return reading

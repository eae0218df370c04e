"""Build the model's context for a request: the history, resolved references, and pairs of calls and outputs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import orjson

from conversations.items import (
    ConfigurationUpdate,
    ItemReference,
    StoredItem,
    readable_items,
)
from conversations.selectors import (
    ContextItems,
    context_items,
    find_conversation,
    referenced,
    reject_duplicates,
    unknown_conversation,
)
from core.errors import InvalidValue, NotFound
from core.records import record
from engine.compaction.items import CompactedContext, from_latest_compaction
from engine.events.types import Body
from responses.models import Response
from responses.requests import pairing
from responses.requests.encrypted_content import TeamCipher
from responses.requests.parameters import input_items
from responses.runs import access, conversation_lock, selectors
from responses.runs.selectors import Chain
from responses.schema import CreateResponse, TextParam
from responses.schema.options import ReasoningParam, ReasoningUpdate, TextUpdate
from tenants import scope
from tenants.principal import Principal


@record
class RequestContext:
    """The items that the model reads for a request, and the origin of the items.

    - `preface`: the messages of the request's prompt. They belong to the instructions and are not stored as items.
    - `history`: the items before this response, from its chain or its conversation.
    - `input_bodies`, `input_items`: the response's own input as it will be stored, as JSON and parsed.
    - `shared_keys`: the keys of stored items that references name, by position in `input_bodies`. These items get
      another placement instead of a copy.
    - `predecessor_id`: the response whose stored chain is the history, or its beginning.
    - `conversation_id`, `history_end`: the conversation that the response continues, and the position after the last
      item that was read from it.
    - `answered_response_id`: the response whose tool calls are answered by outputs in the input. Set only for a
      conversation; in a chain, this is always the predecessor.
    - `compacted_context`: the history and input from the latest compaction item on, if they contain one.
    """

    preface: Sequence[StoredItem] = ()
    history: Sequence[StoredItem] = ()
    input_bodies: Sequence[Body] = ()
    input_items: Sequence[StoredItem] = ()
    shared_keys: dict[int, UUID] = field(default_factory=dict)
    predecessor_id: str | None = None
    conversation_id: str | None = None
    history_end: int | None = None
    answered_response_id: str | None = None
    compacted_context: CompactedContext | None = None

    @property
    def items(self) -> list[StoredItem]:
        """All items that the model reads, oldest first."""
        compacted = self.compacted_context
        return [*self.preface, *(compacted.items if compacted else [*self.history, *self.input_items])]

    @property
    def compacted(self) -> int:
        """The number of items, directly after the preface, that replace the compacted items."""
        return len(self.compacted_context.compacted) if self.compacted_context else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredResponse:
    """A finished response that was not stored and exists only in the memory of the connection that created it.

    `history` holds the items of the stored chain of `predecessor_id`. `unstored` holds the items after this chain, up
    to and including the response's own output. They exist only here.
    """

    response_id: str
    predecessor_id: str | None
    history: Sequence[StoredItem]
    unstored: Sequence[Body]


def needs_database(body: CreateResponse, previous: UnstoredResponse | None = None) -> bool:
    """Return true if the context of a request must be read from the database."""
    chained = bool(body.previous_response_id) and previous is None
    refers = not isinstance(body.input, str) and any(isinstance(item, ItemReference) for item in body.input)
    return chained or refers or body.conversation is not None


def read_context(
    *,
    principal: Principal,
    body: CreateResponse,
    previous: UnstoredResponse | None = None,
    lock_for: str | None = None,
) -> RequestContext:
    """Build the context of a request. Call it in a database thread if `needs_database` returns true.

    `previous` is the response of `previous_response_id` if the caller has it in memory. `lock_for` is the id of the new
    response, for which the conversation of the request is locked. Without `lock_for`, a conversation is only read.

    Raises an API error for unknown ids, unpaired calls, and a conversation that another response has locked.
    """
    if body.previous_input_messages:
        # These messages exist only in the request, so they are treated like the items of an unstored response.
        brought = [item.with_id() for item in body.previous_items()]
        previous = UnstoredResponse(response_id="", predecessor_id=None, history=(), unstored=brought)
    if not needs_database(body, previous):
        items = input_items(body)
        own = RequestContext(input_bodies=[item.with_id() for item in items], input_items=items)
        return _checked(principal, body, _after_unstored(previous, own, body) if previous else own)
    with scope.team(principal.team_id):
        if previous is not None:
            own = _resolve_references(principal, body, [])
            return _checked(principal, body, _after_unstored(previous, own, body))
        if body.conversation is not None:
            return _checked(principal, body, _after_conversation(principal, body, body.conversation.id, lock_for))
        history: list[StoredItem] = []
        if body.previous_response_id is not None:
            history = _without_orphans(access.get_chain(principal=principal, response_id=body.previous_response_id))
        context = _resolve_references(principal, body, history)
        return _checked(principal, body, replace(context, predecessor_id=body.previous_response_id))


def _after_unstored(previous: UnstoredResponse, own: RequestContext, body: CreateResponse) -> RequestContext:
    unstored = readable_items(previous.unstored)
    if body.store is False:
        return replace(own, history=[*previous.history, *unstored], predecessor_id=previous.predecessor_id)
    # A stored response stores the unstored items as part of its own input, so that its stored chain is complete.
    return RequestContext(
        history=previous.history,
        input_bodies=[*previous.unstored, *own.input_bodies],
        input_items=[*unstored, *own.input_items],
        shared_keys={position + len(unstored): key for position, key in own.shared_keys.items()},
        predecessor_id=previous.predecessor_id,
    )


def _without_orphans(chain: Chain) -> list[StoredItem]:
    # If a response in the middle of the chain was deleted, a call may be left without its output, or an output without
    # its call.
    return pairing.without_orphans(readable_items(chain.items), settled=chain.settled)


def _after_conversation(
    principal: Principal, body: CreateResponse, conversation_id: str, lock_for: str | None
) -> RequestContext:
    team_id = principal.team_id
    if find_conversation(team_id=team_id, conversation_id=conversation_id) is None:
        raise unknown_conversation(conversation_id)
    # Lock before reading, so that no other response can append items between the read and the run.
    if lock_for is not None:
        conversation_lock.acquire(team_id=team_id, conversation_id=conversation_id, response_id=lock_for)
    found = context_items(team_id=team_id, conversation_id=conversation_id)
    if found is None:
        raise unknown_conversation(conversation_id)
    selectors.reject_oversized_context(sum(len(text) for text in found.texts))
    reject_duplicates(team_id=team_id, conversation_id=conversation_id, items=input_items(body), param="input")
    context = _resolve_references(principal, body, _read(found))
    answered: str | None = None
    if any(pairing.call_output(item) for item in context.input_bodies):
        # Calls are always answered by the next response, so older responses of the conversation have no open calls.
        made = Response.objects.filter(conversation_id=conversation_id).order_by("-created_at")
        answered = made.values_list("pk", flat=True).first()
    return replace(context, conversation_id=conversation_id, history_end=found.end, answered_response_id=answered)


def load_history(response: Response) -> list[StoredItem]:
    """Return the items that preceded a stored response when it began, except items that were deleted since then.

    Call it inside a scope that sees the response's team.
    """
    team_id = response.team_id
    if response.previous_response_id is not None:
        chain = selectors.chain(team_id=team_id, response_id=response.previous_response_id)
        return _without_orphans(chain) if chain else []
    if response.history_id is None:
        return []
    found = context_items(team_id=team_id, conversation_id=response.history_id, end=response.history_end)
    return _read(found) if found else []


def restore_context(
    response: Response, input_bodies: Sequence[Body], *, preface: Sequence[StoredItem]
) -> RequestContext:
    """Return the context that the model of a stored response reads. Call it inside a scope that sees the team."""
    history, input_items = load_history(response), readable_items(input_bodies)
    decrypt = TeamCipher(response.team_id).decrypt_compaction
    compacted = from_latest_compaction([*history, *input_items], decrypt)
    return RequestContext(preface=preface, history=history, input_items=input_items, compacted_context=compacted)


def _read(found: ContextItems) -> list[StoredItem]:
    items = readable_items(map(orjson.loads, found.texts))
    # If a call could not be read, its output must not be sent alone.
    return items if len(items) == len(found.texts) else pairing.without_orphans(items, settled=0)


def _resolve_references(principal: Principal, body: CreateResponse, history: list[StoredItem]) -> RequestContext:
    given = input_items(body)
    wanted = [item.id for item in given if isinstance(item, ItemReference)]
    found = referenced(team_id=principal.team_id, item_ids=wanted) if wanted else {}
    sizes = {name: len(orjson.dumps(item.body)) for name, item in found.items()}
    # A reference takes only a few bytes of the request, but every repetition adds the whole item to the context.
    selectors.reject_oversized_context(sum(sizes.get(name, 0) for name in wanted))
    bodies: list[Body] = []
    items: list[StoredItem] = []
    shared_keys: dict[int, UUID] = {}
    for item in given:
        if not isinstance(item, ItemReference):
            bodies.append(item.with_id())
            items.append(item)
            continue
        if item.id not in found:
            raise NotFound(
                f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to false.",
                param="input",
            )
        if readable := readable_items([found[item.id].body]):
            shared_keys[len(bodies)] = found[item.id].key
            bodies.append(found[item.id].body)
            items += readable
    return RequestContext(history=history, input_bodies=bodies, input_items=items, shared_keys=shared_keys)


def _checked(principal: Principal, body: CreateResponse, context: RequestContext) -> RequestContext:
    # The model reads only the items from the latest compaction item on, so pairs are checked only in this part.
    compacted = from_latest_compaction(
        [*context.history, *context.input_items], TeamCipher(principal.team_id).decrypt_compaction
    )
    if compacted.compacted:
        context = replace(context, compacted_context=compacted)
    if body.compacts and not context.items:
        raise InvalidValue("There is nothing to compact before the 'compaction_trigger'.", param="input")
    pairing.check(context.items)
    return context


def effective_request(body: CreateResponse, items: Iterable[StoredItem]) -> CreateResponse:
    """Return the request with the reasoning effort and text format that items of its context have set.

    A `configuration_update` item applies until the next such item. A setting of the request itself takes precedence.
    """
    updates = [item for item in items if isinstance(item, ConfigurationUpdate)]
    if not updates:
        return body
    reasoning, text = body.reasoning or ReasoningParam(), body.text or TextParam()
    efforts = [update.reasoning for update in updates if update.reasoning]
    formats = [update.text for update in updates if update.text]
    if efforts and reasoning.effort is None:
        effort = ReasoningUpdate.model_validate(efforts[-1]).effort
        reasoning = reasoning.model_copy(update={"effort": effort})
        body = body.model_copy(update={"reasoning": reasoning})
    if formats and text.format is None:
        text = text.model_copy(update={"format": TextUpdate.model_validate(formats[-1]).format})
        body = body.model_copy(update={"text": text})
    return body

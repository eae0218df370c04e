"""A compaction pass: the model that answers is asked for notes on what was said, which take its place from then on.

It is a turn of its own, made between the others, so that calls and their outputs stay together.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from conversations.items import InputMessage, StoredItem, plain_text
from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine import turn_request
from responses.engine.calls.port import Toolbox
from responses.engine.compaction import items as compaction
from responses.engine.compaction import token_estimate, window
from responses.engine.compaction.items import CompactionContent
from responses.engine.events.tools import CompactionCompacting
from responses.engine.events.types import Body, Delta, Event, OutputItemAdded, OutputItemDone
from responses.engine.state import Fragment, OutputItem, RunContext, RunState
from responses.engine.steps import ContextCompacted, Emitted, TurnRecord
from responses.engine.turn import Finish, LanguageModel, Sampling, TurnRequest, TurnResult, TurnStream, Usage

_ASK = (
    "[Automatic request] This conversation is about to be shortened: everything in it but what users and developers "
    "said themselves will be replaced by notes of yours. Write these notes now, for yourself, so that you can go on "
    "without the rest. Say what was asked for and what has become of it; what was decided, and what was ruled out and "
    "why; facts, figures, names, ids, paths and addresses, word for word; what calls of tools brought that still "
    "matters, and which of them are open; what is to be done next. Write down nothing that was not said, answer "
    "nothing, and call no tool."
)
_CUT = "The notes that a compaction needs were cut short by the model's server."
_EMPTY = "The model wrote no notes, which a compaction needs."


class Compactor:
    """The passes of one run. `failure` says why the last one made nothing."""

    def __init__(
        self, context: RunContext, state: RunState, *, model: LanguageModel, tools: Toolbox, now: Callable[[], datetime]
    ) -> None:
        self._context = context
        self._state = state
        self._model = model
        self._tools = tools
        self._now = now
        self._began = now()
        self._stream: TurnStream | None = None
        self._request: TurnRequest | None = None
        # The item that was announced and has not come yet.
        self._opened: Body | None = None
        # What the upstream counted up to the last turn, and how many items of the run that includes.
        self._counted: tuple[int, int] | None = None
        self.failure: Failure | None = None

    # -- whether -------------------------------------------------------------------------------------------------------

    @property
    def is_only_step(self) -> bool:
        """Whether the run is a pass and nothing else."""
        return self._context.compaction is not None and self._context.compaction.at_once

    @property
    def is_under_way(self) -> bool:
        """Whether a model is writing."""
        return self._stream is not None

    def is_due(self) -> bool:
        """Whether a pass comes next: it was asked for, or announced, or the threshold is passed.

        The latter counts once: what a pass could not bring below the threshold has to grow by as much again.
        """
        context, state = self._context, self._state
        plan = context.compaction
        if plan is None or context.cipher is None:
            return False
        if plan.at_once:
            return not state.has_compacted
        if self._opened is not None:
            return True
        if state.compaction_failed or state.rejected is not None:
            return False
        said = turn_request.current_context(context, state)
        if len(compaction.kept_items(said.rest)) == len(said.rest):
            return False
        limit = plan.limit(context.traits.context_window)
        left = self._tokens(said.compacted) if said.compacted else 0
        return self._read() > (limit if left <= limit else left + limit)

    def is_needed(self) -> bool:
        """Whether the run cannot go on without the pass that has failed."""
        context = self._context
        too_long = window.is_too_long(
            window=context.traits.context_window,
            instructions=context.instructions,
            items=turn_request.all_items(context, self._state),
            sampling=self._sampling(),
            attachments=context.attachments,
        )
        return (
            self.is_only_step or self._opened is not None or (too_long and context.parameters["truncation"] != "auto")
        )

    def record_usage(self, usage: Usage) -> None:
        """A turn is over, and its items are in the state: what it read and wrote is read by the next one."""
        tokens = usage.input_tokens + usage.output_tokens - usage.reasoning_tokens
        self._counted = None if usage.estimated else (tokens, len(self._state.context_items()))

    def _read(self) -> int:
        """The tokens that the next turn reads: as the upstream counted them, as far as it did."""
        if self._counted is None:
            return self._tokens(turn_request.all_items(self._context, self._state))
        tokens, known = self._counted
        new = self._state.context_items()[known:]
        attachments = self._context.attachments
        return tokens + token_estimate.input_tokens(
            instructions=None, items=new, sampling=Sampling(), attachments=attachments
        )

    def _tokens(self, items: Sequence[StoredItem]) -> int:
        context = self._context
        return token_estimate.input_tokens(
            instructions=context.instructions, items=items, sampling=self._sampling(), attachments=context.attachments
        )

    def _sampling(self) -> Sampling:
        sampling = self._context.sampling
        return replace(sampling, tools=(*sampling.tools, *self._tools.functions()))

    # -- a pass --------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with a pass that another process had announced: its item is still to come."""
        fragments = self._state.fragments
        if fragments and fragments[-1].is_open and fragments[-1].body["type"] == "compaction":
            self._opened = fragments.pop().body

    async def steps(self) -> AsyncGenerator[Emitted | ContextCompacted, None]:
        """One pass. It is announced when the model begins to write: one that is refused leaves no trace of it."""
        self.failure = None
        self._began = self._now()
        self._request = self._asked()
        self._stream = self._model.open(self._request)
        async with aclosing(self._stream.events()) as turn:
            async for written in turn:
                if self._opened is None and any(isinstance(event, Delta) for event in written):
                    yield Emitted(self._announced())
        result = self._stream.result()
        self._stream = None
        yield self._over(result)

    def interrupt(self) -> TurnRecord | None:
        """End the pass that is going on, if there is one: its tokens are spent."""
        if self._stream is None:
            return None
        _, result = self._stream.interrupt()
        self._stream = None
        return self._record(result)

    def fragment(self) -> Fragment | None:
        """The item that was announced and will not come any more."""
        if self._opened is None:
            return None
        body, self._opened = self._opened, None
        return Fragment(output_index=self._state.next_output_index, body=body, is_open=True)

    def kept(self) -> list[StoredItem]:
        """What stays as it is. What a run tells its model in the user's place is no word of the user's."""
        context, state = self._context, self._state
        own = () if state.has_compacted else context.items[context.instruction_items + context.compacted_items :]
        # The last of what was compacted before are the notes on it, which go into the new ones.
        return compaction.kept_items([*turn_request.current_context(context, state).compacted[:-1], *own])

    def _announced(self) -> list[Event]:
        index = self._state.next_output_index
        self._opened = {"id": new_id("cmp"), "type": "compaction", "encrypted_content": ""}
        return [OutputItemAdded(output_index=index, item=self._opened), CompactionCompacting(self._opened["id"], index)]

    def _asked(self) -> TurnRequest:
        """The conversation as the model knows it, and a last request that is no part of it."""
        context = self._context
        sampling = self._sampling()
        return TurnRequest(
            model=context.model,
            instructions=context.instructions,
            items=[*turn_request.all_items(context, self._state), InputMessage(role="user", content=_ASK)],
            sampling=replace(
                sampling,
                tool_choice="none" if sampling.tools else None,
                max_output_tokens=None,
                top_logprobs=None,
                logprobs=False,
                reasoning_summary=None,
                verbosity=None,
                response_format=None,
            ),
            first_output_index=self._state.next_output_index,
            attachments=context.attachments,
            cipher=context.cipher,
        )

    def _over(self, result: TurnResult) -> ContextCompacted:
        cipher, state = self._context.cipher, self._state
        summary = "\n\n".join(text for item in result.items if (text := _text(item)))
        self.failure = _failure(result, summary)
        if self.failure is not None or cipher is None:
            state.compaction_failed = True
            return ContextCompacted(turn=self._record(result), items=[], events=[])
        events = self._announced() if self._opened is None else []
        kept = [item.wire() for item in self.kept()]
        sealed = cipher.encrypt_compaction(CompactionContent(summary=summary, kept=kept))
        item = OutputItem(body={**(self._opened or {}), "encrypted_content": sealed})
        events.append(OutputItemDone(output_index=state.next_output_index, item=item.body))
        self._opened = self._counted = None
        state.output.append(item)
        return ContextCompacted(turn=self._record(result), items=[item], events=events)

    def _record(self, result: TurnResult) -> TurnRecord:
        """Close the books: it counts as a turn, but not as an answer."""
        state = self._state
        usage = result.usage or self._estimate(result)
        record = TurnRecord(
            number=state.turn,
            started_at=self._began,
            ended_at=self._now(),
            result=result,
            usage=usage,
            compacts=True,
            failed=self.failure is not None,
        )
        state.turn += 1
        state.usage += usage
        state.compactions += 1
        state.compaction_tokens += usage.output_tokens
        return record

    def _estimate(self, result: TurnResult) -> Usage:
        if self._request is None or (result.failure is not None and not result.items):
            return Usage(estimated=True)
        written = token_estimate.tokens(*map(plain_text, result.items))
        return Usage(input_tokens=self._tokens(self._request.items), output_tokens=written, estimated=True)


def _text(item: Body) -> str:
    """What a message says; a refusal is no summary."""
    if item["type"] != "message":
        return ""
    return "".join(part["text"] for part in item["content"] if part["type"] == "output_text").strip()


def _failure(result: TurnResult, summary: str) -> Failure | None:
    if result.failure is not None:
        return result.failure
    if result.finish is Finish.LENGTH:
        return Failure(code="server_error", message=_CUT)
    return None if summary else Failure(code="server_error", message=_EMPTY)
